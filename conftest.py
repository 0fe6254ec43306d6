"""What can be imported here: doctests are looked for in every module, and triton may be missing."""

import importlib.util

collect_ignore_glob = []
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["src/bgn/kernels/triton/*.py", "benchmarks/gpu/*.py"]
