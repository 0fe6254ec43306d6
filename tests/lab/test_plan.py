"""What a comparison would cost: sums that can be done by hand, and the command as people use it."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from bgn import convert_sync
from bgn_lab import cli, paper
from bgn_lab.commands import plan
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.models import network
from bgn_lab.planning import traffic
from bgn_lab.planning.costs import Setting, cost, makespan
from bgn_lab.planning.devices import Device, fit, parse
from bgn_lab.planning.measure import candidates
from bgn_lab.planning.traffic import Link

GPU = ["--times", "gpu:rate=1000,overhead=20", "--price", "2.5", "--decode-rate", "300"]
PAPER = ["--preset", "paper-table-2", "--processes", "8"]


def recipe(**values: object) -> Recipe:
    """Four workers, ten epochs."""
    usual = {"batch_size": 4, "epochs": 10, "median_of": 3, "simulate_workers": 4, "norm": "bn"}
    return Recipe(**{**usual, **values})  # type: ignore[arg-type]


def test_a_run_by_hand() -> None:
    """4 images a worker, 4 workers on 2 devices: 62 steps an epoch.

    A step has two turns of 10 + 4 / 0.2 = 30 ms.
    """
    setting = Setting(images=1000, validation=50, test=100, processes=2)
    device = Device("x", rate=200, overhead=0.010, ratios={"gn+ws": 1.5}, price=7)
    plain = cost(recipe(), device, setting)
    slower = cost(recipe(norm="gn", standardize=True), device, setting)
    assert plain.steps == 62
    assert plain.step == pytest.approx(0.060)
    tests = (10 * 50 + 3 * 100) / (2 * 3 * 200)
    assert plain.hours == pytest.approx((10 * 62 * 0.060 + tests) / 3600)
    assert plain.device_hours == pytest.approx(2 * plain.hours)
    assert plain.price == pytest.approx(7 * 2 * plain.hours)
    assert plain.images_per_second == pytest.approx(16 / 0.060)
    assert slower.hours == pytest.approx((10 * 62 * 0.090 + tests) / 3600)
    sent = cost(
        recipe(), device, Setting(1000, parameters=25_557_032, processes=2, link=Link(1e-3))
    )
    assert sent.step == pytest.approx(0.060 + 1e-3 * 5), "gradients in five collectives"


def test_accumulated_batches_are_one_step() -> None:
    found = cost(recipe(simulate_workers=1, accumulate=5), Device("x", 100), Setting(1000))
    assert (found.steps, found.step) == (1000 // 20, pytest.approx(5 * 0.04))


@pytest.mark.parametrize("P", [1, 2, 4])
def test_shares_of_the_workers(P: int) -> None:
    found = cost(recipe(), Device("x", 100), Setting(1000, test=50, processes=P))
    alone = cost(recipe(), Device("x", 100), Setting(1000, test=50))
    assert found.step == pytest.approx(alone.step / P)
    assert found.device_hours == pytest.approx(alone.device_hours), (
        "without traffic, devices cost the same, however many"
    )


def test_runs_side_by_side() -> None:
    assert makespan([1] * 7, jobs=3) == 3
    assert makespan([1, 1, 5], jobs=2) == 6, "in their order, as engines start them"
    assert makespan([2], jobs=9) == 2


@pytest.mark.parametrize(
    ("norm", "groups"),
    [("bn", None), ("gbgn", None), ("bgn", 512), ("bgn", 1), ("gn", None), ("pn", None)],
)
def test_traffic_by_another_count(norm: str, groups: int | None) -> None:
    """The buffers of a network that is converted as a whole have a number per group."""
    from bgn_lab import norms

    P = 4
    with torch.device("meta"):
        model = network("resnet18", norms.constructor(Recipe(norm=norm, groups=groups)), 10, 3)
    before = set(model.modules())
    layers = [layer for layer in convert_sync(model).modules() if layer not in before]
    numbers = [layer.running_mean.numel() for layer in layers]
    found = traffic.statistics(numbers, P)
    assert found.collectives == (0 if norm in ("gn", "pn") else 40)
    sent = sum(4 * 3 * n * (P - 1) + 4 * 2 * n * 2 * (P - 1) / P for n in numbers)
    assert found.bytes == pytest.approx(sent)
    assert traffic.gradients(1000, 1) == traffic.Traffic()


def test_a_line_through_times() -> None:
    assert fit({b: 0.02 + b / 50 for b in (1, 2, 8)}) == pytest.approx((0.02, 50))
    assert fit({2: 0.1, 8: 0.5}) == pytest.approx((0, 18.22), rel=1e-3), "no negative overhead"
    assert fit({2: 0.1, 8: 0.05}) == (0.0, 160.0), "no negative slope"
    device = parse("x:8=90,2=30,bgn+ws=1.2")
    assert (device.step(2), device.step(8), device.step(4)) == pytest.approx((0.03, 0.09, 0.05))
    assert [device.exact(b) for b in (2, 4, 8)] == [True, False, True]
    assert device.step(8, "bgn+ws") == pytest.approx(0.108)
    assert parse(device.spec) == device
    given = parse("x:rate=100,overhead=3")
    assert parse(given.spec) == given


def test_what_is_measured() -> None:
    assert candidates([128, 2]) == [2, 4, 8, 16, 32, 64, 128]
    assert candidates([1]) == [1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--norms", "bm"], "--norms 'bm' is not known"),
        (["--norms", "bn+wz"], "has the partner 'wz'"),
        (["--batch-sizes", "0"], "--batch-sizes 0 is not positive"),
        (["--model", "resnet51"], "'resnet51'"),
        (["--epochs", "0"], "--epochs 0 is not positive"),
        (["--jobs", "0"], "--jobs 0 is not positive"),
        (["--experiment", "fewshot"], "--experiment 'fewshot' is not planned for; expected class"),
        (["--experiment", "darts-search"], "is a search"),
        ([*PAPER[:2], "--processes", "3"], "--processes 3 does not divide --simulate-workers 8"),
        (["--limit", "20"], "exceeds the 18 training images"),
        (["--price", "0"], "--price 0.0 is out of range; expected a number above 0"),
        (["--bandwidth-gb", "-1"], "--bandwidth-gb -1.0 is out of range"),
        (["--decode-rate", "nan"], "--decode-rate nan is out of range"),
        (["--times", "x"], "--times 'x' is not understood; expected NAME:rate="),
        (["--times", "x:speed=1"], "'speed' is not known; accepted: rate, overhead, price"),
        (["--times", "x:rate=fast"], "rate='fast' is out of range; expected a number above 0"),
        (["--times", "x:rate=1,overhead=-2"], "overhead='-2' is out of range"),
        (["--times", "x:rate=1,rate=2"], "'rate' is given twice"),
        (["--times", "x:gn=2"], "needs rate, perhaps with overhead, or step times"),
        (["--times", "x:rate=1,2=5"], "needs rate, perhaps with overhead, or step times"),
        (["--times", "x:0=5"], "needs rate, perhaps with overhead, or step times"),
        (["--times", "x:2=5,overhead=1"], "needs rate, perhaps with overhead, or step times"),
        (["--times", "x:rate=1,bn=1"], "ratios are to bn"),
        (["--data", "nowhere"], "'nowhere'"),
        (["--preset", "paper-table-2", "--root", "nowhere"], "nowhere"),
        (["--out", "runs"], "--out"),
    ],
)
def test_bad_words(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "measure", None)  # nothing is measured before input is refused
    assert cli.main(["plan", *words]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_only_the_plans_own_words_are_taken_out() -> None:
    words = ["--jobs", "3", "--norms", "bn", "--price=2", "--times", "x:rate=1", "--seeds", "2"]
    assert plan._compared(words) == ["--norms", "bn", "--seeds", "2"]
    found = plan.parse(words)
    assert (found.where.jobs, found.where.price, found.comparison.grid.seeds) == (3, 2.0, 2)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_papers_plan_on_a_given_device(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    link = ["--latency-us", "30", "--bandwidth-gb", "10"]
    assert cli.main(["plan", *PAPER, *GPU, *link]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text, "nothing is cut off"
    rows = {
        int(row[0]): row for row in re.findall(r"^ (\d+) +(\d+) +([\d,]+) +([\d.]+)", text, re.M)
    }
    assert sorted(rows) == sorted(paper.BATCH_SIZES)
    for size, (_, runs, steps, step) in rows.items():
        sent = 2 * 7 / 8 * 4 * 25_557_032 / 10e9 + 5 * 30e-6
        assert (runs, steps) == ("7", f"{1_281_167 // (8 * size):,}")
        assert float(step) == pytest.approx(1e3 * (0.020 + size / 1000 + sent), rel=5e-3)
    total = re.search(r"49 runs, ([\d,]+) device-hours", text)
    assert total is not None
    hours = (
        7
        * 8
        * sum(
            (120 * (1_281_167 // (8 * b)) * (0.020 + b / 1000 + sent) + 5 * 50_000 / 8 / 3000)
            / 3600
            for b in paper.BATCH_SIZES
        )
    )
    assert float(total[1].replace(",", "")) == pytest.approx(hours, rel=1e-3)
    assert f"cost {2.5 * hours:,.0f} at 2.50 an hour" in " ".join(text.split())
    assert "~" not in text


def test_measured_and_planned_with_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real steps of a real network on images of one's own, and the words that they become."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    draws = np.random.default_rng(0)
    x = draws.integers(0, 255, (80, 8, 8, 3), np.uint8)
    np.savez("own.npz", x_train=x, y_train=np.arange(80) % 2, x_test=x, y_test=np.arange(80) % 2)
    words = ["plan", "--data", "own.npz", "--width", "4", "--epochs", "3", "--validation", "0"]
    words += [
        "--norms",
        "bn",
        "bgn+ws",
        "--batch-sizes",
        "2",
        "8",
        "--groups",
        "paper",
        "--seeds",
        "2",
    ]
    words += ["--simulate-workers", "2", "--jobs", "2", "--price", "2"]
    assert cli.main([*words, "--seconds", "4"]) == 0
    text = capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["own.npz"], "nothing is kept"
    spec = re.search(r"^--times (this-machine:2=[\d.e-]+.*,bgn\+ws=[\d.]+)$", text, re.M)
    assert spec is not None
    assert 0.1 < parse(spec[1]).ratios["bgn+ws"] < 10
    assert "8 runs" in text
    assert "on 2 devices with 2 jobs of 1 process" in " ".join(text.split())
    monkeypatch.setattr(plan, "measure", None)
    assert cli.main([*words, "--times", spec[1]]) == 0
    again = capsys.readouterr().out

    def numbers(text: str) -> list[float]:
        rows = " ".join(re.findall(r"^ [28] .*$", text, re.M))
        return [float(word.strip("~").replace(",", "")) for word in rows.split()]

    assert numbers(again) == pytest.approx(numbers(text), rel=0.01)
