"""Whether triton works here, and what is said where it does not.

It is imported when the first tensor for it comes. Once it failed, it is not tried again.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import traceback
import warnings
from typing import Any

import torch

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ("cpu",) if interpreted else ("cuda",)  # that is what torch calls ROCm, too
_failure = ""
_loaded: Any = None


def available() -> bool:
    """Whether triton is installed and this torch could run it."""
    runs = interpreted or torch.version.cuda is not None or torch.version.hip is not None
    return runs and not _failure and importlib.util.find_spec("triton") is not None


def why_not() -> str:
    """Why the kernels do not run."""
    if _failure:
        return _failure
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (pip install 'batch-group-norm[gpu]')"
    return "" if available() else "this torch has no GPU"


def version() -> str:
    """The version of triton that is installed."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # ROCm's has another name
        return "of unknown version"


def failed(error: BaseException) -> None:
    """Say once that triton does not work here, and do not try again."""
    global _failure
    if _failure:
        return
    lines = str(error).strip().splitlines() or [""]
    _failure = f"{type(error).__name__}: {lines[0]}"
    warnings.warn(
        f"triton does not work here ({_failure}): bgn uses torch's own kernels on GPUs",
        RuntimeWarning,
        stacklevel=3,
    )


def kernels() -> Any:
    """The module that calls the kernels, or None where triton does not work."""
    global _loaded
    if _loaded is None and not _failure:
        try:
            from bgn.kernels.triton import calls

            _loaded = calls
        except Exception as error:  # whatever an installation may be broken by
            failed(error)
    return None if _failure else _loaded


def is_of_triton(error: BaseException) -> bool:
    """Whether an error comes from triton and its tools, and not from arguments or memory.

    A missing C compiler or driver is a RuntimeError of Python, raised in triton's own modules.
    """
    modules = {kind.__module__ for kind in type(error).__mro__}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        modules.add(str(frame.f_globals.get("__name__")))
    return any(module.partition(".")[0] == "triton" for module in modules)
