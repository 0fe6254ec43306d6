"""What can be imported here: doctests are looked for in every module, and triton may be missing.

Modules of ``tests/gpu`` need a GPU or triton's interpreter; tests/test_triton.py starts a process
for them.
"""

import importlib.util
import os

collect_ignore_glob = []
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob += ["src/bgn/kernels/triton/*.py", "benchmarks/gpu/*.py"]
if "TRITON_INTERPRET" not in os.environ and os.environ.get("BGN_TEST_DEVICE", "cpu") == "cpu":
    collect_ignore_glob += ["tests/gpu/*.py"]
