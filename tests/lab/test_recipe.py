"""Recipes: what they refuse, what distinguishes two of them, and that no option lacks an effect."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from bgn.groups import ENOUGH
from bgn_lab import experiments, norms, paper
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.recipe import NOT_IDENTITY, Part
from bgn_lab.training.schedule import rate


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"norm": "bgm"}, "norm='bgm' is not known; .*did you mean 'bgn'"),
        ({"batch_size": 0}, "batch_size=0 is not positive"),
        ({"groups": 8, "norm": "bn"}, "groups=8 has no meaning for norm='bn'"),
        ({"groups": 0}, "groups=0 is not positive"),
        ({"groups": "many"}, "groups='many' is not known; accepted: paper, auto"),
        ({"groups": "auto", "norm": "gn"}, "groups='auto' is for norm='bgn'"),
        ({"groups": 8, "norm": "package:Norm"}, "groups=8 has no meaning for norm='package:Norm'"),
        (
            {"instances": 64, "norm": "gn"},
            "instances=64 is for norm='bgn' without groups; norm='gn', groups=None",
        ),
        (
            {"instances": 64, "groups": 2},
            "instances=64 is for norm='bgn' without groups; norm='bgn', groups=2",
        ),
        ({"norm_momentum": 1.5}, "norm_momentum=1.5 is out of range"),
        ({"norm_eps": 0.0}, "norm_eps=0.0 is out of range; expected a number above 0"),
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
        ({"damaged": "ignore"}, "damaged='ignore' is not known"),
        (
            {"norm": "gn", "renorm": True},
            "renorm=True has no meaning for norm='gn'; expected one of bn, gbgn, bgn, or",
        ),
        (
            {"norm": "bn", "center": "channel"},
            "center='channel' has no meaning for norm='bn'; expected norm='bgn', or center='group'",
        ),
        ({"center": "image"}, "center='image' is not known; accepted: group, channel"),
        ({"renorm_r_max": 0.5}, "renorm_r_max=0.5 is out of .* finite number of at least 1"),
        ({"renorm_d_max": math.inf}, "renorm_d_max=inf is out of .* finite number of at least 0"),
        ({"renorm_warmup": -1}, "renorm_warmup=-1 is out of range"),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**values)


def test_json_and_back() -> None:
    recipe = Recipe(root=Path("somewhere"), groups=4, milestones=(1, 2), schedule="steps")
    assert Recipe.from_json(recipe.to_json()) == recipe
    with pytest.raises(ValueError, match="fields that are unknown here: color"):
        Recipe.from_json({**recipe.to_json(), "color": "red"})


OTHER: dict[str, Any] = {  # where adding 1 to the value or its default is not accepted
    "data": "imagenet", "root": Path("x"), "norm": "gbgn", "milestones": (1, 2, 4),
    "schedule": "constant", "damaged": "skip", "device": "mps", "norm_momentum": 0.2,
    "momentum": 0.5, "decay": 0.0, "warmup": 1.0, "validation": 0.2, "bound": 0.5,
    "step_size": 0.5, "craft": "train", "strong_steps": (7,), "activation": "swish", "task": "da",
    "printed": "table", "optimizer": "adam", "trust": 0.5, "stop": "gap", "order": "first",
    "credit": "weights", "keep": "all", "genotype": "DARTS_V1", "drop_path": 0.1, "width": 24,
    "least_lr": 0.0001, "ways": 3, "weights": "no.pth", "warm": 1, "center": "channel",
    "crop": (8, 8), "scale": (0.5, 3.0), "class_weights": "balanced", "evaluation": "sliding",
    "neighbors": 2, "renorm_momentum": 0.02,
}  # fmt: skip
FIXED = {
    "fewshot": ("model",),
    "darts-search": ("model",),
    "manas-search": ("model",),
    "nas-train": ("model",),
    "segmentation": ("model", "norm_momentum"),  # renormalization has a momentum of its own there
}


@pytest.mark.parametrize("name", experiments.names())
def test_keys_differ_where_results_may(name: str) -> None:
    kind = experiments.get(name).recipe
    extra: dict[str, Any] = (
        {"median_of": 1} if "median_of" in {f.name for f in fields(kind)} else {}
    )
    if "schedule" in {f.name for f in fields(kind)}:
        extra["schedule"] = "steps"
    base = kind(data="cifar10", renorm=True, **extra)
    if name == "adaptation":
        base = replace(base, task="ad")
    if name == "segmentation":
        base = replace(base, model="fpn-resnet18", weights="none.pth", batch_size=4)
    for field in fields(kind):
        if not field.init or field.name in FIXED.get(name, ()):
            continue
        value = getattr(base, field.name)
        if field.name == "model":
            value = "wrn-16-2" if name == "adversarial" else "resnet14"
        elif field.name in OTHER and OTHER[field.name] != value:
            value = OTHER[field.name]
        else:
            value = not value if isinstance(value, bool) else (value or 1) + 1
        alone = ("frozen", "standardize") if name == "segmentation" else ("frozen",)
        plain = replace(base, renorm=False) if field.name in alone else base
        changed = replace(plain, **{field.name: value})
        assert (changed.key() == plain.key()) == (field.name in NOT_IDENTITY), field.name
        assert type(changed).from_json(changed.to_json()) == changed


@pytest.mark.parametrize(
    ("experiment", "base", "changes"),
    [
        ("classification", {}, {"milestones": (1,)}),
        ("classification", {"norm": "gn"}, {"norm_momentum": 0.5}),
        ("adversarial", {"strong_images": 0}, {"strong_steps": (3,), "strong_restarts": 9}),
        ("adversarial", {"attack_steps": 0}, {"craft": "train"}),
        ("adaptation", {"optimizer": "adam"}, {"momentum": 0.5, "nesterov": True}),
        ("adaptation", {"adapt": False}, {"alpha": 1.0, "ways": 4, "trust": 0.5}),
        ("adaptation", {}, {"printed": "table"}),
        (
            "classification",
            {"norm": "bn"},
            {"renorm_r_max": 2.0, "renorm_d_max": 1.0, "renorm_warmup": 9},
        ),
    ],
)
def test_what_has_no_effect_is_no_part_of_the_identity(
    experiment: str, base: dict[str, Any], changes: dict[str, Any]
) -> None:
    recipe = experiments.get(experiment).recipe(**base)
    assert replace(recipe, **changes).key() == recipe.key()


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("adversarial", {"momentum", "nesterov", "width"}),
        ("fewshot", {"stride", "median_of", "decoders"}),
        ("adaptation", {"validation", "median_of", "simulate_workers", "accumulate", "decoders"}),
        ("darts-search", {"milestones", "schedule", "warmup", "amp", "simulate_workers", "stride"}),
        ("manas-search", {"compile", "amp", "nesterov", "median_of", "image_size"}),
        ("nas-train", {"milestones", "schedule", "warmup", "stride", "nesterov"}),
    ],
)
def test_options_without_effect_are_not_there(name: str, absent: set[str]) -> None:
    kind = experiments.get(name).recipe
    assert not absent & {field.name for field in fields(kind)}
    recipe = kind()
    assert (recipe.simulate_workers, recipe.accumulate, recipe.median_of) == (1, 1, 1)


@pytest.mark.parametrize("name", experiments.names())
def test_every_option_is_explained_once(name: str) -> None:
    from bgn_lab.commands.options import groups

    kind = experiments.get(name).recipe
    shown = [own for _, nested, _ in groups(kind()) for own in nested.__dataclass_fields__]
    assert sorted(shown) == sorted(field.name for field in fields(kind) if field.init)
    parts = [cls for cls in kind.__mro__ if issubclass(cls, Part) and cls is not Part]
    assert all(cls.group for cls in parts)


def test_words_for_the_number_of_groups() -> None:
    auto: Any = "auto"
    assert (Recipe(groups=auto).groups, Recipe(groups=auto).instances) == ("auto", None)
    assert Recipe(groups=auto).key() != Recipe(instances=ENOUGH).key()
    assert "-bgnauto-" in Recipe(groups=auto).key()
    assert Recipe(groups=auto).by_maps
    assert Recipe(instances=ENOUGH).by_maps
    assert not Recipe(groups=8).by_maps
    words: Any = "paper"
    assert Recipe(groups=words) == Recipe()


@pytest.mark.parametrize("norm", ["bn", "in", "ln", "gn", "pn", "gbgn", "bgn"])
def test_momentum_and_eps_reach_every_layer(norm: str) -> None:
    made: Any = norms.constructor(Recipe(norm=norm, norm_momentum=0.25, norm_eps=1e-3))(16)
    assert made.eps == 1e-3
    assert getattr(made, "momentum", 0.25) == 0.25
    assert hasattr(made, "momentum") == (norm in ("bn", "gbgn", "bgn"))


def test_where_data_and_devices_are_is_no_part_of_the_identity(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = (Recipe(data=str(tmp_path / name)) for name in ("a", "b"))
    assert one.key("same") == other.key("same"), "a folder that was moved"
    assert one.key("1f") != one.key("2e"), "another content"
    assert str(tmp_path) not in str(one.identity())
    assert Recipe(device="cuda:1").key() == Recipe(device="cuda").key() != Recipe().key()


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


class Doubled(nn.BatchNorm2d):
    """A normalizer of the user's."""


def test_a_normalizer_of_ones_own() -> None:
    name = f"{__name__}:Doubled"
    recipe = Recipe(norm=name, limit=64, width=8)
    model = experiments.task(recipe).build()
    assert sum(isinstance(module, Doubled) for module in model.modules()) > 5
    assert norms.label(recipe) == "tests.lab.test_recipe:Doubled"
    assert recipe.key() != Recipe(norm=f"{__name__}:Other", limit=64, width=8).key()
    assert "/" not in recipe.key()
    assert ":" not in recipe.key()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package:Norm", "there is no module 'no_such_package'"),
        ("torch.nn:NoSuchNorm", "has no attribute 'NoSuchNorm'"),
        ("torch.nn:", "is no PACKAGE:OBJECT; expected a class PACKAGE:CLASS"),
        ("math:pi", "is a float; expected a class"),
        ("builtins:abs", "made a int for 8 channels; expected a torch module"),
    ],
)
def test_bad_normalizers_of_ones_own(name: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        norms.constructor(Recipe(norm=name))(8)
