"""``bgn export``: what a finished run becomes, and what is refused before anything is written."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from torch import Tensor, nn

from bgn.surgery.kinds import normalizers
from bgn_lab import cli, experiments
from bgn_lab.commands.export import Export
from bgn_lab.deploy import finished, formats
from bgn_lab.deploy.check import compare
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.training.record import Record
from bgn_lab.training.result import Result
from tests.lab.report_runs import result

SMALL = {"width": 8, "limit": 60, "epochs": 1, "batch_size": 4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of finished runs by the name of a normalizer, each run made once."""
    base, made = tmp_path_factory.mktemp("runs"), {}

    def folder(norm: str, **options: Any) -> Path:
        name = f"{norm}{len(options)}"
        if name not in made:
            recipe = ClassificationRecipe(norm=norm, **{**SMALL, **options})
            experiments.run(recipe, base / name)
            made[name] = base / name
        return made[name]

    return folder


@pytest.fixture
def run(folders: Any) -> Path:
    found: Path = folders("bgn", groups=2)
    return found


def export(run: Path, to: Path, **options: Any) -> tuple[int, str]:
    """The exit code, and what was printed."""
    printed = io.StringIO()
    code = Export(run, to, images=40, **options)(Console(file=printed, width=200))
    return code, printed.getvalue()


def test_a_program_has_the_answers_of_the_network(run: Path, tmp_path: Path) -> None:
    code, printed = export(run, to := tmp_path / "model.pt2")
    assert code == 0
    assert "40 images: largest difference" in printed
    assert "accuracy" in printed
    about = {"mean": "", "classes": ""}
    program = torch.export.load(to, extra_files=about)
    assert len(json.loads(about["classes"])) == 10
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any("norm" in target for target in targets)  # folded
    found = finished.load(run, 7)
    with torch.no_grad():
        expected = found.model(found.images)
        torch.testing.assert_close(program.module()(found.images), expected, rtol=1e-4, atol=1e-5)


def test_one_image_is_enough_for_any_number_of_them(run: Path, tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    assert Export(run, tmp_path / "model.pt2", images=1)(console) == 0
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert program(finished.load(run, 3).images).shape == (3, 10)


def test_weights_are_those_of_the_run(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "w.safetensors"
    assert export(run, to, fold=False)[0] == 0
    with safe_open(to, "pt") as file:
        assert json.loads(file.metadata()["mean"])
        own = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    model = finished.load(run, 1).model
    assert own.keys() == model.state_dict().keys()
    model.load_state_dict(own)
    assert any("running_mean" in key for key in own)


def test_what_does_not_fold_is_said_and_exported_as_it_is(folders: Any, tmp_path: Path) -> None:
    code, printed = export(folders("bgn", groups=64, width=8), tmp_path / "a.safetensors")
    assert code == 0
    assert "note: nothing was folded, because of" in printed
    assert "cuts channels" in printed
    code, printed = export(folders("gn"), tmp_path / "b.safetensors")
    assert code == 0
    assert "note: fold: " in printed


def test_a_file_with_other_answers_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = formats.Safetensors.read

    def wrong(self: Any, *words: Any) -> Callable[[Tensor], Tensor]:
        function = read(self, *words)
        return lambda x: function(x) + 0.1

    monkeypatch.setattr(formats.Safetensors, "read", wrong)
    code, printed = export(run, tmp_path / "w.safetensors")
    assert code == 1
    assert "nothing was written" in printed
    assert not list(tmp_path.iterdir())


def test_comparison_of_pixels_leaves_out_those_without_a_class() -> None:
    logits = torch.tensor([[[[1.0, 0.0, 0.0]], [[0.0, 1.0, 1.0]]]])  # (1, 2, 1, 3): 0, 1, 1
    labels = torch.tensor([[[0, 0, 255]]], dtype=torch.uint8)
    found = compare(lambda _: logits, lambda _: -logits, torch.zeros(1, 1, 1, 3), labels)
    assert (found.before, found.after) == (0.5, 0.5)
    assert (found.difference, found.agrees) == (2.0, False)
    nan = compare(lambda _: logits, lambda _: logits * float("nan"), torch.zeros(1), labels)
    assert not nan.agrees


def test_an_existing_file_stays_without_force(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "w.safetensors"
    to.write_text("mine")
    with pytest.raises(ValueError, match="exists; expected another name, or --force"):
        export(run, to)
    assert to.read_text() == "mine"
    assert export(run, to, force=True)[0] == 0
    assert to.read_bytes() != b"mine"
    assert [path.name for path in tmp_path.iterdir()] == [to.name]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to", "model.bin"], "--to 'model.bin' ends with '.bin'; expected .onnx, .pt2, .safe"),
        (["--to", "no/model.pt2"], "--to 'no/model.pt2' is in a folder that does not exist"),
        (["--to", "a.pt2", "--opset", "17"], "--opset 17 has no effect on .pt2 files"),
        (["--to", "a.safetensors", "--compiled"], "--compiled has no effect on .safetensors"),
        (["--to", "a.pt2", "--images", "0"], "--images 0 is not positive"),
        (["--to", "a.pt2"], "RUN . holds no run; expected the folder of a finished one"),
    ],
)
def test_errors_name_the_option(
    words: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", ".", *words]) == 2
    assert expected in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named_with_their_extra(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats.ONNX, "needs", ("there_is_no_such_package",))
    with pytest.raises(ValueError, match=r"such_package: pip install 'batch-group-norm\[onnx\]'"):
        export(run, tmp_path / "model.onnx")


def test_damaged_weights_are_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for path in run.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    (copy / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="SHA-256"):
        export(copy, tmp_path / "model.pt2")
    (copy / "result.json").unlink()
    with pytest.raises(ValueError, match="is not finished"):
        export(copy, tmp_path / "model.pt2")


def test_a_search_is_refused_by_name(tmp_path: Path) -> None:
    recipe: Any = experiments.get("darts-search").presets["laptop"].recipe
    folder = tmp_path / "run"
    with Record(folder, recipe) as record:
        record.finish(Result.from_json(result(recipe, 50.0, images=100, epochs=1)))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="is one of darts-search, which ends with a genotype"):
        export(folder, tmp_path / "model.pt2")
    ends = {name: experiments.get(name).task.ends_with_network for name in experiments.names()}
    assert [name for name, has in ends.items() if not has] == ["darts-search", "manas-search"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "options"),
    [
        ("adversarial", {"model": "resnet20", "attack_steps": 1, "test_steps": 1, "limit": 40,
                         "strong_images": 0, "batch_size": 8}),
        ("fewshot", {"episodes": 4, "width": 8, "limit": 60, "batch_size": 8}),
        ("adaptation", {"width": 8, "limit": 200, "batch_size": 8, "warm": 1}),
        ("segmentation", {"width": 8, "limit": 8}),
        ("nas-train", {"width": 8, "cells": 3, "limit": 40, "batch_size": 8, "auxiliary": 0.0}),
    ],
)  # fmt: skip
def test_experiments_that_end_with_a_network(
    experiment: str, options: dict[str, Any], tmp_path: Path
) -> None:
    found = experiments.get(experiment)
    recipe = replace(found.presets["laptop"].recipe, epochs=1, norm="bgn", groups=2, **options)
    experiments.run(recipe, tmp_path / "run")
    dynamic = "size" if experiment == "segmentation" else "batch"
    code, printed = export(tmp_path / "run", to := tmp_path / "model.pt2", dynamic=dynamic)
    print(printed)
    assert code == 0
    assert to.exists()
    run = finished.load(tmp_path / "run", 2)
    plain, notes = finished.folded(run.model, run.images)
    assert len(normalizers(plain)) == (1 if experiment == "nas-train" else 0)
    assert bool(notes) == (experiment == "nas-train")  # one is not behind a convolution of its own


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", ["none", "batch", "size"])
@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_what_may_differ_from_the_images_of_the_run(
    run: Path, tmp_path: Path, name: str, dynamic: str
) -> None:
    pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime")
    to = tmp_path / name
    assert export(run, to, dynamic=dynamic)[0] == 0
    options = formats.Options(dynamic)
    exported = formats.of(to).read(to.read_bytes(), nn.Identity(), options)
    found = finished.load(run, 5)
    larger = torch.nn.functional.pad(found.images, (4, 4, 4, 4))
    accepted = {"none": 1, "batch": 2, "size": 3}[dynamic]
    for x in (found.images[:1], found.images, larger)[:accepted]:
        with torch.no_grad():
            torch.testing.assert_close(exported(x), found.model(x), rtol=1e-4, atol=1e-4)
    if accepted < 3:
        with pytest.raises(Exception):  # noqa: B017, PT011  # of onnxruntime, of torch
            exported((found.images, larger)[accepted - 1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_machine_code(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "model.pt2"
    assert export(run, to, compiled=True)[0] == 0
    found = finished.load(run, 5)
    package = torch._inductor.aoti_load_package(str(to))
    with torch.no_grad():
        expected = found.model(found.images)
    torch.testing.assert_close(package(found.images), expected, rtol=1e-4, atol=1e-4)
    assert json.loads(package.get_metadata()["classes"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_version_of_the_operators_and_metadata(run: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx")
    to = tmp_path / "model.onnx"
    assert export(run, to, opset=20)[0] == 0
    model = onnx.load(to)
    assert [(one.domain, one.version) for one in model.opset_import if not one.domain] == [("", 20)]
    about = {one.key: one.value for one in model.metadata_props}
    assert len(json.loads(about["classes"])) == 10


def test_machine_code_needs_a_compiler(run: Path, tmp_path: Path) -> None:
    from torch._inductor import config

    # not by monkeypatch, which would remove the setting for all tests after this one
    none: Any = config.patch({"cpp.cxx": (str(tmp_path / "no-compiler"),)})
    with none, pytest.raises(ValueError, match="compiled=True needs a C\\+\\+ compiler"):
        export(run, tmp_path / "model.pt2", compiled=True)
    assert config.cpp.cxx


class Undecided(nn.Module):
    """A network that asks for the value of a pixel, which no graph can know."""

    def __init__(self, norm: Callable[[int], nn.Module], classes: int, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 4, 3), norm(4)
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).mean((2, 3))
        return self.fc(x) if x.sum() > 0 else self.fc(-x)


def test_a_network_that_cannot_be_exported(folders: Any, tmp_path: Path) -> None:
    run = folders("bn", model="tests.lab.test_export:Undecided", width=None)
    with pytest.raises(ValueError, match="the network cannot be exported as dynamic=batch: "):
        export(run, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())
