"""Pictures: images, their labels and answers, of one run or of several side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bgn_lab.data import npz
from bgn_lab.data.segmentation.pairs import SegmentationData
from bgn_lab.data.segmentation.windows import IGNORED
from bgn_lab.data.sources import Batch
from bgn_lab.experiments.segmentation.evaluate import log_probabilities
from bgn_lab.system import files

PICTURE, ANSWERS = "predictions.png", "predictions.npz"
SHOWN = 4  # images
VOID = (0.25, 0.25, 0.25)


@dataclass(frozen=True)
class Answers:
    """Some images with labels and answers, each a slice if they are volumes."""

    images: list[Tensor]  # (H, W, 3), bytes
    truth: list[Tensor]  # (H, W), bytes
    found: list[Tensor]  # (H, W), bytes
    classes: tuple[str, ...]


@torch.no_grad()
def answers(
    model: nn.Module,
    data: SegmentationData,
    prepare: Callable[[Batch], Batch],
    window: tuple[int, ...] | None = None,
) -> Answers:
    """Answers for test images that are spread evenly over all."""
    model.eval()
    M = len(data.test)
    some = torch.linspace(0, M - 1, min(SHOWN, M)).round().long()
    images, truth, found = [], [], []
    for x, y in data.test.part(some).evaluation(1):
        given = log_probabilities(model, prepare((x, y))[0], window).argmax(1)[0]
        image, labels, given = x[0], y[0], given.to(torch.uint8)
        if data.spatial == 3:
            depth = _fullest(labels)
            image, labels, given = image[:, depth], labels[depth], given[depth]
        shown = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
        images.append(shown.permute(1, 2, 0).contiguous())
        truth.append(labels)
        found.append(given)
    return Answers(images, truth, found, data.classes)


def _fullest(labels: Tensor) -> int:
    """The slice of a volume with the most classes, and of those the one with the most pixels that
    are not of the first class."""
    scores = [(len(own.unique()), int((own > 0).sum())) for own in labels]
    return max(range(len(scores)), key=lambda i: scores[i])


def store(shown: Answers, folder: Path) -> None:
    """Keep them, so that a report can show several runs side by side."""
    arrays: dict[str, Any] = {"classes": np.array(shown.classes)}
    for name in ("images", "truth", "found"):
        for i, tensor in enumerate(getattr(shown, name)):
            arrays[f"{name}_{i}"] = tensor.numpy()
    content = BytesIO()
    np.savez_compressed(content, **arrays)
    files.write(folder / ANSWERS, content.getvalue())


def stored(folder: Path) -> Answers | None:
    """The stored answers of a run; None if there are none, or none that can be read."""
    path = folder / ANSWERS
    if not path.is_file():
        return None
    try:
        names = npz.names(path)
        count = sum(name.startswith("images_") for name in names)
        wanted = [f"{part}_{i}" for part in ("images", "truth", "found") for i in range(count)]
        arrays = npz.read(path, [*wanted, "classes"])
        made = {
            part: [torch.from_numpy(arrays[f"{part}_{i}"]) for i in range(count)]
            for part in ("images", "truth", "found")
        }
        fits = all(
            x.dtype == y.dtype == z.dtype == torch.uint8
            and x.shape == (*y.shape, 3)
            and y.shape == z.shape
            for x, y, z in zip(*made.values(), strict=True)
        )
        return Answers(**made, classes=npz.strings(arrays["classes"])) if count and fits else None
    except (ValueError, OSError):
        return None


def colors(labels: Tensor, classes: int) -> Any:
    """(H, W, 3) of colors in [0, 1]."""
    table = np.array([*palette(classes), *[VOID] * (IGNORED + 1 - classes)])
    return table[labels.numpy()]


def palette(classes: int) -> list[tuple[float, float, float]]:
    """A color for each class; the first 20 are easy to tell apart."""
    import matplotlib as mpl

    twenty = [mpl.colormaps["tab20"](k)[:3] for k in (*range(0, 20, 2), *range(1, 20, 2))]
    more = [mpl.colormaps["gist_rainbow"](k / max(classes - 20, 1))[:3] for k in range(classes)]
    return [*twenty, *more][:classes]


def picture(shown: Answers, data: SegmentationData, label: str, folder: Path) -> None:
    """Image, truth and answer of one run."""
    what = "Made-up test images" if data.made_up else "Test images"
    figure = side_by_side({label: shown}, f"{what}, and what {label} takes them for")
    if figure is not None:
        files.write_figure(folder / PICTURE, figure)


def side_by_side(by_label: Mapping[str, Answers], title: str) -> Any:
    """A row for each image: the image, its labels, and the answers of each run.

    None where the runs did not answer the same images.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not by_label:
        return None
    first = next(iter(by_label.values()))
    if any(not _same(first, other) for other in by_label.values()):
        return None
    classes, rows = len(first.classes), len(first.images)
    columns = ["image", "truth", *by_label]
    H, W = first.truth[0].shape
    wide = 1.55 * len(columns)
    high = rows * 1.55 * H / W + 0.75 + 0.2 * -(-classes // 6)
    figure = Figure(figsize=(max(wide, 6.0), high), layout="constrained")
    panels = figure.subplots(
        rows, len(columns), squeeze=False, gridspec_kw={"wspace": 0.03, "hspace": 0.03}
    )
    for i in range(rows):
        maps: Sequence[Any] = [
            first.images[i].numpy(),
            colors(first.truth[i], classes),
            *(colors(own.found[i], classes) for own in by_label.values()),
        ]
        for axes, content, name in zip(panels[i], maps, columns, strict=True):
            axes.imshow(content, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            if i == 0:
                axes.set_title(_broken(name), fontsize=8, parse_math=False)
    patches = [
        Patch(color=color, label=name)
        for color, name in zip(palette(classes), first.classes, strict=True)
    ]
    if any(bool((own >= classes).any()) for own in first.truth):
        patches.append(Patch(color=VOID, label="no class"))
    figure.legend(handles=patches, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10, parse_math=False)
    return figure


def _same(one: Answers, other: Answers) -> bool:
    return (
        one.classes == other.classes
        and len(one.truth) == len(other.truth)
        and all(torch.equal(a, b) for a, b in zip(one.truth, other.truth, strict=True))
    )


def _broken(name: str) -> str:
    """A label on two lines, which fits above a narrow panel."""
    return name.replace(", ", ",\n", 1)
