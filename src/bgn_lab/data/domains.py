"""Images of the same classes in several domains: a labeled source and an unlabeled target.

The target's images are both adapted to and tested on, as is usual with Office-31. A form of data
set is a function and a line in ``FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bgn_lab.data import augment, fashion_mnist, images, jpegs
from bgn_lab.data.folders.listing import few, look
from bgn_lab.data.folders.scan import scan
from bgn_lab.data.names import class_names, printable
from bgn_lab.data.sources import (
    Batch,
    Data,
    InMemory,
    chance,
    generator,
    hold_out,
    needed_root,
    rebatch,
)

if TYPE_CHECKING:
    from bgn_lab.recipe import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
SIZE = 224
PLAIN, TEXTURED = "plain", "textured"
DEPTH = 0.3  # of the brightest texture, where white is 1
Domain = tuple[Tensor, Tensor]  # images, labels


class Pair(NamedTuple):
    """A source and a target domain."""

    names: tuple[str, str]
    source: Domain
    target: Domain
    classes: tuple[str, ...]
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    pad: int = 0  # pixels by which training crops move
    less: int = 0  # pixels of height and width that are cut off, at random in training


@dataclass(frozen=True)
class Larger(InMemory):
    """Images with a margin: training cuts it off at random, testing keeps the middle."""

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
    """The source in ``train``, the target in ``test``, whose labels are for testing only.

    There are no validation images.
    """

    train: InMemory
    test: InMemory
    source: str = ""
    target: str = ""

    def contents(self) -> tuple[object, ...]:
        """See :class:`Data`."""
        return *super().contents(), self.source, self.target


def load(recipe: Recipe, task: str | None) -> DomainData:
    """Two domains of the recipe's data, named by the task."""
    if recipe.data not in FORMS:
        raise ValueError(
            f"data={recipe.data!r} has no domains; expected fashion-mnist, a folder of domains "
            "with class folders, or an .npz of JPEGs with domains"
        )
    found = FORMS[recipe.data](recipe, task)
    x, y = found.source
    kept, _ = hold_out(len(x), 0, recipe.limit)
    _, C, H, W = x.shape
    source = (
        Larger(x[kept], y[kept], found.pad, recipe.augment, less=found.less)
        if found.less
        else InMemory(x[kept], y[kept], found.pad, recipe.augment)
    )
    new_x, new_y = found.target
    return DomainData(
        recipe.data,
        found.classes,
        (C, H - found.less, W - found.less),
        found.mean,
        found.std,
        source,
        InMemory(x[:0], y[:0]),
        replace(source, x=new_x, y=new_y),
        chance(new_y),
        *found.names,
    )


def pair(task: str | None, names: Sequence[str]) -> tuple[str, str]:
    """Source and target, by their names or initials.

    >>> pair("da", ("amazon", "dslr", "webcam")), pair("dslr-webcam", ("amazon", "dslr", "webcam"))
    (('dslr', 'amazon'), ('dslr', 'webcam'))
    >>> pair(None, ("amazon", "dslr", "webcam"))
    ('amazon', 'dslr')
    """
    if len(names) < 2:
        raise ValueError(f"there is only the domain {few(names)}; expected two or more")
    if task is None:
        return names[0], names[1]
    words = task.split("-") if "-" in task else list(task)
    found = [
        [name for name in names if name == word]
        or [name for name in names if name.startswith(word)]
        for word in words
    ]
    if len(found) != 2 or any(len(some) != 1 for some in found) or found[0] == found[1]:
        raise ValueError(
            f"task={task!r} does not name two of the domains {printable(', '.join(names))}; "
            f"expected such as {printable(f'{names[0]}-{names[1]}')}"
        )
    return found[0][0], found[1][0]


def _fashion_mnist(recipe: Recipe, task: str | None) -> Pair:
    names = pair(task, (PLAIN, TEXTURED))
    return Pair(
        names,
        _fashion(recipe.root, names[0]),
        _fashion(recipe.root, names[1]),
        fashion_mnist.CLASSES,
        fashion_mnist.MEAN,
        fashion_mnist.STD,
        fashion_mnist.PAD,
    )


@lru_cache(maxsize=2)
def _fashion(root: Path | None, name: str) -> Domain:
    """The training images as they are, or the test images (none is in both) before textures."""
    parts = fashion_mnist.load(root)
    if name == PLAIN:
        return parts["train"]
    x, y = parts["test"]
    coarse = torch.rand(len(x), 1, 7, 7, generator=generator(31))
    texture = DEPTH * F.interpolate(coarse, size=x.shape[-2:], mode="bicubic").clamp(0, 1)
    return (x + (255 - x.float()) * texture).round().to(torch.uint8), y


def _folder(recipe: Recipe, task: str | None) -> Pair:
    root, size = needed_root(recipe, "a folder"), recipe.image_size or SIZE
    return _folders(root, task, size, recipe.damaged)


@lru_cache(maxsize=2)
def _folders(root: Path, task: str | None, size: int, damaged: str) -> Pair:
    found = look(root).folders
    if len(found) < 2:
        raise ValueError(
            f"{printable(root)} has {len(found)} folders; expected one for each domain, "
            "with class folders in it"
        )
    names, less = pair(task, found), _margin(size)
    classes, source = scan(_classes(root / names[0]), damaged=damaged)
    _, target = scan(_classes(root / names[1]), classes, damaged)
    images.refuse_total(size + less, len(source) + len(target), size)
    one, other = (
        images.stack_files(files.paths, files.y, images.whole, size + less, damaged)
        for files in (source, target)
    )
    source_name, target_name = class_names(names)
    return Pair((source_name, target_name), one, other, class_names(classes), less=less)


def _archive(recipe: Recipe, task: str | None) -> Pair:
    root, size = needed_root(recipe, "an .npz of JPEGs"), recipe.image_size or SIZE
    return _archived(root, images.stamp(root), task, size, recipe.damaged)


@lru_cache(maxsize=2)
def _archived(root: Path, _: object, task: str | None, size: int, damaged: str) -> Pair:
    arrays = jpegs.read(root, "domain")
    names, less = pair(task, arrays["domain_names"].tolist()), _margin(size)
    inside = [jpegs.places(arrays, "domain", name) for name in names]
    if empty := [name for name, own in zip(names, inside, strict=True) if not len(own)]:
        raise ValueError(f"{printable(root)} has no images of the domain {empty[0]!r}")
    images.refuse_total(size + less, sum(map(len, inside)), size)
    one, other = (jpegs.decode(arrays, own, images.whole, size + less, damaged) for own in inside)
    return Pair(names, one, other, tuple(arrays[jpegs.NAMES].tolist()), less=less)


def _margin(size: int) -> int:
    return size // 7  # 256 to 224


def _classes(folder: Path) -> Path:
    """Office-31 comes with a folder ``images`` between a domain and its classes."""
    return folder / "images" if (folder / "images").is_dir() else folder


FORMS: dict[str, Callable[[Recipe, str | None], Pair]] = {
    "fashion-mnist": _fashion_mnist,
    "folder": _folder,
    "arrays": _archive,
}
