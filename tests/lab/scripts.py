"""Scripts of tools/ and examples/ as modules."""

import importlib.util
import sys
from pathlib import Path
from typing import Any


def load(name: str, folder: str = "tools") -> Any:
    """The script of that name."""
    path = Path(__file__).parents[2] / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
