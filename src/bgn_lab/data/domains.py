"""Images of the same classes in several domains: labelled ones in a source, ones without labels in a target.

Whole domains serve: the target's images are those that are adapted to and those that are tested on, as is usual with Office-31.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bgn_lab.data import augment, fashion_mnist, jpegs, scan
from bgn_lab.data.listing import few
from bgn_lab.data.sources import Batch, Data, InMemory, chance, generator, hold_out, rebatch
from bgn_lab.recipe import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
SIZE = 224
PLAIN, TEXTURED = "plain", "textured"
DEPTH = 0.3  # of the brightest texture, where white is 1
Domain = tuple[Tensor, Tensor]  # images, labels


@dataclass(frozen=True)
class Larger(InMemory):
    """Images with a margin: training sees any part of them without it, testing the middle."""

    less: int = 0  # pixels of height and width that are cut off

    def augmented(self, index: Tensor, draws: Generator) -> Batch:
        """See :class:`InMemory`."""
        x, y = self.x[index], self.y[index]
        if not self.flip:  # nothing is at random then
            return self._middle(x), y
        return augment.flip(augment.cut(x, self.less, draws), draws), y

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`."""
        return rebatch(
            ((self._middle(x), y) for x, y in super().evaluation(batch_size)), batch_size, rest=True
        )

    def _middle(self, x: Tensor) -> Tensor:
        first, (H, W) = self.less // 2, x.shape[-2:]
        return x[..., first : first + H - self.less, first : first + W - self.less]


@dataclass(frozen=True)
class DomainData(Data):
    """``train`` is the source, ``test`` the target, whose labels only testing may look at; there are no validation images."""

    train: InMemory
    test: InMemory
    source: str = ""
    target: str = ""


def load(recipe: Recipe, task: str | None) -> DomainData:
    """Two domains of Fashion-MNIST, of a folder of domains with class folders each, or of an .npz of JPEGs."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    less, pad = 0, 0
    if recipe.data == "fashion-mnist":
        source, target = pair(task, (PLAIN, TEXTURED))
        (x, y), (new_x, new_y) = _fashion(recipe.root, source), _fashion(recipe.root, target)
        classes, mean, std, pad = fashion_mnist.CLASSES, fashion_mnist.MEAN, fashion_mnist.STD, 2
    elif recipe.data in ("folder", "arrays") and recipe.root is not None:
        size = recipe.image_size or SIZE
        less, mean, std = size // 7, MEAN, STD  # 256 to 224
        classes, source, target, (x, y), (new_x, new_y) = _office(recipe.root, task, size + less)
    else:
        raise ValueError(
            f"data={recipe.data!r} has no domains; expected fashion-mnist, or a folder or an .npz of JPEGs with such"
        )
    kept, _ = hold_out(len(x), 0, recipe.limit)
    _, C, H, W = x.shape
    images = (
        Larger(x[kept], y[kept], pad, recipe.augment, less=less)
        if less
        else InMemory(x[kept], y[kept], pad, recipe.augment)
    )
    unlabelled = replace(images, x=new_x, y=new_y)
    return DomainData(
        recipe.data, classes, (C, H - less, W - less), mean, std, images, InMemory(x[:0], y[:0]), unlabelled, chance(new_y),
        source, target,
    )  # fmt: skip


def pair(task: str | None, names: Sequence[str]) -> tuple[str, str]:
    """Source and target, by their names or initials.

    >>> pair("da", ("amazon", "dslr", "webcam")), pair("dslr-webcam", ("amazon", "dslr", "webcam"))
    (('dslr', 'amazon'), ('dslr', 'webcam'))
    >>> pair(None, ("amazon", "dslr", "webcam"))
    ('amazon', 'dslr')
    """
    if len(names) < 2:
        raise ValueError(f"there is only the domain {few(list(names))}; expected two or more")
    if task is None:
        return names[0], names[1]
    asked = task.split("-") if "-" in task else list(task)
    found = [
        [name for name in names if name == word]
        or [name for name in names if name.startswith(word)]
        for word in asked
    ]
    if len(found) != 2 or any(len(own) != 1 for own in found) or found[0] == found[1]:
        known = ", ".join(names)
        raise ValueError(
            f"task={task!r} does not name two of the domains {known}; expected such as {names[0]}-{names[1]}"
        )
    return found[0][0], found[1][0]


@lru_cache(maxsize=2)
def _fashion(root: Path | None, name: str) -> Domain:
    """The training images as they are, before black; or the test images, so that none is in both, before textures."""
    parts = fashion_mnist.load(root)
    if name == PLAIN:
        return parts["train"]
    x, y = parts["test"]
    coarse = torch.rand(len(x), 1, 7, 7, generator=generator(31))
    texture = DEPTH * F.interpolate(coarse, size=x.shape[-2:], mode="bicubic").clamp(0, 1)
    return (x + (255 - x.float()) * texture).round().to(torch.uint8), y


@lru_cache(maxsize=2)
def _office(
    root: Path, task: str | None, size: int
) -> tuple[tuple[str, ...], str, str, Domain, Domain]:
    if root.is_file():
        arrays = jpegs.read(root, "domain")
        source, target = pair(task, arrays["domain_names"].tolist())
        classes = tuple(arrays[jpegs.NAMES].tolist())
        return (
            classes,
            source,
            target,
            jpegs.domain(arrays, source, size),
            jpegs.domain(arrays, target, size),
        )
    names = sorted(
        path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if len(names) < 2:
        raise ValueError(
            f"{root} has {len(names)} folders; expected one for each domain, with class folders in it"
        )
    source, target = pair(task, names)
    classes, labelled = scan.scan(_classes(root / source))
    _, others = scan.scan(_classes(root / target), classes)
    one, other = (
        (torch.stack([jpegs.whole(path, size) for path in files.paths]), files.y)
        for files in (labelled, others)
    )
    return classes, source, target, one, other


def _classes(folder: Path) -> Path:
    """Office-31 comes with a folder ``images`` between a domain and its classes."""
    return folder / "images" if (folder / "images").is_dir() else folder
