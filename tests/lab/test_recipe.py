"""Recipes: what they refuse, and what tells two of them apart."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from bgn_lab import paper
from bgn_lab.recipe import CIRCUMSTANCES, Recipe
from bgn_lab.training.schedule import rate


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"norm": "bgm"}, "norm='bgm' is not known; .*did you mean 'bgn'"),
        ({"batch_size": 0}, "batch_size=0 is not positive"),
        ({"groups": 8, "norm": "bn"}, "groups=8 has no meaning for norm='bn'"),
        (
            {"instances": 64, "norm": "gn"},
            "instances=64 is for norm='bgn' without groups; norm='gn', groups=None",
        ),
        (
            {"instances": 64, "groups": 2},
            "instances=64 is for norm='bgn' without groups; norm='bgn', groups=2",
        ),
        ({"save_every": 0.0}, "save_every=0.0 is out of range"),
        ({"lr": 0.0}, "lr=0.0 is out of range; expected a number above 0"),
        ({"lr": float("nan")}, "lr=nan is out of range"),
        ({"decay": -1.0}, "decay=-1.0 is out of range; expected a number from 0"),
        ({"seed": 2**32}, "seed=4294967296 is out of range"),
        ({"median_of": 9}, "median_of=9 exceeds epochs=3"),
        ({"data": "no/such/folder"}, "data='no/such/folder' is neither a folder nor an .npz file"),
        ({"data": "a.npz", "root": Path("b.npz")}, "is a path, root='b.npz' another"),
        ({"validation": 1.0}, "validation=1.0 is out of range"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov=True needs a momentum"),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**values)


def test_json_and_back() -> None:
    recipe = Recipe(root=Path("somewhere"), groups=4, milestones=(1, 2), schedule="steps")
    assert Recipe.from_json(recipe.to_json()) == recipe
    with pytest.raises(ValueError, match="fields that are unknown here: colour"):
        Recipe.from_json({**recipe.to_json(), "colour": "red"})


def test_keys_differ_where_results_may() -> None:
    base = Recipe(data="cifar10")
    other = {
        "data": "imagenet", "root": Path("x"), "model": "resnet14", "norm": "gn", "milestones": (1,), "schedule": "constant",
        "damaged": "skip", "device": "cuda", "lr": 0.2, "momentum": 0.5, "decay": 0.0, "warmup": 1.0, "validation": 0.2,
    }  # fmt: skip
    for field in fields(Recipe):
        value = getattr(base, field.name)
        if field.name in other:
            value = other[field.name]
        else:
            value = not value if isinstance(value, bool) else (value or 1) + 1
        changed = replace(base, **{field.name: value})
        assert (changed.key() == base.key()) == (field.name in CIRCUMSTANCES), field.name


def test_two_folders_are_two_data_sets(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert Recipe(data=str(tmp_path / "a")).key() != Recipe(data=str(tmp_path / "b")).key()
    assert Recipe(root=tmp_path).key() != Recipe().key(), (
        "the whole of Fashion-MNIST is not the part that ships"
    )


def test_a_known_name_is_not_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Recipe(data="cifar10").data == "cifar10"


def test_a_path_says_what_kind_of_data_it_is(tmp_path: Path) -> None:
    assert (Recipe(data=str(tmp_path)).data, Recipe(data=str(tmp_path)).root) == (
        "folder",
        tmp_path,
    )
    assert Recipe(data="some/where.npz").data == "arrays"


def test_learning_rates_are_the_papers() -> None:
    for size, printed in paper.LEARNING_RATES.items():
        assert Recipe(batch_size=size).rate == pytest.approx(printed)
    assert Recipe(batch_size=4, accumulate=2).rate == pytest.approx(paper.LEARNING_RATES[8])


def test_schedules() -> None:
    cosine = Recipe(epochs=10, warmup=2)
    assert [round(rate(cosine, e), 4) for e in (0, 1, 2, 6, 10)] == [0, 0.05, 0.1, 0.05, 0]
    assert rate(Recipe(schedule="constant"), 99) == 0.1
