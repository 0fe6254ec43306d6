"""What each normaliser of a model does at a given input and batch size."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bgn import checks
from bgn.groups import ENOUGH, auto_groups
from bgn.surgery.kinds import Kind, identify, normalisers
from bgn.surgery.modules import observed

FEW = ENOUGH  # instances per statistic


@dataclass(frozen=True)
class Row:
    """One normaliser. ``instances`` is N*S, the elements per statistic; ``acts_as`` says what it amounts to here."""

    layer: str
    kind: str
    shape: tuple[int, ...]
    D: int
    G: int
    S: int
    instances: int
    channels_per_group: float
    acts_as: str
    few: bool


@dataclass(frozen=True)
class Description:
    """Rows, one per normaliser call; prints as a table."""

    rows: tuple[Row, ...]
    batch_size: int

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        head = ("layer", "kind", "C x H x W", "D", "G", "S", "N*S", "channels/group", "acts as", "")
        lines = [head]
        for row in self.rows:
            layer, kind, shape, D, G, S, instances, width, acts_as, few = astuple(row)
            size = " x ".join(str(n) for n in shape)
            flag = "few" if few else ""
            lines.append(
                (
                    layer,
                    kind,
                    size,
                    str(D),
                    str(G),
                    str(S),
                    str(instances),
                    f"{width:.3g}",
                    acts_as,
                    flag,
                )
            )
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        left = (0, 1, 2, 8, 9)
        text = [
            "  ".join(
                cell.ljust(w) if i in left else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        text.insert(1, "  ".join("-" * w for w in widths))
        few = sum(row.few for row in self.rows)
        summary = f"{len(self.rows)} normalisers at batch size {self.batch_size}"
        text.append(
            summary + (f"; {few} with fewer than {FEW} instances per statistic" if few else "")
        )
        return "\n".join(line.rstrip() for line in text)

    __repr__ = __str__


def describe(model: nn.Module, input_size: Any, batch_size: int) -> Description:
    """A table of the model's normalisers: shape, D, G, S, N*S and channels per group, at ``batch_size`` images per process.

    Args:
        model: run once, in eval mode and without gradients; its mode is restored.
        input_size: (C, H, W) of an image; or one image's input for the model itself, for models that take something else.
        batch_size: N, the images that one process normalises together.

    >>> import bgn
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), bgn.BatchGroupNorm2d(8, 2), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8))
    >>> describe(model, (3, 10, 10), batch_size=2)
    layer  kind  C x H x W    D  G    S  N*S  channels/group  acts as
    -----  ----  ---------  ---  -  ---  ---  --------------  -------  ---
    1      bgn   8 x 8 x 8  512  2  256  512               4  BGN
    3      bn    8 x 1 x 1    8  8    1    2               1  BN       few
    2 normalisers at batch size 2; 1 with fewer than 16 instances per statistic
    """
    names = {layer: name for name, layer in normalisers(model).items()}
    rows: list[Row] = []

    def see(layer: nn.Module, shape: tuple[int, ...], N: int) -> None:
        kind = identify(layer)
        assert kind is not None
        if getattr(layer, "unsettled", False):  # what it will be after such a batch
            kind = replace(kind, num_groups=auto_groups(shape[0], N, math.prod(shape[1:])))
        rows.append(_row(names[layer], kind, shape, N))

    visit(model, input_size, batch_size, see)
    return Description(tuple(rows), batch_size)


def visit(
    model: nn.Module,
    input_size: Any,
    batch_size: int,
    see: Callable[[nn.Module, tuple[int, ...], int], None],
) -> None:
    """Call ``see(layer, (C, H, W), N)`` for whatever reaches a normaliser at a batch size; see :func:`describe`."""
    checks.positive_int("batch_size", batch_size)
    found = normalisers(model)
    if not found:
        raise ValueError(f"model={type(model).__name__} has no normaliser that is known here")
    example, images = _example(model, input_size)

    def pass_on(layer: nn.Module, x: Tensor) -> None:
        see(layer, tuple(x.shape[1:]), batch_size * len(x) // images)

    with observed(model, found.values(), pass_on), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(example)


def _example(model: nn.Module, input_size: Any) -> tuple[Any, int]:
    """An input, and how many images it holds: two, so that layers without running statistics have a batch."""
    if isinstance(input_size, int):
        raise TypeError(
            f"input_size={input_size} is an int; expected (C, H, W) or an input for the model"
        )
    if not (isinstance(input_size, (tuple, list)) and all(isinstance(n, int) for n in input_size)):
        return input_size, 1
    for n in input_size:
        checks.positive_int("input_size", n)
    tensor = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return torch.zeros(2, *input_size, device=tensor.device, dtype=tensor.dtype), 2


def _row(name: str, kind: Kind, shape: tuple[int, ...], N: int) -> Row:
    C, P = shape[0], math.prod(shape[1:])
    part = kind.partition(N, P)
    if part is None:  # PN: a statistic per position, over the channels
        G, S, instances, width = P, C, C, float(C)
    else:
        G = part.G
        S, instances, width = part.units // G * part.unit_size, part.smallest_count, C / G
    return Row(
        name,
        kind.name,
        shape,
        C * P,
        G,
        S,
        instances,
        width,
        _acts_as(kind, N, G, S, C),
        instances < FEW,
    )


def _acts_as(kind: Kind, N: int, G: int, S: int, C: int) -> str:
    if N % kind.batch_blocks:
        return f"error: {kind.batch_blocks} blocks of {N}"
    if kind.batch_wide:
        blocks = f" in {kind.batch_blocks} blocks" if kind.batch_blocks > 1 else ""
        return ("BN" if G == C else "BGN" if kind.name != "gbgn" or not blocks else "GBGN") + blocks
    if S == 1:
        return "bias alone"
    if kind.name == "pn":
        return "PN"
    return "LN" if G == 1 else "IN" if G == C else "GN"
