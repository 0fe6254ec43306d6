"""``bgn info``: versions, and which backend is at work."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

import bgn


@dataclass(frozen=True)
class Info:
    """Print the versions, the backends, and which of them is at work on which kind of device.

    An issue should have this text in it. It names no paths.
    """

    def __call__(self, console: Console) -> int:
        """Print it."""
        console.print(bgn.info(), highlight=False, markup=False, soft_wrap=True)
        return 0
