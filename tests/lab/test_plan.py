"""What a grid would cost: sums that can be done by hand, and the command as people use it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bgn import convert_sync
from bgn_lab import cli, paper
from bgn_lab.planning import traffic
from bgn_lab.planning.costs import Setting, cost, total
from bgn_lab.planning.devices import Device, fit, parse
from bgn_lab.planning.grid import Run, distinct, own_grid, paper_grid
from bgn_lab.planning.measure import candidates
from bgn_lab.planning.network import Network
from bgn_lab.planning.traffic import Link

GPU = ["--device", "gpu:rate=1000,overhead=20,price=2.5", "--decode-rate", "300"]
TINY = [
    "--model",
    "resnet8",
    "--width",
    "4",
    "--image-size",
    "16",
    "--classes",
    "10",
    "--images",
    "640",
    "--test-images",
    "64",
]
TINY += ["--epochs", "2", "--workers", "2", "--on", "cpu", "--seconds", "6"]


def test_the_papers_grid() -> None:
    grid = paper_grid()
    runs = distinct(grid)
    assert [len(part) for part in grid.values()] == [49, 20]
    assert len(runs) == len(set(runs)) == 67
    assert {run.norm for run in runs} == set(paper.NORMALIZERS)
    assert {
        run.batch_size: run.G for run in grid["table 2, batch sizes"] if run.norm == "bgn"
    } == paper.GROUPS
    both = set.intersection(*(set(part) for part in grid.values()))
    assert both == {Run("bgn", 512, 128), Run("bgn", 1, 2)}
    assert len(distinct(paper_grid(seeds=3))) == 3 * 67


def test_the_papers_learning_rates() -> None:
    assert {
        size: pytest.approx(Setting().rate(size)) for size in paper.BATCH_SIZES
    } == paper.LEARNING_RATES


def test_a_run_by_hand() -> None:
    """4 images a worker, 4 workers on 2 devices: 62 steps an epoch.

    A step has two turns of 10 + 4 / 0.2 = 30 ms.
    """
    setting = Setting(
        Network("resnet8"), 1000, 50, 100, epochs=10, median_of=3, workers=4, devices=2
    )
    device = Device("x", rate=200, overhead=0.010, ratios={"gn": 1.5}, test_rate=400, price=7)
    plain, slower = (
        cost(Run("bn", None, 4), device, setting),
        cost(Run("gn", None, 4), device, setting),
    )
    assert plain.steps == 62
    assert plain.step == pytest.approx(0.060)
    seconds = 10 * 62 * 0.060 + (10 * 50 + 3 * 100) / 400 / 2
    assert plain.hours == pytest.approx(seconds / 3600)
    assert plain.device_hours == pytest.approx(2 * seconds / 3600)
    assert plain.price == pytest.approx(7 * 2 * seconds / 3600)
    assert plain.images_per_second == pytest.approx(16 / 0.060)
    assert slower.hours == pytest.approx(1.5 * plain.hours)
    both = total([plain, slower])
    assert (both.runs, both.hours, both.exact) == (2, pytest.approx(2.5 * plain.hours), True)
    link = Link(latency=1e-3)
    sent = cost(Run("bn", None, 4), device, replace(setting, link=link))
    synced = cost(Run("bn", None, 4), device, replace(setting, link=link, sync=True))
    assert sent.step == pytest.approx(0.060 + 1e-3 * setting.gradients().collectives)
    assert synced.step == pytest.approx(
        sent.step + 1e-3 * 2 * 2 * len(setting.network.synchronized(Run("bn", None, 4)))
    )


def test_testing_takes_a_third_unless_it_is_known() -> None:
    assert Device("x", rate=100).testing() == pytest.approx(1 / 300)
    assert Device("x", rate=100, test_rate=150, ratios={"pn": 2}).testing("pn") == pytest.approx(
        2 / 150
    )


@pytest.mark.parametrize("P", [1, 2, 4, 8])
def test_shares_of_the_workers(P: int) -> None:
    setting = Setting(workers=8, devices=P)
    found, alone = (cost(Run("bn", None, 2), Device("x", 100), s) for s in (setting, Setting()))
    assert setting.turns == 8 // P
    assert found.step == pytest.approx(8 / P * alone.step)
    assert found.device_hours == pytest.approx(alone.device_hours), (
        "without traffic, devices cost the same, however many"
    )


@pytest.mark.parametrize(
    ("norm", "G"),
    [("bn", None), ("gbgn", None), ("bgn", 512), ("bgn", 1), ("gn", None), ("pn", None)],
)
def test_traffic_by_another_count(norm: str, G: int | None) -> None:
    """The buffers of a network that is converted as a whole have a number per group."""
    network, P = Network("resnet18"), 4
    run = Run(norm, G, 2)
    with torch.device("meta"):
        model = network.build(run)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    before = set(model.modules())
    layers = [layer for layer in convert_sync(model).modules() if layer not in before]
    found = Setting(network, workers=P, devices=P)
    numbers = [layer.running_mean.numel() for layer in layers]
    assert (
        found.statistics(run).collectives == 2 * len(layers) == (0 if norm in ("gn", "pn") else 40)
    )
    sent = sum(4 * 3 * n * (P - 1) + 4 * 2 * n * 2 * (P - 1) / P for n in numbers)
    assert found.statistics(run).bytes == pytest.approx(sent)
    assert found.gradients().bytes == pytest.approx(2 * (P - 1) / P * 4 * parameters)
    assert Setting(network, workers=P, devices=1).gradients() == traffic.Traffic()


def test_a_line_through_times() -> None:
    assert fit({b: 0.02 + b / 50 for b in (1, 2, 8)}) == pytest.approx((0.02, 50))
    assert fit({2: 0.1, 8: 0.5}) == pytest.approx((0, 18.22), rel=1e-3), "no negative overhead"
    assert fit({2: 0.1, 8: 0.05}) == (0.0, 160.0), "no negative slope"
    device = parse("x:8=90,2=30")
    assert (device.step(2), device.step(8), device.step(4)) == pytest.approx((0.03, 0.09, 0.05))
    assert [device.exact(b) for b in (2, 4, 8)] == [True, False, True]


def test_what_is_measured() -> None:
    assert candidates([128, 2]) == [2, 4, 8, 16, 32, 64, 128]
    assert candidates([1]) == [1]


def test_own_grid() -> None:
    runs = distinct(own_grid(["bn", "bgn"], [2, 8], ["paper", "1"], seeds=2))
    assert len(runs) == 2 * (2 + 3), "G = 1 is the paper's at 2 images"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--norms", "bm"],
            "--norms 'bm' is not known; accepted: bn, in, ln, gn, pn, gbgn, bgn; did you mean",
        ),
        (["--batch-sizes", "0"], "--batch-sizes 0 is not positive"),
        (["--groups", "many"], "--groups 'many' is neither a positive number nor 'paper'"),
        (
            ["--groups", "100000"],
            "--groups 100000 exceeds the 25088 features of one sample in the smallest layer",
        ),
        (["--model", "resnet51"], "--model 'resnet51' is not known"),
        (["--epochs", "0"], "--epochs 0 is not positive"),
        (["--epochs", "3", "--median-of", "4"], "--median-of 4 exceeds --epochs 3"),
        (["--validation-images", "-1"], "--validation-images -1 is negative"),
        (["--devices", "3"], "--devices 3 does not divide --workers 8; accepted: 1, 2, 4, 8"),
        (["--images", "1000"], "--batch-sizes 128 times --workers 8 exceeds --images 1000"),
        (["--price", "0"], "--price 0.0 is out of range; expected a number above 0"),
        (
            ["--price", "1", "--device", "x:rate=1"],
            "--price 1.0 is for measured devices; expected it in --device, as in ...,price=1",
        ),
        (["--bandwidth-gb", "-1"], "--bandwidth-gb -1.0 is out of range"),
        (["--decode-rate", "nan"], "--decode-rate nan is out of range"),
        (["--device", "x"], "--device 'x' is not understood; expected NAME:rate="),
        (
            ["--device", "x:speed=1"],
            "'speed' is not known; "
            "accepted: rate, overhead, price, test, a batch size, or a normalizer",
        ),
        (["--device", "x:rate=fast"], "rate='fast' is out of range; expected a number above 0"),
        (
            ["--device", "x:rate=1,price=-2"],
            "price='-2' is out of range; expected a number above 0",
        ),
        (
            ["--device", "x:rate=1,overhead=-2"],
            "overhead='-2' is out of range; expected a number of at least 0",
        ),
        (["--device", "x:rate=1,rate=2"], "'rate' is given twice"),
        (["--device", "x:price=2"], "needs either rate or step times by batch size"),
        (["--device", "x:rate=1,2=5"], "needs either rate or step times by batch size"),
        (["--device", "x:2=5,overhead=1"], "overhead goes with rate"),
        (["--device", "x:rate=1,bn=1"], "ratios are to bn"),
        (["--device", "x:rate=1", "--device", "x:rate=2"], "--device 'x' is there 2 times"),
        (
            ["--device", "x:rate=1", "--save", "steps.json"],
            "--save steps.json without anything measured; add --measure",
        ),
        (
            ["--save", "nowhere/steps.json"],
            "--save nowhere/steps.json cannot be written: nowhere is not a folder",
        ),
        (["--out", "nowhere/plan.json"], "--out nowhere/plan.json cannot be written"),
        (["--steps", "none.json"], "--steps none.json cannot be read: No such file or directory"),
        (["--on", "gpu"], "--on 'gpu' cannot be used"),
        (["--on", "meta"], "--on 'meta' cannot be used; expected cpu, cuda or mps"),
        (["--channels-last", "--width", "4", "--on", "cpu"], "--width 4 with channels_last"),
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
    monkeypatch.setattr(
        "bgn_lab.commands.plan.measure", None
    )  # nothing is measured before input is refused
    assert cli.main(["plan", *words]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("columns", [80, 120])
def test_the_papers_plan_on_a_given_device(
    columns: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    network = ["--latency-us", "30", "--bandwidth-gb", "10"]
    assert (
        cli.main(["plan", *GPU, *network, "--device", "old:2=50,128=700", "--out", str(tmp_path)])
        == 0
    )
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines()[:-1])) <= columns, "but for the path at the end"
    assert "…" not in text, "nothing is cut off"
    assert "67 runs" in text
    found = json.loads((tmp_path / "plan.json").read_text())
    gpu, old = found["devices"]
    assert (gpu["total"]["runs"], gpu["total"]["exact"], old["total"]["exact"]) == (67, True, False)
    assert gpu["total"]["device_hours"] == pytest.approx(
        8 * sum(run["hours"] for run in gpu["runs"])
    )
    assert gpu["total"]["price"] == pytest.approx(2.5 * gpu["total"]["device_hours"])
    assert old["total"]["price"] is None
    sizes = {run["run"]["batch_size"]: run for run in gpu["runs"] if run["run"]["norm"] == "bn"}
    for size, run in sizes.items():
        sent = 2 * 7 / 8 * 4 * 25_557_032 / 10e9 + 5 * 30e-6
        assert run["step"] == pytest.approx(0.020 + size / 1000 + sent)
        assert run["hours"] == pytest.approx(
            (120 * (1_281_167 // (8 * size)) * run["step"] + 5 * 50_000 / 8 / 3000) / 3600
        )
        assert run["decoding_cores"] == math.ceil(8 * size / run["step"] / 300)
        assert run["statistics_collectives"] == 106
    assert "~" in text.split("Time on old")[1]
    assert "~" not in text.split("Time on old")[0]


def test_measured_saved_and_planned_with_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bgn_lab.planning.measure.DECODING", 0.1)
    grid = ["--norms", "bn", "gn", "bgn", "--batch-sizes", "2", "8"]
    assert (
        cli.main(
            ["plan", *TINY, *grid, "--price", "2", "--save", "node.json", "--out", "first.json"]
        )
        == 0
    )
    assert "Time on this machine" in capsys.readouterr().out
    assert cli.main(["plan", *TINY, *grid, "--steps", "node.json", "--out", "second.json"]) == 0
    assert "Time on node" in capsys.readouterr().out
    first, second = (json.loads(Path(name).read_text()) for name in ("first.json", "second.json"))
    assert first["devices"][0]["runs"] == second["devices"][0]["runs"]
    (device,) = second["devices"]
    assert device["seconds"]["2"] > 0
    assert set(device["ratios"]) == {"gn", "bgn"}
    assert device["about"].startswith("measured: cpu")
    assert device["decode_rate"] > 0
    assert device["total"]["price"] == pytest.approx(2 * device["total"]["device_hours"])
    assert cli.main(["plan", *TINY, *grid, *GPU, "--measure"]) == 0
    text = capsys.readouterr().out
    assert "Time on gpu" in text
    assert "Time on this machine" in text


def test_step_times_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.json"
    good = {
        "format": "step times of bgn plan, 1", "about": "measured",
        "network": {"model": "resnet18"}, "seconds": {"2": 0.1},
        "ratios": {}, "ratios_at": None, "test_rate": None, "decode_rate": None, "price": None,
    }  # fmt: skip
    for content, message in [
        ("{", "is damaged ("),
        ("[]", "has format=None; expected 'step times of bgn plan, 1'"),
        (
            json.dumps(good),
            "was measured with another network (model=resnet18 there, resnet50 here)",
        ),
        (json.dumps({**good, "seconds": {"2": -1}}), "is damaged (-1 is not a number above 0)"),
        (json.dumps({**good, "seconds": {}}), "is damaged ("),
        (
            json.dumps({name: good[name] for name in good if name != "ratios"}),
            "is damaged (no 'ratios')",
        ),
    ]:
        path.write_text(content)
        assert cli.main(["plan", "--steps", str(path)]) == 2
        assert f"--steps {path} {message}" in capsys.readouterr().err.replace("\n", " ")
