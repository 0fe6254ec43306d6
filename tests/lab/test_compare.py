"""Grids of `bgn compare`: which runs a command makes."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bgn.factory import NAMES
from bgn_lab import cli, experiments, paper
from bgn_lab.commands.compare import parse
from bgn_lab.recipe import Recipe


def recipes(*words: str) -> list[Recipe]:
    return parse(list(words)).recipes()


def test_by_default_all_normalizers_and_partners_at_two_batch_sizes_with_three_seeds() -> None:
    found = recipes()
    assert len(found) == 72
    assert Counter(r.batch_size for r in found) == {2: 36, 8: 36}
    in_turn = [0] * 24 + [1] * 24 + [2] * 24
    assert [r.seed for r in found] == in_turn, "an early table is a whole one"
    rows = {(r.norm, r.groups, r.standardize) for r in found}
    assert rows == {
        *((norm, None, False) for norm in NAMES),
        ("bgn", "auto", False),
        ("bn", None, True),
        ("gn", None, True),
        ("bgn", None, True),
        ("bgn", "auto", True),
    }


@pytest.mark.parametrize("size", ["laptop", "paper"])
def test_the_papers_table_1(size: str) -> None:
    found = recipes("--preset", f"{size}-table-1", "--root", ".")
    assert {(r.batch_size, r.groups) for r in found} == {
        (n, G) for n in (128, 2) for G in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
    }
    assert len(found) == 20
    assert {(r.norm, r.simulate_workers) for r in found} == {("bgn", 8)}


@pytest.mark.parametrize("size", ["laptop", "paper"])
def test_the_papers_table_2(size: str) -> None:
    found = recipes("--preset", f"{size}-table-2", "--root", ".")
    assert len(found) == 49
    assert {r.simulate_workers for r in found} == {paper.WORKERS}
    for r in found:
        assert r.rate == pytest.approx(paper.LEARNING_RATES[r.batch_size])
        value = experiments.get("classification").paper_value(r, "test accuracy")
        assert value == paper.IMAGENET.row(r.norm)[str(r.batch_size)]


def test_paper_tables_need_imagenet() -> None:
    with pytest.raises(ValueError, match="preset='paper-imagenet' needs --root"):
        recipes("--preset", "paper-table-2")


def test_every_option_of_a_run_holds_for_all() -> None:
    words = "--norms bn bgn --batch-sizes 4 --groups auto 1 --seeds 1 --simulate-workers 4"
    found = recipes(*words.split(), "--schedule", "steps", "--norm-momentum", "0.2")
    assert [(r.norm, r.groups, r.instances) for r in found] == [
        ("bn", None, None), ("bgn", "auto", None), ("bgn", 1, None),
    ]  # fmt: skip
    for r in found:
        assert (r.simulate_workers, r.norm_momentum) == (4, 0.2)


def test_what_suits_the_shipped_images_does_not_limit_your_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=np.zeros((4, 8, 8, 3), np.uint8))
    found = recipes("--data", str(tmp_path / "mine.npz"))
    assert {(r.limit, r.stride) for r in found} == {(None, None)}
    found = recipes("--data", str(tmp_path / "mine.npz"), "--limit", "100")
    assert {(r.limit, r.stride) for r in found} == {(100, None)}
    assert {(r.limit, r.stride) for r in recipes()} == {(3600, 2)}
    one, shipped = found[0], recipes()[0]
    assert (one.epochs, one.simulate_workers) == (Recipe().epochs, 1)
    assert (shipped.epochs, shipped.simulate_workers) == (7, 8)

    words = ["--data", "cifar10", "--stride", "2", "--limit", "3600"]  # typed, not the preset's
    assert {(r.limit, r.stride) for r in recipes(*words)} == {(3600, 2)}


@pytest.mark.parametrize(
    ("words", "milestones"),
    [
        ("--experiment adversarial --epochs 12", (6, 10)),
        ("--experiment adversarial --epochs 1", (1, 1)),
        ("--experiment adversarial --epochs 12 --milestones 3 5", (3, 5)),
        ("--preset paper-table-2 --root . --epochs 60", (15, 30, 45)),
        ("--preset paper-table-2 --root . --epochs 60 --milestones 30 60 90", (30, 60, 90)),
        ("--schedule steps --epochs 100", (30, 60, 90)),
    ],
)
def test_milestones_that_nobody_typed_keep_their_share_of_the_epochs(
    words: str, milestones: tuple[int, ...]
) -> None:
    assert {r.milestones for r in recipes(*words.split())} == {milestones}


def test_tasks_of_adaptation_have_columns_with_and_without() -> None:
    found = recipes("--experiment", "adaptation", "--norms", "bn", "--seeds", "1")
    assert [(r.place, r.variant) for r in found] == [
        ("plain-textured", "source only"), ("plain-textured", ""),
    ]  # fmt: skip


def test_the_papers_settings_of_each_task(tmp_path: Path) -> None:
    for norm in ("bn", "bgn"):
        (tmp_path / f"{norm}.pth").write_bytes(norm.encode())
    weights = str(tmp_path / "{norm}.pth")
    words = ["--experiment", "adaptation", "--preset", "paper", "--data", str(tmp_path)]
    found = recipes(*words, "--weights", weights, "--norms", "bn", "bgn", "--seeds", "1")
    assert len(found) == 24
    adapted = {(r.norm, r.place): r for r in found if not r.variant}
    assert {place: r.usual_groups for (norm, place), r in adapted.items() if norm == "bgn"} == (
        paper.ADAPTATION_GROUPS
    )
    assert adapted["bgn", "ad"].identity()["trust"] == 0.05, "a preset does not fix it"
    assert adapted["bgn", "da"].identity()["trust"] == 1.0
    codes = {norm: r.identity()["weights_code"] for (norm, _), r in adapted.items()}
    assert codes["bn"] != codes["bgn"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--experiment nas-train --preset paper-manas", "needs --genotype"),
        (
            "--experiment nas-train --preset paper-manas --genotype DARTS_V2",
            "genotype='DARTS_V2' is not meant by it",
        ),
        ("--experiment darts-search", "experiment='darts-search' is a search"),
        ("--preset paper-table-3", "did you mean 'paper-table-"),
        ("--experiment adaptation --preset paper", "needs --data and --weights"),
        ("--seeds 0", "seeds=0 is not positive"),
    ],
)
def test_refused_before_anything_runs(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipes(*words.split())


MINE = """
from torch import nn

class Norm(nn.Module):  # of the whole batch, and of no kind that the library knows
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(nn.init.ones_(__import__("torch").empty(channels)))
        self.seen = set()

    def forward(self, x):
        if self.training:
            assert len(x) == 8, f"{len(x)} images of several workers"
        return (x - x.mean()) / x.std() * self.weight.view(1, -1, 1, 1)
"""


def test_your_own_normalizer_trains_by_worker_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_norms.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    words = ["--norms", "bn", "my_norms:Norm", "--batch-sizes", "8", "--simulate-workers", "2"]
    words += ["--epochs", "1", "--seeds", "1", "--limit", "200", "--width", "4", "--onednn"]
    assert cli.main(["compare", *words, "--out", "out"]) == 0
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| my_norms:Norm |" in table
    assert "my_norms:Norm" in capsys.readouterr().out
