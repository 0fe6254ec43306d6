"""Class folders: what is read from them, in which order, and what becomes of damaged files."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from bgn_lab.data.folders import decode
from bgn_lab.data.folders.decode import Files, _center, _random_part
from bgn_lab.data.folders.scan import scan
from bgn_lab.data.images import rgb
from bgn_lab.data.sources import Batch

CLASSES = ("ant", "bee", "cow")
processes = pytest.mark.filterwarnings(
    # Python 3.12 and later; the decoders use no locks of ours
    "ignore:.*multi-threaded, use of fork:DeprecationWarning",
    "ignore:This DataLoader will create:UserWarning",  # on a machine with one core
)


def noise(number: int, size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    W, H = size
    return Image.frombytes("RGB", size, random.Random(number).randbytes(3 * W * H)).convert(mode)


def fill(root: Path, count: int, classes: tuple[str, ...] = CLASSES) -> Path:
    """So many images in each class folder, of various sizes, modes and formats."""
    modes, endings = ("RGB", "L", "P", "RGBA", "1"), (".png", ".JPG", ".bmp")
    for k, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(count):
            ending = endings[i % 3] if modes[i % 5] in ("RGB", "L") else ".png"
            noise(100 * k + i, (9 + i % 7, 12 - k), modes[i % 5]).save(
                root / name / f"{i:03}{ending}"
            )
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("photos"), 25)


@pytest.fixture
def files(photos: Path) -> Files:
    return replace(scan(photos)[1], size=8, decoders=0)


def joined(batches: Iterator[Batch]) -> Batch:
    x, y = zip(*batches, strict=True)
    return torch.cat(x), torch.cat(y)


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def damage(path: Path, how: str) -> Path:
    if how == "truncated":
        noise(0, (40, 40)).save(path.with_suffix(".jpg"))
        raw = path.with_suffix(".jpg").read_bytes()
        path.with_suffix(".jpg").write_bytes(raw[: len(raw) // 2])
        return path.with_suffix(".jpg")
    path.write_bytes(b"" if how == "empty" else b"this is not a picture\n" * 50)
    return path


def test_labels_are_alphabetical_ranks(photos: Path) -> None:
    (photos / "ant" / "notes.txt").write_text("no image")
    (photos / "bee" / "._000.png").write_bytes(b"what some systems leave beside a file")
    (photos / ".hidden").mkdir(exist_ok=True)
    classes, found = scan(photos)
    assert classes == CLASSES
    assert len(found) == 75
    assert [CLASSES[label] for label in found.y.tolist()] == [
        Path(path).parent.name for path in found.paths
    ]
    assert [Path(path).stem for path in found.paths] == 3 * [f"{i:03}" for i in range(25)]


def test_evaluation_has_every_image_in_order(files: Files) -> None:
    batches = list(files.evaluation(32))
    assert [tuple(x.shape) for x, _ in batches] == [(32, 3, 8, 8), (32, 3, 8, 8), (11, 3, 8, 8)]
    x, y = joined(iter(batches))
    assert x.dtype == torch.uint8
    assert torch.equal(y, files.y)
    for i in (0, 1, 2, 3, 4, 31, 32, 74):  # all modes and formats
        assert torch.equal(x[i], center(Path(files.paths[i]), 8)), files.paths[i]
    assert same((x, y), joined(files.evaluation(7)))


def center(path: Path, size: int) -> Tensor:
    """The middle 7/8 of the shorter side, resized."""
    with Image.open(path) as image:
        pixels = image.convert("RGB")
    W, H = pixels.size
    side = min(W, H) * 7 / 8
    box = (W / 2 - side / 2, H / 2 - side / 2, W / 2 + side / 2, H / 2 + side / 2)
    small = pixels.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return torch.tensor(
        [[[small.getpixel((w, h))[c] for w in range(size)] for h in range(size)] for c in range(3)]
    )


def test_a_channel_is_a_color(tmp_path: Path) -> None:
    for name, color in (("green", (0, 255, 0)), ("red", (255, 0, 0))):
        (tmp_path / name).mkdir()
        Image.new("RGB", (1, 1), color).save(tmp_path / name / "dot.png")  # one pixel is enough
    x, _ = joined(replace(scan(tmp_path)[1], size=4, decoders=0).evaluation(2))
    assert x.double().mean((2, 3)).tolist() == [[0, 255, 0], [255, 0, 0]]


@pytest.mark.parametrize("ending", [".png", ".tif"])
def test_sixteen_bits_a_pixel(tmp_path: Path, ending: str) -> None:
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / f"deep{ending}")
    with Image.open(tmp_path / f"deep{ending}") as image:
        found = np.asarray(rgb(image))
    assert np.array_equal(found, np.repeat(values[..., None] >> 8, 3, 2))


def test_transparent_colors_of_a_palette(tmp_path: Path) -> None:
    image = noise(0, (8, 8), "P")
    image.save(tmp_path / "seen.png", transparency=bytes(range(256)))
    with Image.open(tmp_path / "seen.png") as seen:
        assert rgb(seen).tobytes() == image.convert("RGB").tobytes()


def test_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    Image.new("F", (8, 8), 0.5).save(tmp_path / "bee" / "float.tiff")
    with pytest.raises(ValueError, match="float.tiff cannot be read as an image .*floating-point"):
        list(replace(scan(tmp_path)[1], size=8, decoders=0).evaluation(4))


@processes
@pytest.mark.parametrize("augment", [True, False])
def test_decoders_change_nothing(files: Files, augment: bool) -> None:
    alone, helped = (replace(files, decoders=decoders, augment=augment) for decoders in (0, 2))
    assert same(joined(alone.training(20, 3, 1)), joined(helped.training(20, 3, 1)))
    assert same(joined(alone.evaluation(20)), joined(helped.evaluation(20)))


@pytest.mark.parametrize("batch_size", [10, 40, 75, 80])
def test_an_epoch_has_full_batches_of_every_image(files: Files, batch_size: int) -> None:
    marked = replace(files, y=torch.arange(75), augment=False)
    batches = list(marked.training(batch_size, 0, 0))
    assert [len(x) for x, _ in batches] == [batch_size] * (75 // batch_size)
    everything, _ = joined(files.evaluation(75))
    for x, y in batches:
        assert torch.equal(x, everything[y])
    seen = [i for _, y in batches for i in y.tolist()]
    assert len(set(seen)) == len(seen)


def test_seed_and_epoch_decide(files: Files) -> None:
    marked = replace(files, y=torch.arange(75))
    epochs = [joined(marked.training(75, *setting)) for setting in ((0, 0), (0, 1), (1, 0))]
    assert same(epochs[0], joined(marked.training(75, 0, 0)))
    assert len({tuple(y.tolist()) for _, y in epochs}) == 3
    x = [pixels[y.argsort()] for pixels, y in epochs]  # the crops of each image differ too
    assert (x[0] != x[1]).flatten(1).any(1).float().mean() > 0.9
    assert (x[0] != x[2]).flatten(1).any(1).float().mean() > 0.9
    alone = marked.part(torch.tensor([7]))  # nor does it depend on an image's place
    assert (
        len({joined(alone.training(1, 0, epoch))[0].numpy().tobytes() for epoch in range(10)}) == 10
    )


def test_half_of_the_training_images_are_mirrored(tmp_path: Path) -> None:
    image = Image.new("RGB", (64, 64))
    image.paste((255, 255, 255), (32, 0, 64, 64))  # bright on the right, in every crop of some size
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(100):
            image.save(tmp_path / name / f"{i}.png")
    x, _ = joined(replace(scan(tmp_path)[1], size=4, decoders=0).training(200, 0, 0))
    darker, brighter = x[..., 0].double().mean((1, 2)), x[..., -1].double().mean((1, 2))
    assert 60 < int((darker < brighter).sum()) < 120
    assert 60 < int((darker > brighter).sum()) < 120


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 2**62))
def test_a_random_part_is_inside(W: int, H: int, seed: int) -> None:
    left, top, right, bottom = _random_part(W, H, random.Random(seed))
    assert 0 <= left < right <= W
    assert 0 <= top < bottom <= H


def test_random_parts_vary_in_size_place_and_aspect() -> None:
    boxes = [_random_part(400, 300, random.Random(seed)) for seed in range(500)]
    areas = [(right - left) * (bottom - top) / (400 * 300) for left, top, right, bottom in boxes]
    aspects = [(right - left) / (bottom - top) for left, top, right, bottom in boxes]
    assert min(areas) == pytest.approx(0.08, abs=0.01)
    assert max(areas) > 0.95
    assert min(aspects) == pytest.approx(3 / 4, abs=0.02)
    assert max(aspects) == pytest.approx(4 / 3, abs=0.02)
    middles = [((left + right) / 2, (top + bottom) / 2) for left, top, right, bottom in boxes]
    assert [sum(values) / 500 for values in zip(*middles, strict=True)] == pytest.approx(
        [200, 150], abs=10
    )


@pytest.mark.parametrize(
    ("W", "H", "side"), [(256, 256, 224), (512, 256, 224), (100, 400, 87.5), (1, 1, 0.875)]
)
def test_the_center_is_centered(W: int, H: int, side: float) -> None:
    left, top, right, bottom = _center(W, H)
    assert (left, top) == (W - right, H - bottom)
    assert (right - left, bottom - top) == (side, side)


@processes
@pytest.mark.parametrize("decoders", [0, 1])
@pytest.mark.parametrize("how", ["truncated", "text", "empty"])
def test_a_damaged_file_is_named(tmp_path: Path, how: str, decoders: int) -> None:
    broken = damage(fill(tmp_path, 3) / "bee" / "zzz.png", how)
    files = replace(scan(tmp_path, damaged="skip")[1], size=8, decoders=decoders)
    with pytest.raises(ValueError, match=f"{broken} cannot be read as an image .*--damaged skip"):
        list(files.evaluation(4))
    with pytest.raises(ValueError, match=f"{broken} cannot be read as an image"):
        list(files.training(1, 0, 0))


@processes
@pytest.mark.parametrize("decoders", [0, 1])
def test_damaged_files_can_be_skipped(tmp_path: Path, decoders: int) -> None:
    fill(tmp_path, 15)
    whole = replace(scan(tmp_path)[1], size=8, decoders=0)
    broken = [
        damage(tmp_path / name / "zzz.png", how)
        for name, how in zip(CLASSES, ("truncated", "text", "empty"), strict=True)
    ]
    files = replace(scan(tmp_path, damaged="skip")[1], size=8, decoders=decoders, damaged="skip")
    assert len(files) == 48
    with pytest.warns(UserWarning, match="cannot be read as an image .*: skipped") as warned:
        assert same(joined(files.evaluation(10)), joined(whole.evaluation(10)))
    assert sorted(str(w.message).split(" cannot")[0] for w in warned) == sorted(map(str, broken))
    with pytest.warns(UserWarning, match="skipped"):
        batches = list(files.training(8, 0, 0))
    assert [len(x) for x, _ in batches] == [8] * 6, (
        "others take their places, so that all batches are there"
    )
    assert joined(iter(batches))[1].bincount().sum() == 48


def test_a_chunk_of_nothing_but_damaged_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "CHUNK", 2)
    fill(tmp_path, 2)
    for i in range(2):
        damage(tmp_path / "bee" / f"{i:03}.png", "text")
    (tmp_path / "bee" / "001.JPG").unlink()
    files = replace(scan(tmp_path)[1], size=8, decoders=0, damaged="skip")
    with pytest.warns(UserWarning, match="skipped"):
        x, y = joined(files.evaluation(3))
    assert x.dtype == torch.uint8
    assert y.tolist() == [0, 0, 2, 2]
