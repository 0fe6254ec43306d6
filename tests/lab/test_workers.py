"""Several workers: processes and their simulation give the same weights.

Each worker normalizes alone, and nothing is lost.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from bgn_lab import data, experiments, paper
from bgn_lab.data.sources import share
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.system.signals import REQUEUE
from bgn_lab.training import checkpoint, loop
from bgn_lab.training.record import METRICS
from bgn_lab.training.run import WEIGHTS
from bgn_lab.training.workers import Workers, resolve_workers

SMALL = Recipe(
    norm="bgn", groups=4, width=4, limit=400, batch_size=4, epochs=3, lr=0.2, simulate_workers=4,
    onednn=True,
)  # fmt: skip
# In float32 the rounding of larger passes grows until weights differ visibly; a pass for each
# worker has the same shapes on any number of processes.
ALIKE = replace(SMALL, simulate_workers=2, images_per_pass=4)
FIELDS = (
    "norm",
    "groups",
    "renorm",
    "width",
    "limit",
    "batch_size",
    "epochs",
    "lr",
    "simulate_workers",
    "accumulate",
    "images_per_pass",
    "onednn",
)


def command(recipe: Recipe, out: Path, *more: str) -> list[str]:
    """The recipe as words."""
    options = []
    for name in FIELDS:
        value, option = getattr(recipe, name), f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            options.append(option if value else f"--no-{option[2:]}")
        elif value is not None:
            options.append(f"{option}={value}")
    return [
        sys.executable,
        "-m",
        "bgn_lab",
        "run",
        "classification",
        *options,
        "--out",
        str(out),
        *more,
    ]


def torchrun(processes: int, words: list[str], *options: str) -> list[str]:
    """The same, started by torchrun."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(processes),
        *options,
        *words[1:],
    ]


def start(words: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(words: list[str], code: int = 0) -> str:
    child = start(words)
    try:
        said, _ = child.communicate(timeout=240)
    finally:
        _end(child)
    assert child.returncode == code, said
    return said


def _end(child: "subprocess.Popen[str]") -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / WEIGHTS)


def close(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return all(
        torch.allclose(one[name].float(), two[name].float(), rtol=1e-4, atol=1e-5) for name in one
    )


@pytest.fixture
def double() -> Iterator[None]:
    """Compute in float64.

    Training with BN and few images doubles a difference of one rounding every other step.
    """
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


DRIVER = (
    "import sys, torch; torch.set_default_dtype(torch.float64); "
    "from bgn_lab.cli import main; sys.exit(main())"
)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {}),
        pytest.param(2, {"norm": "bgn", "renorm": True}, marks=pytest.mark.slow),
        pytest.param(4, {"norm": "bn", "groups": None, "accumulate": 2}, marks=pytest.mark.slow),
        pytest.param(4, {"norm": "gbgn", "groups": None}, marks=pytest.mark.slow),
    ],
)
def test_processes_and_their_simulation_give_the_same_weights(
    tmp_path: Path, processes: int, changes: dict[str, Any]
) -> None:
    """Four workers train for three epochs, under torchrun and in one process.

    A worker with 16 images is something else.
    """
    recipe = replace(SMALL, limit=600, width=8, **changes)
    (tmp_path / "driver.py").write_text(DRIVER)
    words = command(recipe, tmp_path / "processes")
    said = finish(torchrun(processes, [words[0], str(tmp_path / "driver.py"), *words[3:]]))
    assert f"batch 4 for each of 4 workers, on {processes} processes" in said
    # in one process the workers run one by one, in several the workers of each in one pass
    result = experiments.run(replace(recipe, images_per_pass=1), tmp_path / "simulation")
    one, two = weights(tmp_path / "simulation"), weights(tmp_path / "processes")
    assert one["conv1.weight"].dtype == torch.float64
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-9, msg=name)
    assert result.test_accuracy > 0.2, "ten classes: it has learned"
    experiments.run(replace(recipe, simulate_workers=1, batch_size=16), tmp_path / "large batch")
    assert not close(one, weights(tmp_path / "large batch"))


@pytest.mark.usefixtures("double")
def test_workers_of_a_normalizer_without_batch_statistics_are_one_large_batch(
    tmp_path: Path,
) -> None:
    """LN sees each image alone, so how 16 images are divided does not matter.

    Four workers with 4 images, one with 16, and accumulated gradients are all the same.
    """
    recipe = replace(SMALL, norm="ln", groups=None, epochs=1)
    experiments.run(recipe, tmp_path / "workers")
    options: dict[str, dict[str, Any]] = {
        "large": {"batch_size": 16},
        "accumulated": {"accumulate": 4},
    }
    for name, changes in options.items():
        experiments.run(replace(recipe, simulate_workers=1, **changes), tmp_path / name)
        assert close(weights(tmp_path / "workers"), weights(tmp_path / name)), name


@pytest.mark.parametrize("per_pass", [1, 2, 4])
@pytest.mark.parametrize("norm", ["bn", "bgn"])
def test_running_statistics_are_those_of_the_first_worker(norm: str, per_pass: int) -> None:
    recipe = replace(SMALL, norm=norm, groups=None, lr=1e-30)
    images = data.load(recipe)
    models = [experiments.task(recipe, images).build() for _ in range(2)]
    prepare = loop.Prepare(images, recipe)
    batches = [prepare(batch) for batch in images.train.training(4, 0, 0, range(8))]
    sizes = []
    layer = next(m for m in models[0].modules() if m is models[0].bn1)
    layer.register_forward_hook(lambda _module, inputs, _output: sizes.append(len(inputs[0])))
    passes: list[Any] = [batches[i : i + per_pass] for i in range(0, 8, per_pass)]
    passes = [tuple(map(torch.cat, zip(*batch, strict=True))) for batch in passes]
    for model, workers, own in zip(models, (4, 1), (passes, batches[::4]), strict=True):
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        scaler = torch.amp.GradScaler(enabled=False)
        loop.train(
            model,
            optimizer,
            own,
            recipe,
            loop.classify,
            lambda _: 0.0,
            scaler,
            lambda *_: None,
            Workers(workers),
            per_pass=per_pass if workers > 1 else 1,
        )
    assert sizes == [4 * per_pass] * (8 // per_pass)
    for (name, one), (_, two) in zip(
        models[0].named_buffers(), models[1].named_buffers(), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6, msg=name)
    assert all(m.batch_blocks == 1 for m in models[0].modules() if hasattr(m, "batch_blocks"))
    assert models[0].bn1.num_batches_tracked == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("per_pass", [1, 2, 4])
def test_workers_are_corrected_towards_the_same_statistics(per_pass: int) -> None:
    """In every pass of a step, those from before it."""
    recipe = replace(SMALL, norm="bgn+renorm", renorm_warmup=1)
    task = experiments.task(recipe, data.load(recipe))
    model: Any = task.build()
    prepare = loop.Prepare(task.data, recipe)
    batches = [prepare(batch) for batch in task.data.train.training(4, 0, 0, range(8))]
    passes: list[Any] = [batches[i : i + per_pass] for i in range(0, 8, per_pass)]
    passes = [tuple(map(torch.cat, zip(*batch, strict=True))) for batch in passes]
    seen: list[tuple[float, int]] = []

    def see(layer: Any, inputs: Any) -> None:  # noqa: ARG001
        seen.append((float(layer.running_mean[0]), int(layer.renorm_steps)))

    model.bn1.register_forward_pre_hook(see)
    loop.train(
        model,
        torch.optim.SGD(model.parameters(), 0.0),
        passes,
        recipe,
        loop.classify,
        lambda _: 0.0,
        torch.amp.GradScaler(enabled=False),
        lambda *_: None,
        Workers(4),
        per_pass=per_pass,
    )
    of_a_step = 4 // per_pass
    first, second = set(seen[:of_a_step]), set(seen[of_a_step:])
    assert first == {(0.0, 0)}
    assert len(second) == 1
    assert second != first
    assert {steps for _, steps in second} == {1}


@given(
    share=st.integers(1, 4),
    processes=st.integers(1, 5),
    first=st.integers(0, 30),
    more=st.integers(0, 60),
)
def test_every_batch_is_somebodys(share: int, processes: int, first: int, more: int) -> None:
    everybody = [Workers(share * processes, processes, rank) for rank in range(processes)]
    found = [workers.batches(first, first + more) for workers in everybody]
    assert sorted(chain.from_iterable(found)) == list(range(first, first + more))
    assert all(own == sorted(own) for own in found)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_shares_are_the_whole(workers: int) -> None:
    source = data.load(Recipe(limit=50)).test.part(torch.arange(20))
    parts = [share(source, worker, workers) for worker in range(workers)]
    assert sum(len(part) for part in parts) == 20
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    whole, _ = next(source.evaluation(20))
    first, _ = next(parts[0].evaluation(20))
    assert torch.equal(first, whole[::workers])
    assert len(share(source.part(torch.arange(0)), workers - 1, workers)) == 0


def test_the_first_workers_share_is_reported(tmp_path: Path) -> None:
    recipe = replace(SMALL, epochs=2, median_of=2)
    result = experiments.run(recipe, tmp_path / "run")
    assert result.shard_images == 500
    assert result.images.test == 2000
    images = data.load(recipe)
    model = experiments.task(recipe, images).build()
    model.load_state_dict(weights(tmp_path / "run"))
    batches = map(loop.Prepare(images, recipe), share(images.test, 0, 4).evaluation(100))
    score = loop.evaluate(model, batches, recipe)
    last = json.loads((tmp_path / "run" / METRICS).read_text().splitlines()[-1])
    assert score.accuracy == last["shard_accuracy"]


def wait_for_epochs(folder: Path, epochs: int, child: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    path = folder / METRICS
    while not (path.exists() and len(path.read_text().splitlines()) >= epochs):
        assert child.poll() is None, child.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def trained(pid: int) -> list[int]:
    """The processes that train, below one that started them."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in listed.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--processes", "torchrun"])
def test_a_worker_that_is_killed(tmp_path: Path, how: str) -> None:
    """After SIGKILL in the second epoch, all begin again from the checkpoint.

    They end as if uninterrupted.
    """
    recipe = replace(ALIKE, limit=800, epochs=3)
    words = command(recipe, tmp_path / "killed")
    words = (
        [*words, "--processes", "2"]
        if how == "--processes"
        else torchrun(2, words, "--max-restarts", "1")
    )
    child = start(words)
    try:
        wait_for_epochs(tmp_path / "killed", 1, child)
        time.sleep(0.2)
        os.kill(trained(child.pid)[-1], signal.SIGKILL)
        said, _ = child.communicate(timeout=240)
    finally:
        _end(child)
    assert child.returncode == 0, said
    assert said.count("workers, on 2 processes") == 2, said
    if how == "--processes":
        assert "was killed by SIGKILL: all resume from the last checkpoint" in said
    experiments.run(recipe, tmp_path / "whole")
    assert close(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


@pytest.mark.slow
def test_killed_before_training_begins(tmp_path: Path) -> None:
    """The other process is ended while it waits, which is no wish of anybody's to stop."""
    recipe = replace(ALIKE, epochs=1)
    child = start(command(recipe, tmp_path / "killed", "--processes", "2"))
    try:
        deadline = time.monotonic() + 60
        while len(found := trained(child.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.0)
        os.kill(found[-1], signal.SIGKILL)
        said, _ = child.communicate(timeout=240)
    finally:
        _end(child)
    assert child.returncode == 0, said
    assert "was killed by SIGKILL: all resume" in said


@pytest.mark.slow
def test_a_killed_run_of_images_in_folders_can_go_on_at_once(tmp_path: Path) -> None:
    """Processes that decode outlive the one that trains by seconds; they must not keep its lock."""
    for part, count in (("train", 400), ("val", 20)):
        for name in ("light", "dark"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for i in range(count):
                gray = 60 + 100 * (name == "light") + i % 30
                Image.new("RGB", (64, 64), (gray, gray, gray)).save(
                    tmp_path / "data" / part / name / f"{i:04}.png"
                )
    words = [
        sys.executable,
        "-m",
        "bgn_lab",
        "run",
        "classification",
        "--data",
        str(tmp_path / "data"),
        "--image-size",
        "32",
    ]
    words += [
        "--width",
        "4",
        "--batch-size",
        "4",
        "--epochs",
        "2",
        "--decoders",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    child = start(words)
    try:
        wait_for_epochs(tmp_path / "run", 1, child)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
        assert "test accuracy" in finish(words)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_leaves_a_checkpoint_and_a_code_to_requeue_on(
    tmp_path: Path, processes: int
) -> None:
    """The signal goes to all processes, decoders too where there are any, as schedulers send it."""
    recipe = replace(ALIKE, limit=2000, epochs=2)
    words = command(recipe, tmp_path / "run", "--processes", str(processes))
    child = start(words)
    try:
        wait_for_epochs(tmp_path / "run", 1, child)
        time.sleep(0.3)
        os.killpg(child.pid, signal.SIGTERM)
        said, _ = child.communicate(timeout=120)
    finally:
        _end(child)
    assert child.returncode == REQUEUE, said
    assert "Stopped. Run the same command to resume." in said
    content = (tmp_path / "run" / checkpoint.NAME).read_bytes()
    about, _ = checkpoint._read(content, tmp_path)
    assert about["progress"]["epoch"] == 1
    assert 0 < about["progress"]["step"] <= 225
    finish(words)
    experiments.run(recipe, tmp_path / "whole")
    assert close(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_other_images_are_refused() -> None:
    workers = Workers(2, 2, 1)
    other = {"train": (3, "abc")}
    workers.broadcast = lambda _value: other  # type: ignore[method-assign, assignment, misc]
    with pytest.raises(
        ValueError,
        match="process 1 has other images than the first one: .*'def'.* instead of .*'abc'",
    ):
        workers.check_same("images", {"train": (3, "def")})


@pytest.mark.parametrize(
    ("changes", "wanted", "message"),
    [
        (
            {"simulate_workers": 3},
            2,
            "simulate_workers=3 cannot be spread evenly over 2 processes; expected a multiple of 2",
        ),
        ({"device": "cuda:1"}, 2, "device='cuda:1' with 2 processes; expected cpu, or cuda"),
    ],
)
def test_workers_that_cannot_be(changes: dict[str, Any], wanted: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_workers(replace(SMALL, **changes), wanted)


def test_as_many_workers_as_processes_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_workers(Recipe(), 4).simulate_workers == 4
    assert resolve_workers(Recipe(simulate_workers=8), 4).simulate_workers == 8
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert resolve_workers(Recipe()).simulate_workers == 2
    with pytest.raises(ValueError, match="processes=3, but torchrun started 2"):
        resolve_workers(Recipe(), 3)


def test_bad_input_is_said_once(tmp_path: Path) -> None:
    said = finish(command(replace(SMALL, limit=10), tmp_path / "run", "--processes", "2"), code=2)
    assert said.count("error:") == 1
    assert "exceeds the 9 training images" in said


def test_the_papers_preset() -> None:
    preset = experiments.get("classification").presets["paper-imagenet"].recipe
    for size in paper.BATCH_SIZES:
        recipe = replace(preset, batch_size=size)
        assert recipe.rate == pytest.approx(paper.LEARNING_RATES[size])
    assert (preset.epochs, preset.milestones, preset.schedule, preset.median_of) == (
        120,
        (30, 60, 90),
        "steps",
        5,
    )
    assert (
        preset.model,
        preset.simulate_workers,
        preset.decay,
        preset.validation,
        preset.warmup,
    ) == ("resnet50", 8, 1e-4, 0, 0)
    model = experiments.task(replace(preset, batch_size=2), data.load(Recipe())).build()
    affine = [(m.weight, m.bias) for m in model.modules() if hasattr(m, "num_groups")]
    assert len(affine) == 53
    assert all(bool((w == 1).all()) and bool((b == 0).all()) for w, b in affine)
    assert {m.num_groups for m in model.modules() if hasattr(m, "num_groups")} == {1}
    assert isinstance(model, nn.Module)
