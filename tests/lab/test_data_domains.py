"""Two domains from whatever there is, and class-aware batches of them."""

import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bgn_lab.data import aware, domains
from bgn_lab.data.domains import Larger, pair
from bgn_lab.data.sources import generator
from bgn_lab.experiments.adaptation.recipe import AdaptationRecipe

OFFICE = ("amazon", "dslr", "webcam")


def load(data: Any, task: str | None = None, **changes: Any) -> domains.DomainData:
    return domains.load(AdaptationRecipe(data=str(data), **changes), task)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three domains of two classes; colors tell which is which; images are no squares."""
    draws = np.random.default_rng(0)
    for d, name in enumerate(OFFICE):
        for c, kind in enumerate(("bike", "mug")):
            where = tmp_path / "office" / name / ("images" if name == "dslr" else "") / kind
            where.mkdir(parents=True)
            for i in range(4 + d):
                pixels = np.full((40, 48, 3), (80 * d, 120 * c, 0)) + draws.integers(
                    0, 20, (40, 48, 3)
                )
                Image.fromarray(pixels.astype(np.uint8)).save(where / f"{i}.jpg", quality=95)
    return tmp_path / "office"


@pytest.fixture
def archive(folder: Path) -> Path:
    found = [
        (d, c, path.read_bytes())
        for d, name in enumerate(OFFICE)
        for c, kind in enumerate(("bike", "mug"))
        for path in sorted((folder / name).rglob(f"{kind}/*.jpg"))
    ]
    file = folder.parent / "office.npz"
    np.savez(
        file,
        jpeg=np.frombuffer(b"".join(raw for *_, raw in found), np.uint8),
        offsets=np.cumsum([0, *(len(raw) for *_, raw in found)]),
        labels=np.array([c for _, c, _ in found], np.uint8),
        domain=np.array([d for d, *_ in found], np.uint8),
        domain_names=np.array(OFFICE),
        class_names=np.array(["bike", "mug"]),
    )
    return file


def test_a_folder_and_an_archive_of_it_are_the_same(folder: Path, archive: Path) -> None:
    one, other = load(folder, "wd", image_size=28), load(archive, "webcam-dslr", image_size=28)
    for data in (one, other):
        assert (data.source, data.target, data.classes) == ("webcam", "dslr", ("bike", "mug"))
        assert (data.shape, len(data.train), len(data.test), len(data.validation)) == (
            (3, 28, 28),
            12,
            10,
            0,
        )
        assert data.train.x.shape == (12, 3, 32, 32)
        assert data.chance == 0.5
    assert torch.equal(one.train.x, other.train.x)
    assert torch.equal(one.test.y, other.test.y)
    red, green, _ = one.train.x.float().mean((2, 3)).T
    assert bool((red > 150).all()), "of webcam"
    assert torch.equal(green > 60, one.train.y == 1)


def test_larger_images_are_cut_at_random_or_in_the_middle() -> None:
    x = torch.arange(10 * 10, dtype=torch.uint8).view(1, 1, 10, 10).expand(64, 1, 10, 10)
    source = Larger(x, torch.arange(64), flip=True, less=4)
    cut, y = source.augmented(torch.arange(32), generator(0))
    assert cut.shape == (32, 1, 6, 6)
    assert y.tolist() == list(range(32))
    corners = {
        (int(min(own[0], own[-1])) // 10, int(min(own[0], own[-1])) % 10) for own in cut[:, 0, 0]
    }
    assert len(corners) > 10, "places differ"
    assert all(top <= 4 and left <= 4 for top, left in corners)
    assert any(own[0, 0, 0] > own[0, 0, -1] for own in cut), "some are mirrored"
    tested = list(source.evaluation(40))
    assert [len(own) for own, _ in tested] == [40, 24]
    assert all(torch.equal(own[0, 0], x[0, 0, 2:8, 2:8]) for own, _ in tested)
    plain = Larger(x, torch.arange(64), flip=False, less=4)
    assert torch.equal(plain.augmented(torch.arange(3), generator(0))[0][0, 0], x[0, 0, 2:8, 2:8])


def test_the_domains_that_ship() -> None:
    data = load("fashion-mnist")
    assert (data.source, data.target, data.shape) == ("plain", "textured", (1, 28, 28))
    dark = [float((part.x == 0).float().mean()) for part in (data.train, data.test)]
    assert dark[0] > 0.4 > 0.1 > dark[1], "black behind the clothes is only in one"
    other = load("fashion-mnist", "tp")
    assert torch.equal(other.train.x, data.test.x)
    assert len(load("fashion-mnist", limit=50).train) == 50


@pytest.mark.parametrize("task", ["d", "dx", "dd", "dslr-dslr", "dslr", "adw", "a-b", ""])
def test_tasks_that_do_not_exist(task: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"task='{task}' does not name two of the domains amazon, dslr, webcam; "
        "expected such as",
    ):
        pair(task, OFFICE)


def test_initials_must_be_clear() -> None:
    assert pair("art-a", ("a", "art")) == ("art", "a")
    with pytest.raises(ValueError, match="task='ab'"):
        pair("ab", ("art", "amazon", "books"))
    with pytest.raises(ValueError, match="there is only the domain amazon; expected two or more"):
        pair(None, ("amazon",))


def test_what_has_no_domains_is_refused(folder: Path, archive: Path) -> None:
    with pytest.raises(ValueError, match="data='cifar10' has no domains"):
        load("cifar10")
    with pytest.raises(ValueError, match="has 0 folders; expected one for each domain"):
        load(folder / "amazon" / "bike")
    (folder / "dslr" / "images" / "mug").rename(folder / "dslr" / "images" / "cup")
    with pytest.raises(ValueError, match="other classes than the training images"):
        load(folder, "ad", image_size=28)
    arrays = dict(np.load(archive))
    np.savez(archive, **{name: value for name, value in arrays.items() if name != "domain"})
    with pytest.raises(
        ValueError,
        match="has no domain; expected jpeg, offsets, labels, domain, domain_names, class_names",
    ):
        load(archive, "ad")


class TestAware:
    ours = torch.arange(4).repeat_interleave(torch.tensor([6, 9, 3, 5]))
    theirs = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3])

    def kept(self) -> torch.Tensor:
        return self.theirs != 3

    def test_classes_are_the_same_in_both(self) -> None:
        for own, other in islice(
            aware.pairs(self.ours, self.theirs, self.kept(), 2, generator(0)), 20
        ):
            a, b = self.ours[own].view(2, 3), self.theirs[other].view(2, 3)
            assert torch.equal(a, b)
            assert torch.equal(a[:, :1].expand(-1, 3), a)
            assert int(a[0, 0]) != int(a[1, 0])
            assert 3 not in a, "no image of it is trusted"
            assert len(own.unique()) == len(other.unique()) == 6, "none twice in a batch"

    def test_every_image_before_one_comes_twice(self) -> None:
        shown = torch.cat(
            [
                own
                for own, _ in islice(
                    aware.pairs(self.ours, self.theirs, self.kept(), 3, generator(0)), 3
                )
            ]
        )
        assert sorted(shown[self.ours[shown] == 1].tolist()) == list(range(6, 15))

    def test_steps(self) -> None:
        """max(6, 4) // 3 + max(9, 3) // 3 + max(3, 12) // 3 images, for each shared class."""
        assert aware.steps(self.ours, self.theirs, self.kept(), 2) == math.ceil((2 + 3 + 4) / 2)
        assert aware.steps(self.ours, self.theirs, torch.zeros(20, dtype=torch.bool), 2) == 0

    def test_fewer_classes_than_wanted_fewer_images_than_three_or_none(self) -> None:
        only = self.theirs == 3
        own, other = next(aware.pairs(self.ours, self.theirs, only, 10, generator(0)))
        assert self.ours[own].tolist() == [3, 3, 3]
        assert other.tolist() == [19, 19, 19]
        own, other = next(
            aware.pairs(self.ours, self.theirs, torch.zeros(20, dtype=torch.bool), 10, generator(0))
        )
        assert len(own) == len(other) == 0

    def test_a_class_of_the_target_alone(self) -> None:
        own, _ = next(
            aware.pairs(
                torch.zeros(3, dtype=torch.long), self.theirs, self.kept(), 10, generator(0)
            )
        )
        assert len(own) == 3
