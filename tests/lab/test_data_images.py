"""Single images: known formats only, damaged ones by name, no more than memory can hold."""

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from PIL import EpsImagePlugin, Image

from bgn_lab.data import domains, few_shot, images, load
from bgn_lab.data.folders.scan import scan
from bgn_lab.data.sources import Data
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from tests.lab.test_data_domains import archive as archive  # fixtures
from tests.lab.test_data_domains import folder as folder
from tests.lab.test_data_folder import fill, noise

Damaged = Literal["refuse", "skip"]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"


def bomb() -> bytes:
    """A PNG of a few bytes that declares 400 million pixels."""
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")):
        content += struct.pack(">I", len(body)) + kind + body
        content += struct.pack(">I", zlib.crc32(kind + body))
    return content


def check(data: Data) -> None:
    """Read all images."""
    for part in (data.train, data.validation, data.test):
        part.check()


def encoded(kind: str) -> bytes:
    file = BytesIO()
    noise(0, (32, 32)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", images.FORMATS)
def test_known_formats_under_any_name(tmp_path: Path, kind: str) -> None:
    if kind not in Image.registered_extensions().values():
        pytest.skip(f"this Pillow has no {kind}")
    (tmp_path / "a.jpg").write_bytes(encoded(kind))
    with images.open_image(tmp_path / "a.jpg") as image:
        assert images.rgb(image).size == (32, 32)


@pytest.mark.parametrize("decoders", [0, 1])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_no_other_program_is_started(
    tmp_path: Path, decoders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started.txt"

    def ghostscript(*_: object, **__: object) -> object:
        started.touch()
        return noise(0, (4, 4)).im

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    fill(tmp_path, 2)
    (tmp_path / "bee" / "eps.jpg").write_bytes(EPS)
    data = load(
        Recipe(data=str(tmp_path), image_size=8, decoders=decoders, validation=0, augment=False)
    )
    with pytest.raises(ValueError, match="eps.jpg cannot be read as an image .cannot identify"):
        check(data)
    assert not started.exists()
    with Image.open(tmp_path / "bee" / "eps.jpg") as image:
        image.load()
    assert started.exists(), "the trap works"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM", "TIFF"])
@pytest.mark.parametrize("damaged", ["refuse", "skip"])
@pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL")
def test_damaged_files_of_every_format(tmp_path: Path, kind: str, damaged: Damaged) -> None:
    fill(tmp_path, 2)
    raw = encoded(kind)
    for share in (0.1, 0.4, 0.6):
        (tmp_path / "cow" / f"cut{share}.png").write_bytes(raw[: int(share * len(raw))])
    recipe = Recipe(data="folder", root=tmp_path, image_size=8, decoders=0, damaged=damaged)
    data = load(recipe)
    parts = (data.train, data.validation, data.test)
    if damaged == "refuse":
        with pytest.raises(ValueError, match=r"cut0.\d.png cannot be read as an image"):
            check(data)
    else:
        with pytest.warns(UserWarning, match=r"cut0.\d.png cannot be read as an image .*: skipped"):
            found = sum(len(y) for part in parts for _, y in part.evaluation(4))
        assert found == 6


def test_whatever_a_decoder_raises_is_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1)
    data = load(Recipe(data=str(tmp_path), image_size=8, decoders=0, validation=0))

    def fail(error: Exception) -> Callable[..., Any]:
        def raising(*_: object) -> None:
            raise error

        return raising

    monkeypatch.setattr(images, "rgb", fail(struct.error("unpack requires 4 bytes")))
    with pytest.raises(ValueError, match="cannot be read as an image .unpack requires"):
        list(data.train.evaluation(1))
    monkeypatch.setattr(images, "rgb", fail(MemoryError()))
    with pytest.raises(MemoryError):
        list(data.train.evaluation(1))


@pytest.mark.parametrize("damaged", ["refuse", "skip"])
def test_a_decompression_bomb_is_a_damaged_file(tmp_path: Path, damaged: Damaged) -> None:
    fill(tmp_path, 2)
    (tmp_path / "bee" / "bomb.png").write_bytes(bomb())
    recipe = Recipe(data=str(tmp_path), image_size=8, decoders=0, damaged=damaged)
    data = load(recipe)
    parts = (data.train, data.validation, data.test)
    if damaged == "refuse":
        with pytest.raises(ValueError, match=r"bomb.png cannot be read as an image .*400000000"):
            check(data)
    else:
        with pytest.warns(UserWarning, match="bomb.png cannot be read .*: skipped"):
            assert sum(len(y) for part in parts for _, y in part.evaluation(4)) == 6


@pytest.mark.parametrize("ending", ["", "/train"])
def test_a_class_of_damaged_images_is_refused(tmp_path: Path, ending: str) -> None:
    for part in ("train", "test") if ending else ("",):
        fill(tmp_path / part, 2)
    for path in Path(f"{tmp_path}{ending}", "bee").iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match="none of the 2 images in .*bee can be read.*class 'bee'"):
        load(Recipe(data=str(tmp_path), image_size=8, damaged="skip"))


def test_one_image_of_a_class_is_enough(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    for path in sorted((tmp_path / "bee").iterdir())[:2]:
        path.write_bytes(b"no image")
    assert len(scan(tmp_path, damaged="skip")[1]) == 9


def spoil(file: Path, places: list[int]) -> None:
    """Make JPEGs of an archive unreadable, but JPEGs by their first bytes."""
    import numpy as np

    arrays = dict(np.load(file))
    for i in places:
        arrays["jpeg"][arrays["offsets"][i] + 2 : arrays["offsets"][i + 1]] = 0
    np.savez(file, **arrays)


class TestDomains:
    """amazon has 4 images of each class, dslr 5, webcam 6."""

    def load(self, path: Path, damaged: Damaged) -> domains.DomainData:
        return domains.load(Recipe(data=str(path), image_size=14, damaged=damaged), "ad")

    def test_a_folder(self, folder: Path) -> None:
        (folder / "amazon" / "mug" / "1.jpg").write_bytes(b"no image")
        with pytest.raises(ValueError, match=r"mug/1.jpg cannot be read .*--damaged skip"):
            self.load(folder, "refuse")
        with pytest.warns(UserWarning, match=r"mug/1.jpg cannot be read .*: skipped"):
            data = self.load(folder, "skip")
        assert data.train.y.tolist() == [0] * 4 + [1] * 3
        assert data.train.x.shape == (7, 3, 16, 16)
        assert bool((data.train.x[4:, 1].float().mean((1, 2)) > 60).all()), "labels fit"

    def test_a_class_without_images_of_a_folder(self, folder: Path) -> None:
        for path in (folder / "dslr" / "images" / "mug").iterdir():
            path.write_bytes(b"no image")
        with pytest.raises(ValueError, match="none of the 5 images in .*class 'mug'"):
            self.load(folder, "skip")

    def test_an_archive(self, archive: Path) -> None:
        spoil(archive, [1])
        with pytest.raises(ValueError, match="image 1 of .*office.npz cannot be read as an image"):
            self.load(archive, "refuse")
        with pytest.warns(UserWarning, match=r"image 1 of .*office.npz cannot be read .*: skipped"):
            data = self.load(archive, "skip")
        assert data.train.y.tolist() == [0] * 3 + [1] * 4

    @pytest.mark.filterwarnings("ignore:.*skipped:UserWarning")
    def test_a_class_without_images_of_an_archive(self, archive: Path) -> None:
        spoil(archive, [4, 5, 6, 7])
        with pytest.raises(ValueError, match="none of the 4 images of the class 'mug' in .*office"):
            self.load(archive, "skip")


class TestFewShot:
    def load(self, path: Path, damaged: Damaged) -> few_shot.FewShotData:
        recipe = Recipe(data=str(path), image_size=8, damaged=damaged, validation=0)
        return few_shot.load(recipe, 2)

    def test_folders(self, tmp_path: Path) -> None:
        for part in few_shot.PARTS:
            fill(tmp_path / part, 3)
        (tmp_path / "test" / "ant" / "000.png").write_bytes(b"no image")
        with pytest.raises(ValueError, match=r"ant/000.png cannot be read .*--damaged skip"):
            self.load(tmp_path, "refuse")
        with pytest.warns(UserWarning, match=r"ant/000.png cannot be read .*: skipped"):
            data = self.load(tmp_path, "skip")
        assert data.test.y.tolist() == [0] * 2 + [1] * 3 + [2] * 3


@pytest.mark.parametrize("decoders", [0, 2])
def test_an_image_size_that_memory_cannot_hold(
    tmp_path: Path, decoders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1)
    monkeypatch.setattr(images, "available_memory", lambda: 10**10)
    recipe = Recipe(data=str(tmp_path), image_size=5000, decoders=decoders)
    with pytest.raises(
        ValueError,
        match=r"image_size=5000 needs about 1\d\d GB .*10.0 GB are available: --image-size",
    ) as error:
        load(recipe)
    fits = int(str(error.value).split("--image-size ")[1].split()[0])
    assert 500 < fits < 3000
    load(Recipe(data=str(tmp_path), image_size=fits, decoders=decoders))
    with pytest.raises(ValueError, match="needs about"):
        load(Recipe(data=str(tmp_path), image_size=fits + 16, decoders=decoders))


def test_images_that_memory_cannot_hold(
    folder: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "available_memory", lambda: 10**8)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("allocated"))
    for path in (folder, archive):
        with pytest.raises(ValueError, match="image_size=5000 needs .*all 18 images.*would fit"):
            domains.load(Recipe(data=str(path), image_size=5000), "ad")
    for part in few_shot.PARTS:
        fill(tmp_path / "few" / part, 2)
    with pytest.raises(ValueError, match="image_size=3000 needs .*all 18 images.*would fit"):
        few_shot.load(Recipe(data=str(tmp_path / "few"), image_size=3000), 2)
