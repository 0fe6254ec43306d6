"""Images and masks from folders and archives: the usual layouts, and what is wrong with others."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bgn_lab import cli
from bgn_lab.data import segmentation
from bgn_lab.data.segmentation import layouts, scenes, volumes
from bgn_lab.data.segmentation.pairs import SegmentationData
from bgn_lab.data.segmentation.windows import IGNORED
from bgn_lab.experiments.segmentation.recipe import SegmentationRecipe as Recipe

H, W = 12, 16


def labels(number: int, classes: int = 3, void: int | None = None) -> Any:
    found = (np.arange(H * W).reshape(H, W) // 7 + number) % classes
    if void is not None:
        found[0] = void
    return found.astype(np.uint8)


def write(path: Path, values: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **options)


def photo(path: Path, number: int = 0, size: tuple[int, int] = (H, W)) -> None:
    values = np.full((*size, 3), 20 * number % 256, np.uint8)
    write(path, values)


def pair(folder: Path, number: int, masks: str = "masks", **options: Any) -> None:
    photo(folder / "images" / f"{number}.png", number)
    write(folder / masks / f"{number}.png", labels(number, **options))


def load(root: Path, **values: Any) -> SegmentationData:
    segmentation._folders.cache_clear()
    return segmentation.load(Recipe(data=str(root), validation=0.0, **values))


def refusal(root: Path, **values: Any) -> str:
    with pytest.raises((ValueError, OSError)) as error:
        load(root, **values)
    return str(error.value)


def test_pairs_without_a_division(tmp_path: Path) -> None:
    for i in range(10):
        pair(tmp_path, i, void=IGNORED)
    data = load(tmp_path)
    assert data.classes == ("class 0", "class 1", "class 2")
    assert (len(data.train), len(data.test)) == (8, 2)
    assert data.shape == (3, H, W)
    both = [*data.train.x, *data.test.x]
    assert sorted(int(x[0, 0, 0]) // 20 for x in both) == list(range(10)), "no image in both parts"
    number = int(data.test.x[0][0, 0, 0]) // 20
    assert data.test.labels[0].tolist() == labels(number, void=IGNORED).tolist()


def test_pairs_in_parts_and_classes_by_name(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("sky\nvoid\ncar\n")
    for part, count in {"train": 3, "val": 2, "test": 1}.items():
        for i in range(count):
            pair(tmp_path / part, i)
    data = load(tmp_path)
    assert data.classes == ("sky", "car")
    assert [len(p) for p in (data.train, data.validation, data.test)] == [3, 2, 1]
    assert {*data.train.labels[0].unique().tolist()} == {0, 1, IGNORED}
    turned = tmp_path / "turned"
    for part in ("training", "validation"):
        for i in range(2):
            photo(turned / "images" / part / f"{i}.jpg", i)
            write(turned / "annotations" / part / f"{i}_mask.png", labels(i))
    data = load(turned)
    assert [len(p) for p in (data.train, data.validation, data.test)] == [2, 0, 2]


def test_image_size(tmp_path: Path) -> None:
    for i in range(5):
        pair(tmp_path, i)
    data = load(tmp_path, image_size=6)
    assert data.train.x[0].shape == (3, 6, 8)
    assert data.train.labels[0].shape == (6, 8)


def camvid(root: Path) -> None:
    for part, count in {"train": 3, "val": 2, "test": 2}.items():
        for i in range(count):
            photo(root / part / f"seq_{i}.png", i)
            write(root / f"{part}annot" / f"seq_{i}.png", labels(i, 12))


def cityscapes(root: Path, kind: str = "Ids") -> None:
    values = {"Ids": [7, 26, 0], "TrainIds": [0, 13, 255]}[kind]
    for part, city in (("train", "aachen"), ("train", "ulm"), ("val", "lindau")):
        name = f"{city}_000000_000019"
        photo(root / "leftImg8bit" / part / city / f"{name}_leftImg8bit.png")
        ids = np.array(values, np.uint8)[labels(0)]
        write(root / "gtFine" / part / city / f"{name}_gtFine_label{kind}.png", ids)


def voc(root: Path) -> None:
    for part, names in {"train": ["a", "b"], "val": ["c"]}.items():
        for name in names:
            photo(root / "JPEGImages" / f"{name}.jpg")
            path = root / "SegmentationClass" / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(labels(0, 21, void=IGNORED), mode="P")
            image.putpalette([k * 5 % 256 for k in range(768)])
            image.save(path)
        path = root / "ImageSets" / "Segmentation" / f"{part}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(names))


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "classes", "counts", "name"),
    [
        (camvid, 11, [3, 2, 2], "camvid"),
        (cityscapes, 19, [2, 0, 1], "cityscapes"),
        (lambda root: cityscapes(root, "TrainIds"), 19, [2, 0, 1], "cityscapes"),
        (voc, 21, [2, 0, 1], "voc"),
        (lambda root: voc(root / "VOCdevkit" / "VOC2012"), 21, [2, 0, 1], "voc"),
    ],
)
def test_known_layouts(
    tmp_path: Path, make: Callable[[Path], None], classes: int, counts: list[int], name: str
) -> None:
    make(tmp_path)
    assert layouts.find(tmp_path).name == name
    data = load(tmp_path)
    assert len(data.classes) == classes
    assert [len(p) for p in (data.train, data.validation, data.test)] == counts
    if name == "cityscapes":
        assert {*data.train.labels[0].unique().tolist()} == {0, 13, IGNORED}
        assert (data.classes[0], data.classes[13]) == ("road", "car")
    else:
        assert IGNORED in data.train.labels[0].unique().tolist()


def test_wrong_layouts_are_explained(tmp_path: Path) -> None:
    assert "is neither a folder nor an .npz file" in refusal(tmp_path / "nothing")
    photo(tmp_path / "flat" / "a.png")
    assert "1 image (a.png) directly in it; expected them in a folder images" in refusal(
        tmp_path / "flat"
    )
    photo(tmp_path / "alone" / "images" / "a.png")
    assert "has images, but no masks beside them" in refusal(tmp_path / "alone")
    camvid(tmp_path / "deep" / "CamVid")
    assert "did you mean that?" in refusal(tmp_path / "deep")
    photo(tmp_path / "colors" / "LabeledApproved_full" / "a_L.png")
    assert "has CamVid with masks in colors" in refusal(tmp_path / "colors")
    photo(tmp_path / "city" / "leftImg8bit" / "train" / "a" / "a.png")
    assert "has no gtFine; Cityscapes needs both" in refusal(tmp_path / "city")
    photo(tmp_path / "half" / "train" / "a.png")
    photo(tmp_path / "half" / "trainannot" / "a.png")
    (tmp_path / "half" / "testannot").mkdir()
    assert "has no test; expected images in test and their masks in testannot" in refusal(
        tmp_path / "half"
    )
    (tmp_path / "lists" / "SegmentationClass").mkdir(parents=True)
    assert "VOC's lists say which images are for training" in refusal(tmp_path / "lists")
    photo(tmp_path / "other" / "stuff" / "a.png")
    assert "expected one of these layouts" in refusal(tmp_path / "other")


def test_wrong_masks_are_explained(tmp_path: Path) -> None:
    for i in range(5):
        pair(tmp_path, i)
    mask = tmp_path / "masks" / "2.png"
    mask.unlink()
    assert "1 of 5 images" in (found := refusal(tmp_path))
    assert "have no mask" in found
    assert "2.png" in found
    write(mask, np.stack([labels(0), labels(1), labels(2)], -1))
    assert "is a picture in colors; expected a gray or palette image" in refusal(tmp_path)
    write(mask, labels(0)[:6])
    assert "16x6 pixels in its mask and 16x12 in its image" in refusal(tmp_path)
    write(mask, labels(0).astype(np.uint16) * 300)
    assert "has values up to 600" in refusal(tmp_path)
    mask.unlink()
    write(mask.with_suffix(".jpg"), labels(0))
    assert "is a JPEG, which changes values when it is saved" in refusal(tmp_path)
    mask.with_suffix(".jpg").unlink()
    write(mask, labels(0))
    (tmp_path / "classes.txt").write_text("a\nb\n")
    write(tmp_path / "masks" / "0.png", labels(0) * 2)
    assert "has the value 4, and there are 2 classes" in refusal(tmp_path)
    (tmp_path / "classes.txt").unlink()
    for i in range(5):
        write(tmp_path / "masks" / f"{i}.png", labels(i, 2) * 255)
    assert "255 means no class: write 1 for what it stands for" in refusal(tmp_path)


def test_gray_masks_saved_in_colors_are_read(tmp_path: Path) -> None:
    for i in range(5):
        photo(tmp_path / "images" / f"{i}.png", i)
        write(tmp_path / "masks" / f"{i}.png", np.stack([labels(i)] * 3, -1))
    assert len(load(tmp_path).classes) == 3


@pytest.mark.filterwarnings("ignore:.*skipped")
def test_damaged_images(tmp_path: Path) -> None:
    for i in range(5):
        pair(tmp_path, i)
    (tmp_path / "images" / "3.png").write_bytes(b"\x89PNG broken")
    assert "3.png cannot be read" in refusal(tmp_path)
    data = load(tmp_path, damaged="skip")
    assert len(data.train) + len(data.test) == 4


def packed(path: Path, count: int = 6, **changes: Any) -> Path:
    """An archive of JPEGs and PNGs."""
    jpegs, masks = [], []
    for i in range(count):
        for found, values, kind in (
            (jpegs, np.full((H, W, 3), 30 * i, np.uint8), "JPEG"),
            (masks, labels(i, 3), "PNG"),
        ):
            content = BytesIO()
            Image.fromarray(values).save(content, kind)
            found.append(content.getvalue())
    arrays: dict[str, Any] = {
        "jpeg": np.frombuffer(b"".join(jpegs), np.uint8),
        "offsets": np.cumsum([0, *map(len, jpegs)]),
        "mask_png": np.frombuffer(b"".join(masks), np.uint8),
        "mask_offsets": np.cumsum([0, *map(len, masks)]),
        "split": np.array([0, 0, 0, 1, 2, 2][:count]),
        "split_names": np.array(["train", "val", "test"]),
        "class_names": np.array(["sky", "road", "void"]),
    }
    np.savez(path, **(arrays | changes))
    return path


def test_an_archive(tmp_path: Path) -> None:
    data = load(packed(tmp_path / "streets.npz"))
    assert data.classes == ("sky", "road")
    assert [len(p) for p in (data.train, data.validation, data.test)] == [3, 1, 2]
    assert {*data.train.labels[0].unique().tolist()} == {0, 1, IGNORED}
    assert data.test.x[0].shape == (3, H, W)


def test_wrong_archives_are_explained(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.npz", mask_offsets=np.array([0, 5]))
    assert "mask_offsets is int64 (2,); expected integers (7,)" in refusal(path)
    np.savez(tmp_path / "b.npz", jpeg=np.zeros(4, np.uint8))
    assert "b.npz has no masks; expected jpeg, offsets, mask_png" in refusal(tmp_path / "b.npz")
    x, y = np.zeros((4, 8, 8), np.uint8), np.zeros((4, 8, 9), np.int64)
    np.savez(tmp_path / "c.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert "x_train is uint8 (4, 8, 8); expected uint8 (4, 8, 9)" in refusal(tmp_path / "c.npz")


@pytest.mark.parametrize("channels", [None, 1, 2])
@pytest.mark.parametrize("shape", [(8, 9), (6, 8, 9)])
def test_arrays(tmp_path: Path, shape: tuple[int, ...], channels: int | None) -> None:
    draws = np.random.default_rng(0)
    own = (4, *shape)
    pixels = own if channels is None else (*own, channels)
    x, y = draws.integers(0, 256, pixels, np.uint8), draws.integers(0, 3, own)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = load(tmp_path / "a.npz")
    assert data.spatial == len(shape)
    assert data.shape == (channels or 1, *shape)
    first = x[0][None] if channels is None else np.moveaxis(x[0], -1, 0)
    assert data.test.x[0].tolist() == first.tolist()
    assert data.test.labels[0].tolist() == y[0].tolist()


def test_the_made_up_data_is_the_same_at_every_call() -> None:
    one = segmentation.load(Recipe())
    scenes.load.cache_clear()
    other = segmentation.load(Recipe())
    assert one.fingerprint == other.fingerprint
    assert one.made_up
    assert [len(p) for p in (one.train, one.validation, one.test)] == [*scenes.COUNTS.values()]
    assert one.shape == (3, scenes.SIZE, scenes.SIZE)
    shares = one.train.counts.sum(0) / one.train.counts.sum()
    assert shares.min() > 0.02, "no class is rare"
    deep = segmentation.load(Recipe(data="volumes"))
    volumes.load.cache_clear()
    assert deep.fingerprint == segmentation.load(Recipe(data="volumes")).fingerprint
    assert deep.shape == (1, 32, 32, 32)
    assert bool((deep.train.counts.sum(0) > 0).all())


def test_scenes_have_boxes_of_their_items() -> None:
    for scene in scenes.load(None)["test"][:20]:
        assert len(scene.boxes) == len(scene.kinds) >= scenes.ITEMS[0]
        left, top, right, bottom = scene.boxes.T
        assert bool((left < right).all())
        assert bool((top < bottom).all())
        assert scene.boxes.min() >= 0
        assert scene.boxes.max() <= scenes.SIZE
        last, kind = scene.boxes[-1].int().tolist(), int(scene.kinds[-1])  # nothing hides it
        inside = scene.y[last[1] : last[3], last[0] : last[2]]
        assert bool((inside == kind).any())
        assert kind in torch.unique(scene.y).tolist()


def test_limit_and_validation() -> None:
    data = segmentation.load(Recipe(limit=50))
    assert len(data.train) == 50
    assert len(data.validation) == scenes.COUNTS["validation"], "the data's own"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data cifar10", "--data 'cifar10' has no labels of pixels; expected scenes, volumes"),
        ("--data nothing/here", "accepted too: scenes, volumes"),
        ("--crop 32", "--crop (32,) has 1 numbers; expected height and width for --data 'scenes'"),
        ("--image-size 32", "--image-size 32 is for image files"),
        ("--data volumes --model fpn-resnet18", "is for images, and --data 'volumes' has volumes"),
        ("--data volumes --norm pn", "spatial=3 has no layer of 'pn'; expected 2"),
        ("--data volumes --channels-last", "--channels-last is for images"),
        ("--batch-size 2 --neighbors 4", "--neighbors 4 does not divide --batch-size 2"),
        ("--scale 2 1", "--scale (2.0, 1.0) is no range of factors"),
        ("--model fpn-vgg", "--model 'fpn-vgg' is not known"),
        ("--weights a.pth", "is for a backbone, and --model 'unet' has none"),
        ("--norm bn+frozen", "--frozen needs pretrained statistics"),
        ("--norm gn+frozen", "--frozen has no meaning for --norm 'gn'"),
        ("--norm bn+frozen+renorm", "exclude each other"),
        ("--norm bn+ws+frozen", "--frozen and --standardize exclude each other"),
        (
            "--norm bn+ws+renorm --model fpn-resnet18 --weights a.pth",
            "exclude each other where there are weights",
        ),
        ("--preset camvid", "needs --data and --weights"),
    ],
)
def test_bad_input(
    words: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["run", "segmentation", "--out", str(tmp_path / "x"), *words.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "x").exists()
