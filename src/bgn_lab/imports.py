"""Objects of the user's code by name, as in ``--norm package.module:Class``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def load(option: str, name: str, what: str) -> Any:
    """The object that ``name``, PACKAGE:OBJECT, stands for; modules of the current folder count.

    Args:
        option: of the recipe, for errors.
        name: as given, with a colon.
        what: what is accepted, for errors.

    >>> load("norm", "torch.nn:BatchNorm2d", "a class")
    <class 'torch.nn.modules.batchnorm.BatchNorm2d'>
    """
    package, _, path = name.partition(":")
    if not package or not path:
        raise ValueError(f"{option}={name!r} is no PACKAGE:OBJECT; expected {what}")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(package)
        for part in path.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{option}={name!r}: there is no module {error.name!r} in {here} or installed;"
            f" expected {what}"
        ) from None
    except AttributeError as error:
        raise ValueError(f"{option}={name!r}: {error}; expected {what}") from None
    finally:
        sys.path.remove(here)
    if not callable(found):
        raise TypeError(f"{option}={name!r} is a {type(found).__name__}; expected {what}")
    return found
