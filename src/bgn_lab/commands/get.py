"""``bgn data get``: fetch a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from bgn import checks
from bgn_lab.data import cifar10
from bgn_lab.data.names import printable

NAMES = ("cifar10",)


@dataclass(frozen=True)
class Get:
    """Fetch a data set, check it by its hash, and read it once.

    The same command continues an interrupted download.
    """

    name: tyro.conf.Positional[str]
    """cifar10; fashion-mnist ships with the package; ImageNet needs an account: image-net.org"""
    root: Path | None = None
    """folder to put it into; by default bgn/cifar10 in the user's cache folder, or in $BGN_HOME"""
    file: Path | None = None
    """an archive that you have already, to be copied in place of a download (CIFAR-10's binary
    version)"""

    def __call__(self, console: Console) -> int:
        """Fetch."""
        checks.one_of("name", self.name, NAMES)
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=None)
            folder = cifar10.get(
                self.root,
                lambda done, size: progress.update(task, completed=done, total=size or None),
                self.file,
            )
        parts = cifar10.load(folder)
        found = f"{len(parts['train'][0])} training and {len(parts['test'][0])} test images"
        console.print(
            f"CIFAR-10 in {printable(folder)}: {found}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return 0
