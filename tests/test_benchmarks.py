"""The benchmark runs, and its arithmetic is right. No test says how fast anything is."""

import json
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import (
    about,
    arguments,
    call,
    cases,
    measure,
    others,
    partners,
    report,
    results,
    run,
    standardize,
    tables,
    timing,
)
from benchmarks.cases import Case
from benchmarks.measure import Sitting
from benchmarks.picture import picture
from benchmarks.shapes import NETWORKS, Shape
from benchmarks.targets import (
    TARGETS,
    TRAINING,
    exit_code,
    extra_memory,
    geometric_mean,
    judge,
    ratio,
    verdicts,
)

from tests.tolerance import assert_close

BN, GN = "nn.BatchNorm2d", "nn.GroupNorm(32)"
AGAINST_BN, AGAINST_GN = TARGETS[:2]
MEMORY = TARGETS[-1]


def made_up(N: int = 2, shape: str = "64x56x56", count: int = 1, **medians: float) -> Any:
    """A row of training on ResNet-50's shapes with these times; ``bn`` and ``gn`` are torch's."""
    names = {"bn": BN, "gn": GN}
    times = {
        names.get(name, name): {"min": t / 2, "median": t, "rounds": 9}
        for name, t in medians.items()
    }
    own = {"N": N, "shape": shape, "count": count, "G": 1, "megabytes": 20.0, "times": times}
    return {**TRAINING, **own}


def made_up_results(*rows: Any) -> results.Results:
    return {"about": about.about(), "complete": True, "rows": list(rows)}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark of two small layers, whatever is asked for."""
    layers = (*cases.HEADLINE, "floor")
    found = [
        Case("resnet50", Shape(32, 4, 4, n), n, "train", "float32", "contiguous", False, layers)
        for n in (2, 8)
    ]
    monkeypatch.setattr(cases, "full", lambda *_: found)
    monkeypatch.setattr(cases, "quick", lambda *_: found)
    monkeypatch.setattr(others, "STAT", Path("/none"))  # whatever else the machine does


class TestCases:
    def test_networks_have_their_normalizers(self) -> None:
        assert sum(shape.count for shape in NETWORKS["resnet50"]) == 53
        assert sum(shape.count for shape in NETWORKS["wrn10-2"]) == 7

    def test_every_target_has_rows_with_both_rivals(self) -> None:
        for target in TARGETS:
            covered = [case for case in cases.full(2) if target.covers_case(case)]
            assert covered, target
            assert all({target.ours, target.theirs} <= {*case.layers} for case in covered)

    def test_the_headline_has_every_shape_at_every_batch_size(self) -> None:
        assert sum(AGAINST_BN.covers_case(case) for case in cases.full(2)) == 4 * 12

    def test_a_single_core_measures_nothing_twice(self) -> None:
        found = [case for case in cases.full(1) if case.mode == "train"]
        assert not any(case.one_thread for case in found)

    def test_quick_is_a_part_of_full(self) -> None:
        assert {*cases.quick(2)} < {*cases.full(2)}

    def test_slow_rivals_are_asked_for(self) -> None:
        def names(slow: bool) -> set[str]:
            return {name for case in cases.full(2, slow) for name in case.layers}

        assert names(True) - names(False) == {*cases.SLOW}


class TestMeasure:
    @pytest.mark.parametrize("mode", ["train", "eval"])
    @pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_row(self, mode: str, layout: str, dtype: str) -> None:
        layers = (*cases.HEADLINE, "floor", *cases.RELATIVES, *cases.POSITIONAL)
        case = Case("resnet50", Shape(32, 4, 4, 3), 2, mode, dtype, layout, True, layers)
        threads = torch.get_num_threads()
        row = measure.row(case, [Sitting(measure.times(case, 0.001), None)])
        assert torch.get_num_threads() == threads
        assert row["times"].keys() == {*layers}
        assert all(t["min"] > 0 and t["rounds"] >= 3 for t in row["times"].values())
        assert (row["count"], row["mode"], row["layout"]) == (3, mode, layout)

    def test_32_groups_need_as_many_channels(self) -> None:
        case = Case(
            "darts", Shape(36, 4, 4, 1), 2, "train", "float32", "contiguous", True, cases.HEADLINE
        )
        assert measure.steps(case).keys() == {"bgn", BN}

    def test_a_training_step_keeps_its_runs(self) -> None:
        shape = Shape(3, 32, 32, 1)
        case = Case("resnet20", shape, 2, "step", "float32", "contiguous", True, cases.AGAINST_BN)
        row = measure.row(case, [Sitting(measure.times(case, 1e-6), None)])
        assert {len(runs) for runs in row["runs"].values()} == {measure.STEP_RUNS}

    def test_every_round_has_every_function(self) -> None:
        called: list[str] = []
        found = timing.samples({n: lambda n=n: called.append(n) for n in "abc"}, 0, least=4)
        assert {name: len(t) for name, t in found.items()} == {"a": 4, "b": 4, "c": 4}
        assert timing.summary({"a": [1.0, 3.0, 2.0]})["a"] == {"min": 1, "median": 2, "rounds": 3}

    def test_disturbed_passes_are_left_out(self) -> None:
        case, quiet, busy = cases.full(2)[0], Sitting({"bgn": [1.0]}, 0.1), {"bgn": [9.0]}
        row = measure.row(case, [Sitting(busy, 1.0), quiet])
        assert (row["times"]["bgn"]["median"], row["others"], row["passes"]) == (1.0, 0.1, 1)
        row = measure.row(case, [Sitting(busy, 1.0)] * 2)  # there is no better one
        assert (row["times"]["bgn"]["median"], row["others"], row["passes"]) == (9.0, 1.0, 2)

    def test_others_are_counted_where_the_system_tells(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = others.Others().cores()
        assert found is None or found >= 0
        monkeypatch.setattr(others, "STAT", tmp_path / "none")
        assert others.Others().cores() is None
        assert not others.is_disturbed(None)

    def test_layer_norm_is_positional_normalization(self) -> None:
        from benchmarks.rivals import LAYERS

        x = torch.randn(2, 8, 3, 5).contiguous(memory_format=torch.channels_last)
        ours, theirs = (LAYERS[name](8, 1)(x) for name in cases.POSITIONAL)
        torch.testing.assert_close(ours, theirs)


class TestTargets:
    def test_the_mean_is_geometric_and_weighted(self) -> None:
        assert geometric_mean([(4.0, 1), (0.5, 3)]) == pytest.approx((4 * 0.5**3) ** 0.25)

    def test_holds(self) -> None:
        rows = [made_up(bgn=0.40, bn=1), made_up(8, bgn=0.43, bn=1), made_up(32, gn=1, bgn=1)]
        found = judge(AGAINST_BN, rows)
        assert found.holds is True
        assert (found.rows, found.wanted, found.at) == (2, 48, "8x64x56x56")
        assert found.worst == pytest.approx(0.43)

    def test_fails_by_the_mean(self) -> None:
        assert judge(AGAINST_BN, [made_up(bgn=0.43, bn=1)]).holds is False

    def test_fails_by_the_worst(self) -> None:
        rows = [made_up(count=99, bgn=0.2, bn=1), made_up(bgn=0.71, bn=1)]
        found = judge(AGAINST_BN, rows)
        assert found.mean is not None
        assert found.mean < AGAINST_BN.mean
        assert found.holds is False

    def test_not_measured(self) -> None:
        other = made_up(bgn=9, bn=1) | {"layout": "channels_last"}
        assert judge(AGAINST_BN, [other]).holds is None
        assert judge(AGAINST_GN, [made_up(bgn=9, bn=1)]).holds is None

    def test_small_maps_do_not_count_against_the_floor(self) -> None:
        floor = next(target for target in TARGETS if target.name == "floor")
        assert judge(floor, [made_up(bgn=9, floor=1) | {"megabytes": 9.9}]).holds is None
        assert judge(floor, [made_up(bgn=9, floor=1)]).holds is False

    def test_runs_are_compared_round_by_round(self) -> None:
        row = made_up(bgn=1, bn=1) | {"runs": {"bgn": [1.0, 9.0, 3.0], BN: [2.0, 10.0, 4.0]}}
        assert ratio(row, "bgn", BN) == 0.75

    def test_memory_is_a_difference(self) -> None:
        row = made_up() | {"mode": "memory", "memory": {"bgn": {"median": 7.0}}}
        assert extra_memory(row, "bgn", BN) is None
        row["memory"][BN] = {"median": 8.0}
        found = judge(MEMORY, [row])
        assert (found.mean, found.holds) == (-1.0, True)
        row["memory"][BN] = {"median": 7.0 - 1.1 * MEMORY.mean}
        assert judge(MEMORY, [row]).holds is False

    @pytest.mark.parametrize(
        ("bgn", "strict", "code"), [(0.4, True, 0), (0.5, True, 1), (0.5, False, 0)]
    )
    def test_exit_code(self, bgn: float, strict: bool, code: int) -> None:
        assert exit_code(verdicts([made_up(bgn=bgn, bn=1)]), strict) == code

    def test_a_disturbed_row_proves_nothing(self) -> None:
        row = made_up(bgn=0.001, bn=1) | {"others": 1.0}
        found = judge(AGAINST_BN, [row, made_up(8, bgn=0.4, bn=1)])
        assert (found.disturbed, tables.holds(found)) == (1, "disturbed")
        assert exit_code([found], strict=True) == 1

    def test_strict_wants_a_measurement(self) -> None:
        assert exit_code(verdicts([]), strict=True) == 1


class TestTables:
    rows = (made_up(bgn=0.40, bn=1, gn=0.45), made_up(8, bgn=0.30, bn=1, gn=0.45))

    def test_the_verdict_has_figures_and_limits(self) -> None:
        text = tables.page(made_up_results(*self.rows))
        assert (
            "| training | bgn / nn.BatchNorm2d | 0.35 (0.42) | 0.40 (0.70) | 2x64x56x56 | 2 of 48 |"
            " yes |" in text
        )
        assert "Not measured: training, from 10 MB (floor)" in text

    def test_a_missed_limit_is_bold(self) -> None:
        text = tables.page(made_up_results(made_up(bgn=0.5, bn=1), made_up(8, bgn=0.6, bn=1)))
        assert "| **0.55** (0.42) | 0.60 (0.70) | 8x64x56x56 | 2 of 48 | no |" in text

    def test_batch_sizes_apart(self) -> None:
        found = tables.batch_table(self.rows)
        assert [line[:2] for line in found.lines] == [
            ["2", "0.40, worst 0.40"],
            ["8", "0.30, worst 0.30"],
        ]

    def test_whole_networks(self) -> None:
        step = made_up(8, bgn=0.9, bn=1) | {"mode": "step"}
        peaks = {"bgn": {"median": 101.5}, BN: {"median": 100.0}}
        found = tables.step_table([step, made_up(8) | {"mode": "memory", "memory": peaks}])
        assert found.lines[0][1:] == ["bgn", "900.0", "0.900", "9", "102", "+1.5"]

    def test_the_machine_is_named(self) -> None:
        facts = about.about()
        text = about.describe(facts)
        assert facts["cpu"] in text
        assert f"of torch's: {torch.backends.cpu.get_cpu_capability()}" in text
        assert "not quiet" in about.warning({**facts, "load": 9.0, "cores": 2})
        assert about.warning({**facts, "load": 0.9, "cores": 2}) == ""
        assert about.warning({**facts, "load": None}) == ""

    def test_the_picture_needs_rows(self, tmp_path: Path) -> None:
        assert picture(self.rows, tmp_path / "a.png")
        assert not picture([], tmp_path / "b.png")
        assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


class TestResults:
    def test_nothing_is_lost(self, tmp_path: Path) -> None:
        found = made_up_results(made_up(bgn=0.12345, bn=2), made_up(8, bgn=1, bn=2))
        results.save(found, tmp_path)
        assert results.load(tmp_path) == json.loads(json.dumps(found)) | {
            "columns": list(results.COLUMNS)
        }

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="results.json cannot be read.*accepted"):
            results.load(tmp_path)

    def test_another_format(self, tmp_path: Path) -> None:
        (tmp_path / "results.json").write_text('{"rows": []}')
        with pytest.raises(ValueError, match="not a result of this version"):
            results.load(tmp_path)


class TestReport:
    def test_two_runs_side_by_side(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, time in ("run1", 0.40), ("run2", 0.44):
            (tmp_path / name).mkdir()
            results.save(made_up_results(made_up(bgn=time, bn=1)), tmp_path / name)
        assert report.main([str(tmp_path / "run1"), str(tmp_path / "run2")]) == 0
        text = (tmp_path / "table.md").read_text()
        assert (
            "| training | bgn / nn.BatchNorm2d | 0.42, 0.70 | 0.40 | **0.44** | in 1 of 2 |" in text
        )
        assert "| 2 | bgn / nn.BatchNorm2d | 0.40, 0.40 | 0.44, 0.44 |" in text
        assert (tmp_path / "ratios.png").exists()
        assert "run2" in capsys.readouterr().out

    def test_bad_folders(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for folders in ([str(tmp_path)], [str(tmp_path)] * 2):
            with pytest.raises(SystemExit):
                report.main(folders)
            assert "accepted: " in capsys.readouterr().err


@pytest.mark.usefixtures("tiny")
class TestCommand:
    def test_writes_table_rows_and_picture(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run.main(["--quick", "--seconds", "0.001", "--out", str(tmp_path / "new")]) == 0
        found = results.load(tmp_path / "new")
        assert found["complete"]
        assert len(found["rows"]) == 2
        assert {path.name for path in (tmp_path / "new").iterdir()} == {
            "table.md",
            "results.json",
            "ratios.png",
        }
        assert "nn.BatchNorm2d" in capsys.readouterr().out

    def test_passes_add_up(self) -> None:
        assert run.main(["--only", "training", "--seconds", "0.001"]) == 0
        todo = run.chosen(run.parser().parse_args(["--only", "training"]))
        assert [case.layers for case in todo] == [cases.HEADLINE] * 2
        three = run.Run(todo, 1e-6, 3)
        three.measure(run.Console(quiet=True), False, None)
        assert three.results()["rows"][0]["times"]["bgn"]["rounds"] == 9

    def test_interrupted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = measure.times

        def times(case: Case, *rest: Any, **more: Any) -> measure.Times:
            if case.N == 8:
                raise KeyboardInterrupt
            return before(case, *rest, **more)

        monkeypatch.setattr(measure, "times", times)
        out = str(tmp_path)
        assert run.main(["--quick", "--seconds", "0.001", "--out", out]) == run.INTERRUPTED
        found = results.load(tmp_path)
        assert [row["N"] for row in found["rows"]] == [2]
        assert not found["complete"]
        assert "The run was interrupted." in (tmp_path / "table.md").read_text()

    def test_strict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = {"bgn": [2.0], BN: [1.0], GN: [1.0], "floor": [1.0]}
        monkeypatch.setattr(measure, "times", lambda *_, **__: slow)
        assert run.main(["--quick"]) == 0
        assert run.main(["--quick", "--strict"]) == 1

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["--seconds", "0"], "--seconds: '0' is no time; accepted: a number above 0"),
            (["--seconds", "soon"], "--seconds: 'soon' is no time"),
            (["--only", "speed"], "--only: invalid choice: 'speed'"),
            (["--batch-sizes", "3"], "--batch-sizes: invalid choice: 3"),
            (["--quick", "--all"], "--all: not with --quick"),
            (["--only", "memory", "--batch-sizes", "2"], "no row is left; accepted: fewer"),
        ],
    )
    def test_bad_arguments(
        self, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit, match="2"):
            run.main(given)
        assert message in capsys.readouterr().err

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ArgumentTypeError, match="is a file; accepted: a folder"):
            arguments.folder(str(tmp_path / "file"))


def test_the_cost_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(call, "SHAPES", call.SHAPES[:1])
    monkeypatch.setattr(call, "CALLS", 2)
    assert call.main(["--seconds", "0.001", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "call.json").read_text())
    assert [(row["shape"], row["mode"]) for row in found["rows"]] == [
        ("2x16x8x8", "train"),
        ("2x16x8x8", "eval"),
    ]
    assert "| 2x16x8x8 | train |" in (tmp_path / "call.md").read_text()
    assert "nn.GroupNorm" in capsys.readouterr().out


def test_the_cost_of_standardized_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standardize, "STEPS", standardize.STEPS[1:])
    monkeypatch.setattr(standardize, "NETWORK", "resnet20")
    words = ["--seconds", "0.001", "--cpu-time", "--out", str(tmp_path)]
    assert standardize.main(words) == 0
    found = json.loads((tmp_path / "standardize.json").read_text())["times"]
    assert set(found["resnet20, 2 images"]) == {"bgn", "bgn, standardized"}
    assert set(found["the formula alone"]) == set(standardize.OPERATIONS)
    assert "| resnet20, 2 images | bgn |" in (tmp_path / "standardize.md").read_text()
    assert "processor time" in capsys.readouterr().out


def test_the_cost_of_partners(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(partners, "SHAPES", ((2, 16, 8, 8),))
    assert partners.main(["--seconds", "0.001", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "partners.json").read_text())
    assert set(found["times"]) == {"2x16x8x8, G = 1", "2x16x8x8, G = 16"}
    assert set(found["means"]) == {"renorm", "center", "nn.BatchNorm2d"}
    assert "| 2x16x8x8, G = 1 |" in (tmp_path / "partners.md").read_text()


def test_operations_that_standardize_agree() -> None:
    weight = torch.randn(8, 6, 3, 3)
    expected, *others = (own(weight) for own in standardize.OPERATIONS.values())
    for other in others:
        assert_close(other, expected)


@pytest.mark.slow
def test_peak_memory() -> None:
    last = replace(cases.full(2)[-1], network="resnet20", N=2)
    row = measure.row(last, [Sitting(measure.memory(last), None)])
    extra = extra_memory(row, "bgn", BN)
    assert extra is not None
    assert abs(extra) < 50
