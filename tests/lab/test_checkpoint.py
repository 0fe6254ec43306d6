"""A run that is stopped at any moment and resumed ends as one that was not.

Bad checkpoints are refused and left alone.
"""

import errno
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bgn_lab import experiments
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.system.signals import Interrupted
from bgn_lab.training import checkpoint
from bgn_lab.training.record import METRICS
from bgn_lab.training.run import WEIGHTS, Watcher

# with convolutions that are the same in every run
RECIPE = Recipe(
    norm="bgn", groups=4, width=4, limit=200, batch_size=8, epochs=3, lr=0.2, onednn=True
)


def stop_in(epoch: int, at: int = 5) -> Watcher:
    """What interrupts a run in the middle of an epoch."""

    def step(now: int, step: int) -> None:
        if (now, step) == (epoch, at):
            raise Interrupted

    return Watcher(step=step)


def same(a: Path, b: Path) -> None:
    """The runs in two folders ended alike, to the bit."""
    one, two = (load_file(folder / WEIGHTS) for folder in (a, b))
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
    timeless = [
        [
            {k: v for k, v in json.loads(line).items() if "second" not in k}
            for line in (folder / METRICS).read_text().splitlines()
        ]
        for folder in (a, b)
    ]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize(
    "changes",
    [{}, {"accumulate": 2, "nesterov": True, "width": 8, "channels_last": True}, {"amp": True}],
    ids=str,
)
def test_resumed_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = replace(RECIPE, **changes)
    experiments.run(recipe, tmp_path / "whole")
    for epoch in (0, 1, 2):
        with pytest.raises(Interrupted):
            experiments.run(recipe, tmp_path / "pieces", stop_in(epoch))
    result = experiments.run(recipe, tmp_path / "pieces")
    same(tmp_path / "whole", tmp_path / "pieces")
    assert result.epochs == 3
    assert not (tmp_path / "pieces" / checkpoint.NAME).exists()


def test_tied_weights_are_stored() -> None:
    weight = torch.arange(4.0)
    found = checkpoint.separate({"one": weight, "other": weight, "part": weight[1:]})
    assert torch.equal(found["other"], weight)
    assert torch.equal(found["part"], weight[1:])
    assert len(checkpoint.encode(found, {})) > 0


def test_goes_on_within_the_epoch(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        experiments.run(RECIPE, tmp_path, stop_in(1))
    seen: list[tuple[int, int]] = []
    experiments.run(RECIPE, tmp_path, Watcher(step=lambda epoch, step: seen.append((epoch, step))))
    assert seen[0] == (1, 6), "five steps of the second epoch were done"


def test_checkpoints_within_the_epoch(tmp_path: Path) -> None:
    """Whoever is killed after one goes on from there."""
    recipe, seen = replace(RECIPE, save_every=1e-9), []

    def look(epoch: int, step: int) -> None:
        if (epoch, step) == (1, 7):
            raise KeyboardInterrupt  # as if killed: nothing is written any more

    with pytest.raises(KeyboardInterrupt):
        experiments.run(recipe, tmp_path / "killed", Watcher(step=look))
    experiments.run(
        recipe, tmp_path / "killed", Watcher(step=lambda epoch, step: seen.append((epoch, step)))
    )
    assert seen[0] == (1, 7), "six steps were saved, the seventh was not"
    experiments.run(recipe, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize(("seed", "times"), [(0, 2), pytest.param(1, 3, marks=pytest.mark.slow)])
def test_killed_at_any_moment(tmp_path: Path, seed: int, times: int) -> None:
    """kill -9, again and again, at moments that a generator draws.

    Some are while files are written.
    """
    recipe = replace(RECIPE, limit=400, epochs=times + 1)
    draws = torch.Generator().manual_seed(seed)
    options = [
        f"--{name.replace('_', '-')}={getattr(recipe, name)}"
        for name in ("norm", "groups", "width", "limit", "batch_size", "epochs", "lr")
    ]
    command = [
        sys.executable,
        "-m",
        "bgn_lab",
        "run",
        "classification",
        *options,
        "--onednn",
        "--out",
        str(tmp_path / "killed"),
    ]
    kills = 0
    for _ in range(times):
        child = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        seen = len(_lines(tmp_path / "killed"))
        deadline = time.monotonic() + 120
        while (
            len(_lines(tmp_path / "killed")) == seen
            and child.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.005)
        time.sleep(float(torch.rand((), generator=draws)) * 0.1)
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        assert child.stderr is not None
        child.stderr.close()
    assert kills > 0
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    experiments.run(recipe, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed").glob(".*")), "no drafts of files are left"


def _lines(folder: Path) -> list[str]:
    return (folder / METRICS).read_text().splitlines() if (folder / METRICS).exists() else []


def _interrupted(folder: Path) -> Path:
    with pytest.raises(Interrupted):
        experiments.run(RECIPE, folder, stop_in(1))
    return folder / checkpoint.NAME


def test_foreign_checkpoint(tmp_path: Path) -> None:
    path = _interrupted(tmp_path / "run")
    mine = path.read_bytes()
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="is no checkpoint of this program"):
        experiments.run(RECIPE, tmp_path / "run")
    other = replace(RECIPE, lr=0.1)
    with pytest.raises(Interrupted):
        experiments.run(other, tmp_path / "other", stop_in(1))
    path.write_bytes((tmp_path / "other" / checkpoint.NAME).read_bytes())
    with pytest.raises(ValueError, match="belongs to another run \\(lr=0.1 there, 0.2 here\\)"):
        experiments.run(RECIPE, tmp_path / "run")
    path.write_bytes(mine)
    with pytest.raises(ValueError, match="holds another run \\(lr=0.2 there, 0.1 here\\)"):
        experiments.run(other, tmp_path / "run")
    experiments.run(RECIPE, tmp_path / "run")


def test_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear reader")
    (tmp_path / ".thesis.part").write_text("not ours")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        experiments.run(RECIPE, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.tex", ".thesis.part"}


def test_a_run_killed_before_it_began(tmp_path: Path) -> None:
    """Between the first two files, and while a third was being written."""
    (tmp_path / "about.json").write_text("{}")
    (tmp_path / ".recipe.json.123.part").write_text('{"data": ')
    (tmp_path / ".about.json.123.part").write_text("{")
    experiments.run(replace(RECIPE, epochs=1), tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_two_at_the_same_time(tmp_path: Path) -> None:
    def step(epoch: int, step: int) -> None:
        if (epoch, step) == (1, 1):
            experiments.run(RECIPE, tmp_path / "run")

    with pytest.raises(ValueError, match="is being worked on by another process"):
        experiments.run(RECIPE, tmp_path / "run", Watcher(step=step))
    experiments.run(RECIPE, tmp_path / "run")
    experiments.run(RECIPE, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "run")


def test_drafts_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    draft = _interrupted(tmp_path / "run").with_name(".checkpoint.safetensors.123.part")
    draft.write_bytes(b"half")
    experiments.run(RECIPE, tmp_path / "run")
    assert not draft.exists()


def test_metrics_that_went_missing(tmp_path: Path) -> None:
    _interrupted(tmp_path / "run")
    (tmp_path / "run" / METRICS).write_text("")
    with pytest.raises(ValueError, match="has 0 epochs, the checkpoint 1"):
        experiments.run(RECIPE, tmp_path / "run")


def _stored(folder: Path) -> tuple[bytes, dict[str, Any], dict[str, torch.Tensor]]:
    """A checkpoint of a small model with momentum: its bytes, and what they hold."""
    model, optimizers = _small()
    model(torch.randn(4, 3)).sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()
    progress = checkpoint.Progress(1, 2, plan={"labels": torch.arange(3)})
    checkpoint.store(folder / checkpoint.NAME, RECIPE, model, optimizers, progress)
    content = (folder / checkpoint.NAME).read_bytes()
    return content, *checkpoint._read(content, folder)


def _small() -> tuple[nn.Module, dict[str, torch.optim.Optimizer]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    first, last = list(model[:2].parameters()), list(model[2].parameters())
    optimizers: dict[str, torch.optim.Optimizer] = {
        "optimizer": torch.optim.SGD(first, 0.1, momentum=0.9, fused=True),
        "optimizer_other": torch.optim.Adam(last, 0.1),
    }
    return model, optimizers


def _refused(content: bytes, message: str) -> None:
    """The bytes are refused, and neither the model nor the optimizers change."""
    model, optimizers = _small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        checkpoint.restore(content, Path("run") / checkpoint.NAME, RECIPE, model, optimizers)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(optimizer.state_dict()["state"] for optimizer in optimizers.values())


def test_a_whole_checkpoint_is_restored(tmp_path: Path) -> None:
    content, _, tensors = _stored(tmp_path)
    model, optimizers = _small()
    progress = checkpoint.restore(content, tmp_path, RECIPE, model, optimizers)
    assert (progress.epoch, progress.step) == (1, 2)
    assert torch.equal(progress.plan["labels"], torch.arange(3))
    again = tmp_path / "again"
    checkpoint.store(again, RECIPE, model, optimizers, progress)
    _, restored = checkpoint._read(again.read_bytes(), again)
    assert restored.keys() == tensors.keys()
    assert all(torch.equal(restored[name], tensors[name]) for name in tensors)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    content, _, _ = _stored(tmp_path)
    draws = torch.Generator().manual_seed(0)
    places = torch.randint(len(content), (600,), generator=draws).tolist()
    for place in {*range(64), *places}:
        bit = 1 << place % 8
        damaged = content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
        with pytest.raises(ValueError, match="is damaged|is no checkpoint"):
            checkpoint._read(damaged, Path("checkpoint"))
    place = len(content) - 9  # in the tensors
    _refused(content[:place] + b"\x00\xff" + content[place + 2 :], "does not match its hash")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_every_shorter_file_is_noticed(tmp_path: Path, share: float) -> None:
    content, _, _ = _stored(tmp_path)
    _refused(content[: int(share * len(content))], "is damaged")
    _refused(content + b"\x00", "is damaged")


def test_every_missing_tensor_is_noticed(tmp_path: Path) -> None:
    """Even where the hash is right: the file was written so."""
    _, about, tensors = _stored(tmp_path)
    assert {"optimizer.0.momentum_buffer", "optimizer_other.1.exp_avg"} < tensors.keys()
    for name in tensors:
        rest = {other: tensor for other, tensor in tensors.items() if other != name}
        _refused(checkpoint.encode(rest, about), f"{re.escape(name)} is missing.*begin this run")
    _refused(checkpoint.encode({**tensors, "model.x": torch.ones(1)}, about), "x is unexpected")


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (
            "optimizer.0.momentum_buffer",
            torch.zeros(2, 2),
            r"has shape \(2, 2\), expected \(4, 3\)",
        ),
        ("optimizer.1.momentum_buffer", torch.zeros(()), r"has shape \(\), expected \(4,\)"),
        ("optimizer.0.momentum_buffer", torch.zeros(4, 3).half(), "has dtype torch.float16"),
        ("optimizer_other.0.step", torch.zeros(3), r"has shape \(3,\), expected \(\)"),
        ("model.0.weight", torch.zeros(4, 4), r"has shape \(4, 4\), expected \(4, 3\)"),
        ("model.1.running_mean", torch.zeros(4).double(), "has dtype torch.float64"),
    ],
)
def test_every_other_shape_is_noticed(
    tmp_path: Path, name: str, other: torch.Tensor, message: str
) -> None:
    _, about, tensors = _stored(tmp_path)
    _refused(checkpoint.encode({**tensors, name: other}, about), f"{re.escape(name)} {message}")


def test_other_groups_of_parameters_are_noticed(tmp_path: Path) -> None:
    _, about, tensors = _stored(tmp_path)
    groups = about["optimizer"]["groups"]
    groups[0] = {**groups[0], "params": groups[0]["params"][:-1]}
    _refused(checkpoint.encode(tensors, about), "optimizer has other groups of parameters")
    del about["optimizer_other"]
    _refused(checkpoint.encode(tensors, about), "optimizer_other is missing")


def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the file, and the same call goes on from the last whole checkpoint."""
    recipe, path = replace(RECIPE, save_every=1e-9), tmp_path / "run" / checkpoint.NAME
    write, before = Path.open, b""

    class Full:
        """A file on a disk that has room for a few bytes."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, content: bytes) -> None:
            self.file.write(content[:100])
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(self: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        file = write(self, mode, *rest, **more)
        return Full(file) if {*mode} & {*"wx"} and checkpoint.NAME in self.name else file

    def step(epoch: int, step: int) -> None:
        nonlocal before
        if (epoch, step) == (1, 5):
            before = path.read_bytes()
            monkeypatch.setattr(Path, "open", full)

    with pytest.raises(OSError, match="checkpoint.safetensors cannot be written: No space left"):
        experiments.run(recipe, tmp_path / "run", Watcher(step=step))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert not list((tmp_path / "run").glob(".*"))
    experiments.run(recipe, tmp_path / "run")
    experiments.run(recipe, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "run")
