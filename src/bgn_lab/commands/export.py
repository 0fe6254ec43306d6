"""``bgn export``: the network of a finished run as a file for other runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.text import Text

from bgn import checks
from bgn_lab.deploy import finished, formats
from bgn_lab.deploy.check import BATCH, compare
from bgn_lab.system import files
from bgn_lab.system.printable import printable


@dataclass(frozen=True)
class Export:
    """Write the network of a finished run to a file that others load, and check it on real images.

    NAME.onnx is for onnxruntime and its like, NAME.pt2 for torch without this package,
    NAME.safetensors the weights alone. The file is written only if it answers as the network does.
    """

    run: tyro.conf.Positional[Path]
    """folder of a finished run: classification, adversarial, fewshot, adaptation, segmentation or
    nas-train"""
    to: Path
    """the file: NAME.onnx, NAME.pt2 or NAME.safetensors"""
    fold: bool = True
    """put normalizers into the convolutions before them, where that is exact"""
    dynamic: Literal["none", "batch", "size"] = "batch"
    """what may differ from the images of the run: nothing, their number, their size too"""
    opset: int | None = None
    """version of the operators of ONNX; by default that of torch's exporter"""
    compiled: bool = False
    """a .pt2 with machine code for this kind of CPU (AOTInductor), which C++ loads too"""
    images: int = 256
    """images of the run's data to check the file on"""
    force: bool = False
    """overwrite an existing file"""

    def __call__(self, console: Console) -> int:
        """Export, check, write."""
        options = formats.Options(self.dynamic, self.opset, self.compiled)
        checks.positive_int("images", self.images)
        format = formats.of(self.to)
        format.check(options)
        if self.to.is_dir() or (self.to.exists() and not self.force):
            hint = "another name" if self.to.is_dir() else "another name, or --force"
            raise ValueError(f"to={str(self.to)!r} exists; expected {hint}")
        if not self.to.absolute().parent.is_dir():
            raise ValueError(f"to={str(self.to)!r} is in a folder that does not exist")

        with console.status("loading the run"):
            found = finished.load(self.run, self.images)
        # a graph of fixed shape is one of a single image; a number that may differ is not 1
        x, model = found.images[[0] if self.dynamic == "none" else [0, 0]], found.model
        notes = [f"the run did not converge: {found.reason}"] if found.reason else []
        if self.fold:
            model, left = finished.folded(model, x)
            notes += left
        for line in "\n".join(f"note: {note}" for note in notes).splitlines():
            console.print(Text(printable(line)), soft_wrap=True)
        with console.status(f"exporting to {format.suffix}"):
            content = self._written(format, model, x, options, found.about)
        with console.status("checking on real images"):
            exported = format.read(content, model, options)
            batch = 1 if self.dynamic == "none" else BATCH
            result = compare(found.model, exported, found.images, found.labels, batch)
        console.print(str(result), highlight=False, soft_wrap=True)
        if not result.agrees:
            console.print(Text("they differ by more than rounding: nothing was written", "red"))
            return 1
        files.write(self.to, content)
        size = f"{len(content) / 1e6:.1f} MB"
        console.print(Text(printable(f"done: {self.to}, {size}")), soft_wrap=True)
        return 0

    def _written(self, format: formats.Format, *arguments: Any) -> bytes:
        """The file, or an error that says what was asked for."""
        try:
            return format.write(*arguments)
        except Exception as error:  # the exporters raise whatever they stumble over
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ValueError(
                f"the network cannot be exported as dynamic={self.dynamic}: {why}"
            ) from error
