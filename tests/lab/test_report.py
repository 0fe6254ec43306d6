"""What a report says: runs are read, grouped and averaged as they should."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bgn_lab.experiments.adaptation.recipe import AdaptationRecipe
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.report.cells import AHEAD, BEHIND, Cell, became
from bgn_lab.report.collect import Run, collect, read
from bgn_lab.report.comparison import Comparison, compare
from bgn_lab.training.result import Result
from tests.lab.report_runs import GRID, NAN, UNFINISHED, grid, make, result

ORDER = ("BN", "IN", "LN", "GN", "PN", "GBGN", "BGN, paper's G", "BGN, G = 8")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    (one,) = compare(collect([grid(tmp_path_factory.mktemp("runs"))]))
    return one


def small(folder: Path, *rows: tuple[str, tuple[Any, ...]], **settings: Any) -> Comparison:
    """Rows of (normalizer, accuracies by seed) at batch size 2."""
    (one,) = compare(
        collect([grid(folder, {(norm, None): (seeds,) for norm, seeds in rows}, **settings)])
    )
    return one


def test_rows_and_columns_are_in_order(found: Comparison) -> None:
    assert found.labels == ORDER
    assert found.places == (2, 8, 32)
    in_order = [(label, size) for label in ORDER for size in (2, 8, 32)]
    assert [(label, column.place) for label, column in found.cells] == in_order
    assert found.seeds == [0, 1]
    assert len(found.runs) == 48
    assert len(found.results) == 47


def test_mean_and_standard_deviation(found: Comparison) -> None:
    accuracy = found.at("BN", 2).accuracy  # 66 and 68
    assert accuracy is not None
    assert (accuracy.mean, accuracy.deviation, accuracy.count) == (
        pytest.approx(67),
        pytest.approx(math.sqrt(2)),
        2,
    )
    assert found.at("BN", 2).text() == "67.0 ± 1.4"


def test_difference_is_seed_by_seed(found: Comparison) -> None:
    difference = found.at(
        "BGN, paper's G", 2
    ).difference  # 75 - 66 and 77 - 68: no spread although both have some
    assert difference is not None
    assert (difference.mean, difference.deviation, difference.count) == (
        pytest.approx(9),
        pytest.approx(0, abs=1e-9),
        2,
    )
    # 5 and 2: half of the interval is 12.7 times their standard deviation over the root of 2
    assert found.at("LN", 2).difference_text() == "+3.5 ± 19.1"
    assert found.at("IN", 32).difference_text() == "-17.4 ± 0.6"  # -17.5 and -17.4, that is -17.45
    assert found.at("BN", 2).difference is None


def test_difference_needs_the_same_seed(tmp_path: Path) -> None:
    one = small(tmp_path, ("bn", (NAN, 70.0)), ("gn", (60.0, 72.0)), ("ln", (60.0, UNFINISHED)))
    assert one.at("GN", 2).text() == "66.0 ± 8.5"
    assert one.at("GN", 2).difference_text() == "+2.0"
    assert one.at("LN", 2).difference_text() == ""


def test_without_bn_there_is_no_difference(tmp_path: Path) -> None:
    one = small(tmp_path, ("gn", (60.0, 72.0)))
    assert one.at("GN", 2).difference is None
    assert "BN" not in one.caption()


def test_only_what_is_more_than_noise_stands_out(found: Comparison) -> None:
    standing = {
        size: {label: own for label in ORDER if (own := found.at(label, size).standing)}
        for size in (2, 8, 32)
    }
    assert standing[2] == {"BGN, paper's G": AHEAD, "BGN, G = 8": AHEAD}  # not GBGN, of one seed
    assert standing[8].pop("BGN, paper's G") == AHEAD
    assert standing[8] == dict.fromkeys(("IN", "LN", "GN", "PN"), BEHIND)
    assert standing[32] == dict.fromkeys(("IN", "LN", "GN", "PN", "GBGN"), BEHIND)


def test_failed_runs_are_counted_not_averaged(found: Comparison) -> None:
    some, all_ = found.at("GBGN", 2), found.at("PN", 2)
    assert (some.failed, some.text(), some.note()) == (
        1,
        "80.0",
        "did not converge: 1 of 2 (11.0)",
    )
    assert (all_.failed, all_.text(), all_.note()) == (2, "10.2", "did not converge: 2 of 2")
    assert not some.standing
    assert not all_.standing
    assert all_.accuracy is None
    assert all_.difference is None


def test_nothing_stands_out_where_all_failed(tmp_path: Path) -> None:
    one = small(tmp_path, ("bn", (NAN, 70.0)), ("gn", (10.0, 9.0)), ("ln", (NAN, NAN)))
    assert not any(cell.standing for cell in one.cells.values())
    assert one.at("BN", 2).note() == "did not converge: 1 of 2"  # which was not tested
    assert (one.at("GN", 2).text(), one.at("GN", 2).difference) == ("9.5 ± 0.7", None)
    assert (one.at("LN", 2).text(), one.at("LN", 2).note()) == ("did not converge", "")


def test_unfinished_runs_are_not_run_yet(found: Comparison, tmp_path: Path) -> None:
    half = found.at("BGN, G = 8", 32)
    assert (len(half.runs), len(half.results), half.text(), half.difference_text()) == (
        2,
        1,
        "83.0",
        "-1.0",
    )
    one = small(tmp_path, ("bn", (70.0,)), ("gn", (UNFINISHED,)))
    assert one.at("GN", 2).text() == "not run yet"
    assert not one.at("GN", 2).standing


def test_nothing_finished(tmp_path: Path) -> None:
    one = small(tmp_path, ("bn", (UNFINISHED,)))
    assert one.at("BN", 2).text() == "not run yet"
    assert "Nothing is finished yet" in one.caption()


def test_a_combination_that_was_not_asked_for(tmp_path: Path) -> None:
    make(tmp_path, 70.0, norm="bn", batch_size=2)
    make(tmp_path, 71.0, norm="gn", batch_size=4)
    (one,) = compare(collect([tmp_path]))
    assert one.at("BN", 4) == Cell((), None, None)
    assert one.at("BN", 4).text() == "not run yet"


def test_caption(found: Comparison, tmp_path: Path) -> None:
    caption = found.caption()
    assert "mean ± standard deviation over 2 seeds" in caption
    assert "no ± where there is but one run" in caption
    assert (
        "1,800 training and 1,000 test images: the standard error of one accuracy is "
        "about 1.4 points" in caption
    )
    assert "Guessing reaches 10.0 %; a run that ends at 12.8 % or less" in caption
    single = small(tmp_path / "median", ("bn", (70.0,)), median_of=2, epochs=2)
    assert single.reading().startswith(
        "Test accuracy in % (median of the last 2 epochs), one seed."
    )
    assert (
        small(tmp_path / "one", ("bn", (70.0,)), epochs=1).title()
        == "resnet8 on fashion-mnist, 1 epoch"
    )


def test_what_a_normalizer_became(found: Comparison) -> None:
    assert became(found.at("GBGN", 8)) == "BGN; G 16 to 64; 392 to 6,272 values"
    assert became(found.at("BGN, G = 8", 2)) == "BGN; G 8; 98 to 1,568 values"
    assert became(Cell((), None, None)) == ""


@pytest.mark.parametrize(
    "setting",
    [{"lr": 0.05}, {"model": "resnet14"}, {"epochs": 4}, {"limit": 500}, {"augment": False}],
    ids=str,
)
def test_another_setting_is_another_comparison(setting: dict[str, Any], tmp_path: Path) -> None:
    for folder, extra in (("a", {}), ("b", setting)):
        for norm in ("bn", "bgn"):
            make(tmp_path / folder, 70.0, norm=norm, **extra)
    first, second = compare(collect([tmp_path]))
    assert len(first.runs) == len(second.runs) == 2
    assert first.title() != second.title()  # a reader can tell which is which
    assert str(next(iter(setting.values()))) in second.title()


def test_place_and_decoders_do_not_matter(tmp_path: Path) -> None:
    make(tmp_path, 70.0, norm="bn", data="cifar10", root=tmp_path, decoders=1)
    make(tmp_path, 71.0, norm="gn", data="cifar10", decoders=4, tensorboard=True)
    (one,) = compare(collect([tmp_path]))
    assert one.at("GN", 32).difference_text() == "+1.0"


def test_workers_are_told_and_not_mixed(tmp_path: Path) -> None:
    make(tmp_path, 70.0, norm="bn", simulate_workers=8)
    make(tmp_path, 71.0, norm="gn")
    assert sorted(one.title() for one in compare(collect([tmp_path]))) == [
        "resnet8 on fashion-mnist, 3 epochs", "resnet8 on fashion-mnist, 3 epochs, 8 workers",
    ]  # fmt: skip


def test_data_of_ones_own_goes_by_its_name(tmp_path: Path) -> None:
    for place in ("here/cats", "there/cats", "here/dogs"):
        (tmp_path / "data" / place).mkdir(parents=True)
    make(tmp_path / "a", 70.0, norm="bn", data=str(tmp_path / "data/here/cats"))
    make(tmp_path / "a", 70.0, norm="gn", data=str(tmp_path / "data/here/cats"))
    make(tmp_path / "b", 70.0, norm="gn", data=str(tmp_path / "data/here/dogs"))
    found = [(len(one.runs), one.title()) for one in compare(collect([tmp_path]))]
    assert found == [(2, "resnet8 on cats, 3 epochs"), (1, "resnet8 on dogs, 3 epochs")]
    make(tmp_path / "c", 70.0, norm="gn", data=str(tmp_path / "data/there/cats"))
    cats, _, others = compare(collect([tmp_path]))
    assert cats.title().endswith("here/cats")
    assert others.title().endswith("there/cats")


def test_other_images_are_another_comparison(tmp_path: Path) -> None:
    """The part of a data set that comes with the package and the whole set have one name."""
    make(tmp_path / "part", 70.0, norm="bn")
    make(tmp_path / "whole", 80.0, norm="bn", images=54_000)
    make(tmp_path / "part", UNFINISHED, norm="gn")
    first, second = compare(collect([tmp_path]))
    assert first.labels == ("BN", "GN")
    assert second.labels == ("BN",)
    assert "images 54,000 train + 200 validation + 1,000 test" in second.title()


def test_data_that_changed_is_another_comparison(tmp_path: Path) -> None:
    for folder, content in (("before", "0123"), ("after", "4567")):
        for norm in ("bn", "gn"):
            made = make(tmp_path / folder, 70.0, norm=norm)
            (made / "data.json").write_text(json.dumps({"fingerprint": content}))
    make(tmp_path / "after", UNFINISHED, norm="ln")
    found = compare(collect([tmp_path]))
    assert [(one.labels, one.title()) for one in found] == [
        (("BN", "LN", "GN"), "resnet8 on fashion-mnist, 3 epochs, content 4567"),
        (("BN", "GN"), "resnet8 on fashion-mnist, 3 epochs, content 0123"),
    ]


def test_a_recipe_that_was_run_twice_counts_once(tmp_path: Path) -> None:
    make(tmp_path / "a", UNFINISHED, norm="bn")
    make(tmp_path / "b", 70.0, norm="bn")
    make(tmp_path / "c", 80.0, norm="bn")
    (one,) = compare(collect([tmp_path]))
    assert [run.folder.parent.name for run in one.runs] == ["b"]


def test_a_folder_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    folder = make(tmp_path, 70.0, norm="bn")
    assert len(collect([tmp_path, folder, tmp_path / folder.name / ".."])) == 1


def test_half_a_line_of_a_killed_run_is_left_out(tmp_path: Path) -> None:
    folder = make(tmp_path, UNFINISHED, norm="bn")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "lr"')
    assert [metrics.epoch for metrics in read(folder).metrics] == [1]


def test_a_loss_that_explodes_is_read(tmp_path: Path) -> None:
    folder = make(tmp_path, UNFINISHED, norm="bn")
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "train_loss": 1e30}\n')
    assert [metrics.train_loss for metrics in read(folder).metrics] == [1e30]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("recipe.json", "{"),
        ("recipe.json", "[]"),
        ("recipe.json", '{"norm": "xn"}'),
        ("recipe.json", '{"flavor": 1}'),
        ("recipe.json", '{"lr": "fast"}'),
        ("about.json", ""),
        ("metrics.jsonl", "{\n"),
        ("result.json", "null"),
        ("result.json", "{}"),
    ],
)
def test_a_damaged_file_is_named(name: str, content: str, tmp_path: Path) -> None:
    folder = make(tmp_path, 70.0, norm="bn")
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")) as caught:
        collect([tmp_path])
    assert str(folder) in str(caught.value)


def test_recipes_come_back_as_they_were(tmp_path: Path) -> None:
    for norm, groups in GRID:
        folder = make(tmp_path, 70.0, norm=norm, groups=groups, milestones=(1, 2))
        assert read(folder).recipe == Recipe(norm=norm, groups=groups, milestones=(1, 2))
        assert read(folder).result == Result.from_json(
            json.loads((folder / "result.json").read_text())
        )


def adapted(accuracy: float, **settings: Any) -> Run:
    recipe = AdaptationRecipe(**settings)
    if recipe.weights is not None:  # no such file is here
        recipe._set("weights_code", recipe.weights)
    domains = {"source": "amazon", "target": "dslr"}
    made = result(recipe, accuracy, 100, 1) | domains
    return Run(Path(recipe.key()), recipe, {}, (), Result.from_json(made))


def test_runs_that_differ_in_trust_are_not_one_row() -> None:
    """The default of trust depends on the task: a table may have several values, a task may not."""
    usual = [adapted(70.0, norm="bn", task=task) for task in ("ad", "da", "dw")]
    assert {run.recipe.identity()["trust"] for run in usual} == {0.05, 1.0}
    (one,) = compare(usual)
    assert one.at("BN", "mean").text() == "70.0"
    all_the_same = [adapted(80.0, norm="bn", task=task, trust=1.0) for task in ("ad", "da", "dw")]
    (same,) = compare(all_the_same)
    assert same.at("BN", "mean").text() == "80.0"
    first, second = compare([*usual, all_the_same[0]])  # da and dw are the same runs in both
    assert [run.recipe.identity()["trust"] for run in first.runs] == [0.05, 1.0, 1.0]
    assert [run.recipe.identity()["trust"] for run in second.runs] == [1.0, 1.0, 1.0]
    assert (first.at("BN", "ad").text(), second.at("BN", "ad").text()) == ("70.0", "80.0")
    assert first.title().endswith("trust as released, by task")
    assert second.title().endswith("trust 1.0")


def test_runs_that_differ_in_weights_are_not_one_row() -> None:
    settings: dict[str, Any] = {"task": "da", "seed": 0}
    runs = [
        adapted(70.0, norm="bn", weights="/w/one.pth", **settings),
        adapted(72.0, norm="gn", weights="/w/one.pth", **settings),
        adapted(80.0, norm="bn", weights="/w/two.pth", **settings),
        adapted(85.0, norm="gn", weights="/w/two.pth", **settings),
    ]
    (one,) = compare(runs)
    assert one.labels == tuple(
        f"{norm}, weights {name}.pth" for norm in ("BN", "GN") for name in ("one", "two")
    )
    assert one.at("GN, weights one.pth", "da").difference_text() == "+2.0"
    assert one.at("GN, weights two.pth", "da").difference_text() == "+5.0"
    assert len(one.runs) == 4
    (least,) = compare([*runs[:3], adapted(85.0, norm="gn", weights="/other/one.pth", **settings)])
    named = [label for label in least.labels if label.startswith("GN")]
    assert len(named) == 2, "files of one name"
    assert sum(bool(least.at(label, "da").difference) for label in named) == 1


def test_weights_of_each_normalizer_are_one_table_and_named() -> None:
    runs = [
        adapted(70.0 + i, norm=norm, task=task, weights=f"/w/{norm}.pth")
        for i, norm in enumerate(("bn", "gn"))
        for task in ("da", "dw")
    ]
    (one,) = compare(runs)
    assert one.labels == ("BN", "GN")
    assert one.at("GN", "mean").difference_text() == "+1.0"
    assert "Pretrained weights differ by normalizer: BN bn.pth, GN gn.pth." in one.caption()
    first, second = compare([*runs, adapted(50.0, norm="bn", task="da")])
    assert "pretrained True" in first.title()
    assert "pretrained False" in second.title()


def test_adaptation_with_another_batch_size_is_another_table() -> None:
    first, second = compare([adapted(70.0, norm="bn", task="da", batch_size=n) for n in (30, 60)])
    assert first.title().endswith("batch_size 30")
    assert second.title().endswith("batch_size 60")


def test_a_mean_over_tasks_that_did_not_all_converge_is_incomplete() -> None:
    runs = [adapted(a, norm="bn", task=task) for task, a in {"da": 70.0, "dw": 5.0}.items()]
    (one,) = compare(runs)
    assert one.at("BN", "dw").text() == "5.0"
    assert one.at("BN", "mean").text() == "incomplete"
