"""A run that is interrupted within an epoch and goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bgn_lab.system.signals import Interrupted
from bgn_lab.training.result import Result
from bgn_lab.training.run import WEIGHTS, Watcher, run
from bgn_lab.training.task import Task


def same_bits(make: Callable[[], Task], folder: Path, at: tuple[int, int]) -> tuple[Result, Result]:
    """Run a task whole, and in parts, interrupted at (epoch, step).

    Both end with the same weights; the results are returned.
    """
    whole = run(make(), folder / "whole")

    def stop(epoch: int, step: int) -> None:
        if (epoch, step) == at:
            raise Interrupted(130)

    with pytest.raises(Interrupted):
        run(make(), folder / "parts", Watcher(step=stop))
    assert (folder / "parts" / "checkpoint.safetensors").exists()
    parts = run(make(), folder / "parts")
    assert (folder / "parts" / WEIGHTS).read_bytes() == (folder / "whole" / WEIGHTS).read_bytes()
    return whole, parts
