"""Networks by name: those of the table, of timm, and of the user's code."""

import sys
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor, nn

from bgn_lab import experiments, models
from bgn_lab.experiments.classification.recipe import ClassificationRecipe


class Tiny(nn.Module):
    def __init__(self, norm: Any, classes: int, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 3), norm(4), nn.AdaptiveAvgPool2d(1))
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.body(x).flatten(1))
        return y


def tiny(norm: Any, classes: int, channels: int) -> nn.Module:
    return Tiny(norm, classes, channels)


def nothing(norm: Any, classes: int, channels: int) -> str:  # noqa: ARG001
    return "nothing"


def test_a_function_of_ones_own() -> None:
    recipe = ClassificationRecipe(model=f"{__name__}:tiny", norm="bgn", limit=64)
    task = experiments.task(recipe)
    task.check()
    model = task.build()
    assert isinstance(model, Tiny)
    assert (model.body[0].in_channels, model.fc.out_features) == (1, 10)
    assert recipe.key() != ClassificationRecipe(model=f"{__name__}:other", limit=64).key()


def test_timm_gets_the_normalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def create_model(name: str, **options: Any) -> nn.Module:
        asked.update(options, name=name)
        if name == "vit":
            raise TypeError("unexpected keyword argument 'norm_layer'")
        return nn.Sequential(options["norm_layer"](8, device=None))

    fake = ModuleType("timm")
    fake.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", fake)
    model = models.network("timm:resnet18", nn.BatchNorm2d, 7, 1)
    assert (asked["name"], asked["num_classes"], asked["in_chans"]) == ("resnet18", 7, 1)
    assert isinstance(next(model.children()), nn.BatchNorm2d)
    with pytest.raises(ValueError, match="model='timm:vit' cannot be made with norm_layer"):
        models.network("timm:vit", nn.BatchNorm2d, 7, 1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet51", {}, "model='resnet51' is not known; .*did you mean 'resnet5"),
        ("wrn-11-2", {}, "expected wrn-DEPTH-WIDTH"),
        ("no_such_package:net", {}, "there is no module 'no_such_package'"),
        (f"{__name__}:nothing", {}, "returned a str; expected a torch module"),
        ("wrn-10-2", {"width": 4}, "width=4 is not for model='wrn-10-2'"),
        ("mobilenet-v2", {"stride": 4}, "stride=4 is not for model='mobilenet-v2'"),
    ],
)
def test_bad_names(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        models.network(name, nn.BatchNorm2d, 10, 3, **options)
