"""What each normalizer of a model does at a given input and batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from torch import nn

from bgn.groups import ENOUGH, auto_groups
from bgn.partition import block_sizes
from bgn.surgery.kinds import Kind, identify, is_undecided, normalizers, own_groups
from bgn.surgery.sample import visit
from bgn.surgery.standardize import followed
from bgn.surgery.standardized import Standardized

FEW = ENOUGH  # instances per statistic
WS = "standardized"


@dataclass(frozen=True)
class Row:
    """One call of a normalizer.

    ``instances`` is N*S, the elements per statistic. ``acts_as`` names the normalizer that this one
    amounts to at its shape and number of groups. ``few`` says that ``instances`` is below 16,
    ``partners`` has "standardized" where the layer follows a convolution of standardized weight,
    "renorm" and "centered".
    """

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
    partners: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """Rows, one per call of a normalizer; prints as a table."""

    rows: tuple[Row, ...]
    batch_size: int

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        head = ["layer", "kind", "C x H x W", "D", "G", "S", "N*S", "channels/group", "acts as", ""]
        marked = any(row.partners for row in self.rows)
        lines = [[*head[:-1], *(["with"] if marked else []), ""]]
        for row in self.rows:
            layer, kind, shape, D, G, S, instances, width, acts_as, few, own = astuple(row)
            size = " x ".join(map(str, shape))
            numbers = (*map(str, (D, G, S, instances)), f"{width:.3g}")
            mark = [", ".join(own)] if marked else []
            lines.append([layer, kind, size, *numbers, acts_as, *mark, "few" if few else ""])
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        left = (0, 1, 2, 8, 9, 10)
        text = [
            "  ".join(
                cell.ljust(w) if i in left else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        text.insert(1, "  ".join("-" * w for w in widths))
        few = sum(row.few for row in self.rows)
        summary = f"{len(self.rows)} normalizers at batch size {self.batch_size}"
        text.append(
            summary + (f"; {few} with fewer than {FEW} instances per statistic" if few else "")
        )
        return "\n".join(line.rstrip() for line in text)

    __repr__ = __str__


def describe(model: nn.Module, input_size: Any, batch_size: int) -> Description:
    """A table of the model's normalizers at a batch size.

    For each call of a normalizer: its shape, D, G, S, N*S and channels per group.

    Args:
        model: run once, in eval mode and without gradients; its mode is restored.
        input_size: (C, H, W) of one image, without the batch dimension; or (C, L), or
            (C, D, H, W). Or a batch for the model: a tensor (N, C, H, W), a tuple of arguments, a
            dict, or a list of images. A dict whose keys are names of arguments of the model's
            ``forward`` is passed as keyword arguments, any other dict as one argument.
        batch_size: the images that one process normalizes together. It need not be the size of the
            batch that is passed: what reaches a layer is scaled.

    >>> import bgn
    >>> norms = bgn.BatchGroupNorm2d(8, 2), nn.BatchNorm2d(8)
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), norms[0], nn.AdaptiveAvgPool2d(1), norms[1])
    >>> describe(model, (3, 10, 10), batch_size=2)
    layer  kind  C x H x W    D  G    S  N*S  channels/group  acts as
    -----  ----  ---------  ---  -  ---  ---  --------------  -------  ---
    1      bgn   8 x 8 x 8  512  2  256  512               4  BGN
    3      bn    8 x 1 x 1    8  8    1    2               1  BN       few
    2 normalizers at batch size 2; 1 with fewer than 16 instances per statistic
    """
    names = {layer: name for name, layer in normalizers(model).items()}
    standardized = _behind_standardized(model)
    rows: list[Row] = []

    def see(layer: nn.Module, shape: tuple[int, ...], N: int) -> None:
        kind = identify(layer)
        assert kind is not None
        if is_undecided(layer):  # what it will be after such a batch
            n = block_sizes(N, kind.batch_blocks)[0]
            kind = replace(kind, num_groups=auto_groups(shape[0], n, math.prod(shape[1:])))
        else:
            kind = replace(kind, num_groups=own_groups(layer, kind))
        row = _row(names[layer], kind, shape, N)
        own: Any = layer
        has = {
            WS: layer in standardized,
            "renorm": getattr(own, "renorm", None) is not None,
            "centered": kind.channel_means,
        }
        rows.append(replace(row, partners=tuple(word for word in has if has[word])))

    visit(model, input_size, batch_size, see, argument="input_size")
    return Description(tuple(rows), int(batch_size))


def _behind_standardized(model: nn.Module) -> set[nn.Module]:
    """The normalizers that follow a convolution of standardized weight."""
    if not any(isinstance(module, Standardized) for module in model.modules()):
        return set()
    return {
        norm
        for norm, layers in followed(model)[1].items()
        if any(isinstance(layer, Standardized) for layer in layers)
    }


def _row(name: str, kind: Kind, shape: tuple[int, ...], N: int) -> Row:
    C, P = shape[0], math.prod(shape[1:])
    blocks = block_sizes(N, kind.batch_blocks)
    part = replace(kind, batch_blocks=1).partition(blocks[-1], P)  # of the smallest block
    if part is None:  # PN: a statistic per position, over the channels
        G, S, instances, width = P, C, C, float(C)
    else:
        G = part.G
        S, instances, width = part.units // G * part.unit_size, part.smallest_count, C / G
    acts_as = _acts_as(kind, len(blocks), G, S, C)
    return Row(name, kind.name, shape, C * P, G, S, instances, width, acts_as, instances < FEW)


def _acts_as(kind: Kind, B: int, G: int, S: int, C: int) -> str:
    if kind.batch_wide:
        blocks = f" in {B} blocks" if B > 1 else ""
        return ("BN" if G == C else "BGN" if kind.name != "gbgn" or not blocks else "GBGN") + blocks
    if S == 1:
        return "bias alone"
    if kind.name == "pn":
        return "PN"
    return "LN" if G == 1 else "IN" if G == C else "GN"
