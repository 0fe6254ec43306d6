"""The readers of the laboratory, each with small whole files that it reads."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from studies.ledger import Ledger
from torch import nn

from bgn_lab import data
from bgn_lab.data import domains, few_shot, segmentation
from bgn_lab.experiments.adaptation.recipe import AdaptationRecipe
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.experiments.fewshot.recipe import FewShotRecipe
from bgn_lab.experiments.nas import choice, genotype
from bgn_lab.experiments.nas.recipe import ManasRecipe
from bgn_lab.experiments.segmentation.recipe import SegmentationRecipe
from bgn_lab.models import pretrained
from bgn_lab.models.resnet import resnet
from bgn_lab.report import page, text
from bgn_lab.report.collect import scan
from bgn_lab.report.comparison import compare
from bgn_lab.system import reading
from bgn_lab.training import checkpoint, record
from bgn_lab.training.run import is_finished
from tests.lab import report_runs, test_class_folders, test_data_sheets, test_segmentation_data

RECIPE = ClassificationRecipe(norm="bgn", width=4, stride=2, limit=100, epochs=2)


@dataclass(frozen=True)
class Reader:
    """A name, what writes whole files into a folder, and what reads them there."""

    name: str
    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    writes: bool = False
    """Whether it also works in its folder, as a run that is resumed does."""

    def __str__(self) -> str:
        return self.name


def _run_folder(place: Path) -> Path:
    made = report_runs.make(place, 70.0, norm="bgn")
    (made / record.DATA).write_text('{"fingerprint": "0123456789abcdef", "train": [1, "00"]}')
    return made


def _report(place: Path) -> None:
    """As `bgn report` does it, but for the pictures."""
    runs, damaged = scan([place])
    for one in damaged:
        assert str(one).isprintable()
    if not runs:
        raise ValueError("; ".join(map(str, damaged)))
    found = compare(runs)
    console = Console(width=80, file=io.StringIO(), color_system=None)
    for one in found:
        console.print(text.terminal(one, one.title()))
    page.page(found, damaged).encode()
    text.markdown(found, damaged).encode()


def _resume(place: Path) -> None:
    """As a run does that goes on in its folder, up to its first step."""
    (folder,) = place.iterdir()
    known = mock.patch.object(record, "about", report_runs.about)
    with known, record.Record(folder, ClassificationRecipe(norm="bgn")) as own:
        record.check_data(folder, _Images())
        if is_finished(folder):
            own.result()
        own.begin(_Images())
        own.choose("onednn", lambda: True)
        own.rewind(1)


class _Images(data.Data):
    """Images of the fingerprints that the folder has."""

    def __init__(self) -> None:
        part = _Part()
        super().__init__("x", (), (1, 2, 2), (0.0,), (1.0,), part, part, part, 0.5)


class _Part:
    fingerprint = "00"

    def __len__(self) -> int:
        return 1


def _resumable(place: Path) -> None:
    made = report_runs.make(place, 70.0, norm="bgn")
    (made / record.DATA).write_text(json.dumps(record._fingerprints(_Images())))


def _small() -> tuple[nn.Module, dict[str, torch.optim.Optimizer]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    first, last = list(model[:2].parameters()), list(model[2].parameters())
    return model, {
        "optimizer": torch.optim.SGD(first, 0.1, momentum=0.9),
        "optimizer_other": torch.optim.Adam(last, 0.1),
    }


def _checkpoint(place: Path) -> None:
    model, optimizers = _small()
    model(torch.randn(4, 3)).sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()
    progress = checkpoint.Progress(1, 2, plan={"labels": torch.arange(3)}, scaler={"scale": 2.0})
    checkpoint.store(place / checkpoint.NAME, RECIPE, model, optimizers, progress)


def _restore(place: Path) -> None:
    path = place / checkpoint.NAME
    model, optimizers = _small()
    checkpoint.restore(reading.read_bytes(path), path, RECIPE, model, optimizers)
    model(torch.randn(4, 3)).sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()


def _network(norm: Any) -> nn.Module:
    return resnet("resnet8", norm, 2, 3, width=4)


def _weights(name: str, **options: Any) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        state = _network(nn.BatchNorm2d).state_dict()
        if name.endswith(".safetensors"):
            save_file(state, place / name)
            (place / "recipe.json").write_text(json.dumps(ClassificationRecipe().to_json()))
        else:
            torch.save({"state_dict": state}, place / name, **options)

    return make


def _load_weights(name: str) -> Callable[[Path], None]:
    return lambda place: pretrained.load(  # type: ignore[return-value]
        place / name, _network, ClassificationRecipe(norm="bgn"), "fc."
    )


def _arrays(place: Path) -> None:
    draws = np.random.default_rng(0)
    np.savez(
        place / "own.npz",
        x_train=draws.integers(0, 255, (12, 8, 8, 3), np.uint8), y_train=np.arange(12) % 2,
        x_test=draws.integers(0, 255, (6, 8, 8, 3), np.uint8), y_test=np.arange(6) % 2,
        class_names=np.array(["cat", "dog"]),
    )  # fmt: skip


def _load_arrays(place: Path) -> None:
    _use(data.load(ClassificationRecipe(data=str(place / "own.npz"))))


def _use(found: Any) -> None:
    """What a run does with its images before it trains."""
    _ = found.fingerprint
    for part in (found.train, found.validation, found.test):
        part.check()
        for x, y in part.evaluation(4):
            assert len(x) == len(y)


def _packed_domains(place: Path) -> None:
    test_class_folders.packed(
        place / "own.npz", split=None, split_names=None, wnids=None,
        domain=(np.arange(18) % 3 == 2).astype(np.uint8), domain_names=np.array(["one", "two"]),
    )  # fmt: skip


def _packed_classes(place: Path) -> None:
    test_class_folders.packed(
        place / "own.npz", split=np.arange(18, dtype=np.uint8) // 6,
        split_names=np.array(["train", "val", "test"]),
    )  # fmt: skip


def _load_few_shot(path: Path) -> None:
    _ = few_shot.load(FewShotRecipe(data=str(path), image_size=8), 2).fingerprint


def _load_domains(path: Path) -> None:
    _ = domains.load(AdaptationRecipe(data=str(path), image_size=8), None).fingerprint


def _picture(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def _folders(*parts: str) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        draws = np.random.default_rng(0)
        endings = iter(["jpg", "png", "bmp", "tiff", "webp", "ppm"] * 20)
        for part in parts:
            for name in ("ant", "bee"):
                for i in range(4):
                    values = draws.integers(0, 255, (9, 8, 3), np.uint8)
                    _picture(place / part / name / f"{i}.{next(endings)}", values)

    return make


def _load_folder(place: Path) -> None:
    recipe = ClassificationRecipe(data=str(place), image_size=8, decoders=0, damaged="refuse")
    _use(data.load(recipe))


def _skip_in_folder(place: Path) -> None:
    recipe = ClassificationRecipe(data=str(place), image_size=8, decoders=0, damaged="skip")
    found = data.load(recipe)
    for _ in found.train.training(2, 0, 0):
        pass


def _masks(place: Path) -> None:
    draws = np.random.default_rng(0)
    for part in ("train", "test"):
        for i, kind in enumerate(("png", "bmp", "png")):
            _picture(
                place / part / "images" / f"{i}.jpg", draws.integers(0, 9, (9, 8, 3), np.uint8)
            )
            _picture(place / part / "masks" / f"{i}.{kind}".replace("gif", "png"),
                     draws.integers(0, 3, (9, 8), np.uint8))  # fmt: skip
    (place / "classes.txt").write_text("sky\nroad\ncar\n")


def _voc(place: Path) -> None:
    for i in range(3):
        _picture(place / "JPEGImages" / f"{i}.jpg", np.full((9, 8, 3), 9 * i, np.uint8))
        _picture(place / "SegmentationClass" / f"{i}.png", np.full((9, 8), i, np.uint8))
    lists = place / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("0\n1\n")
    (lists / "val.txt").write_text("2\n")


def _labeled(place: Path) -> None:
    draws = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 4), ("test", 2)):
        arrays[f"x_{part}"] = draws.integers(0, 255, (count, 8, 9, 3), np.uint8)
        arrays[f"y_{part}"] = draws.integers(0, 3, (count, 8, 9), np.uint8)
    np.savez(place / "own.npz", **arrays, class_names=np.array(["sky", "road", "car"]))


def _load_masks(inner: str = "") -> Callable[[Path], None]:
    def read(place: Path) -> None:
        found = segmentation.load(SegmentationRecipe(data=str(place / inner), validation=0.0))
        _ = found.fingerprint

    return read


def _idx(place: Path) -> None:
    from bgn_lab.data.fashion_mnist import FILES
    from tests.lab import scripts

    idx = scripts.load("embed_fashion_mnist").idx
    for names, count in zip(FILES.values(), (20, 10), strict=True):
        places = torch.arange(count, dtype=torch.uint8)
        arrays = places[:, None, None].expand(-1, 28, 28), places % 10
        for name, array in zip(names, arrays, strict=True):
            (place / name).write_bytes(idx(array))


def _choice(place: Path) -> None:
    first = ManasRecipe().to_json()
    (place / choice.CHOICE).write_text(json.dumps({"first": first, "data": "00"}))


def _genotype(place: Path) -> None:
    found = genotype.drawn(random.Random(0).randrange(99), 0)
    (place / "genotype.json").write_text(json.dumps(found.to_json()))


def _ledger(place: Path) -> None:
    for seed in range(2):
        made = report_runs.make(place / "runs", 61.0, seed=seed)
        Ledger(place / "ledger.jsonl").add(made)
    shutil.rmtree(place / "runs")


READERS = (
    Reader("report", _run_folder, _report),
    Reader("resume", _resumable, _resume, writes=True),
    Reader("checkpoint", _checkpoint, _restore),
    Reader("safetensors", _weights("model.safetensors"), _load_weights("model.safetensors")),
    Reader("pth", _weights("net.pth"), _load_weights("net.pth")),
    Reader(
        "old-pth",
        _weights("net.pth", _use_new_zipfile_serialization=False),
        _load_weights("net.pth"),
    ),
    Reader("arrays", _arrays, _load_arrays),
    Reader("sheets", lambda p: test_data_sheets.write(p / "own.npz"), _load_arrays),
    Reader(
        "few-shot",
        _packed_classes,
        lambda p: _load_few_shot(p / "own.npz"),
    ),
    Reader(
        "domains",
        _packed_domains,
        lambda p: _load_domains(p / "own.npz"),
    ),
    Reader(
        "segmentation",
        lambda p: test_segmentation_data.packed(p / "own.npz"),
        _load_masks("own.npz"),
    ),
    Reader("labeled-arrays", _labeled, _load_masks("own.npz")),
    Reader("masks", _masks, _load_masks()),
    Reader("voc", _voc, _load_masks()),
    Reader("folder", _folders("train", "test"), _load_folder),
    Reader("flat-folder", _folders(""), _skip_in_folder),
    Reader(
        "domain-folders",
        _folders("one", "two"),
        _load_domains,
    ),
    Reader(
        "few-shot-folders",
        _folders("train", "val", "test"),
        _load_few_shot,
    ),
    Reader(
        "idx",
        _idx,
        lambda p: _use(data.load(ClassificationRecipe(root=p))),
    ),
    Reader("genotype", _genotype, lambda p: genotype.find(str(p / "genotype.json"))),
    Reader("choice", _choice, lambda p: choice.claim(p, ManasRecipe(), "00")),
    Reader("ledger", _ledger, lambda p: Ledger(p / "ledger.jsonl")),
)
