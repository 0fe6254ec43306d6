"""The same command in several processes of this machine, as torchrun starts them, with exit codes that a scheduler can use."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

from rich.console import Console

from bgn_lab.training.stopping import INTERRUPTED, REQUEUE

REFUSED = 2  # bad input: it would be bad again


def launch(words: Sequence[str], processes: int, restarts: int, console: Console) -> int:
    """Run ``bgn words`` in so many processes; if one of them dies, all begin again from the last checkpoint."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what there is to tell is told here
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    for attempt in range(restarts + 1):
        code, died = _attempt(words, processes)
        if not died:
            return code
        after = "all begin again from the last checkpoint" if attempt < restarts else "the same command goes on from there"
        console.print(f"{died}: {after}", highlight=False, soft_wrap=True)
    return 1


def _attempt(words: Sequence[str], processes: int) -> tuple[int, str]:
    """The exit code; and who died of what, if somebody did."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id=str(uuid.uuid4()), rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.2,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "bgn_lab", *words)
    except SignalException as error:  # the processes have had it too, and written what they had to
        return (REQUEUE if error.sigval == signal.SIGTERM else INTERRUPTED), ""
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        for code in (REFUSED, REQUEUE, INTERRUPTED):
            if code in codes.values():
                return code, ""
        # who died by itself: the others were ended because of it, or lost it
        order = sorted(codes, key=lambda rank: (codes[rank] == -signal.SIGTERM, codes[rank] > 0))
        rank, code = order[0], codes[order[0]]
        return 1, f"process {rank} " + (f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with code {code}")
    return 0, ""
