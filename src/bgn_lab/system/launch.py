"""Run the same command in several processes of this machine, as torchrun does.

Exit codes are those that a scheduler can use.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from bgn_lab.system import cores
from bgn_lab.system.signals import INTERRUPTED, REQUEUE

REFUSED = 2  # bad input: it would be bad again
# seconds that processes have for their checkpoint after a signal; schedulers may grant less
PATIENCE = 600


def launch(words: Sequence[str], processes: int, restarts: int, console: Console) -> int:
    """Run ``bgn words`` in several processes.

    If one of them dies, all resume from the last checkpoint.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    # failures are reported here
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(cores.threads(processes)))
    try:
        for attempt in range(restarts + 1):
            code, died = _attempt(words, processes)
            if not died:
                return code
            after = (
                "all resume from the last checkpoint"
                if attempt < restarts
                else "run the same command to resume"
            )
            console.print(f"{died}: {after}", highlight=False, soft_wrap=True)
    except SignalException as error:  # the processes got it too, and saved the run
        return INTERRUPTED if error.sigval == signal.SIGINT else REQUEUE
    return 1


def _attempt(words: Sequence[str], processes: int) -> tuple[int, str]:
    """The exit code; and who died of what, if somebody did."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    options: dict[str, Any] = {"shutdown_timeout": PATIENCE}
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id=str(uuid.uuid4()),
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.2,
        **{name: value for name, value in options.items() if name in known},
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "bgn_lab", *words)
    except ChildFailedError as error:
        return judge({rank: failure.exitcode for rank, failure in error.failures.items()})
    return 0, ""


def judge(codes: Mapping[int, int]) -> tuple[int, str]:
    """The exit code of all, from the codes of those that failed; and who died, if somebody did.

    A process that was killed decides: the others were ended because of it, and leave as if they had
    been asked to end.

    >>> judge({0: 75, 1: -9}), judge({0: 75, 1: 75}), judge({0: 1, 1: 2}), judge({0: -15, 1: 1})
    ((1, 'process 1 was killed by SIGKILL'), (75, ''), (2, ''), (1, 'process 1 failed with code 1'))
    """
    killed = [rank for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM]
    if killed:
        return 1, f"process {killed[0]} was killed by {signal.Signals(-codes[killed[0]]).name}"
    failed = [
        rank
        for rank, code in codes.items()
        if code > 0 and code not in (REFUSED, REQUEUE, INTERRUPTED)
    ]
    for code in (REFUSED, *((REQUEUE, INTERRUPTED) if not failed else ())):
        if code in codes.values():
            return code, ""
    return (
        1,
        f"process {failed[0]} failed with code {codes[failed[0]]}"
        if failed
        else "a process was ended by SIGTERM",
    )
