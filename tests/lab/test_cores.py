import os
import subprocess
import sys

import pytest

from bgn_lab.system import cores


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"),
    reason="this system does not tell which cores a process may use",
)
def test_cores_are_those_that_the_process_may_use() -> None:
    assert 1 <= cores.count() <= (os.cpu_count() or 1)
    one = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); from bgn_lab.system import cores; print(cores.count())"
    assert (
        subprocess.run(
            [sys.executable, "-c", one], capture_output=True, text=True, check=True
        ).stdout
        == "1\n"
    )
