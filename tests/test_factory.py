"""Normalizers by name, and the paper's schedule."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bgn
from bgn.factory import NAMES, NORMALIZERS, usual_groups
from bgn.surgery.kinds import identify


@pytest.mark.parametrize("name", NAMES)
def test_every_name_makes_a_layer_that_trains_and_pickles(name: str) -> None:
    torch.manual_seed(0)
    make = pickle.loads(pickle.dumps(bgn.norm_layer(name, batch_size=2)))
    model = nn.Sequential(
        nn.Conv2d(3, 36, 3), make(36), nn.ReLU(), nn.Flatten(), nn.Linear(36 * 36, 2)
    )
    x, target = torch.randn(16, 3, 8, 8), torch.arange(16) % 2
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert {n for n, _ in make(36).named_parameters()} == {"weight", "bias"}


def test_what_each_name_means() -> None:
    layers: dict[str, Any] = {name: bgn.norm_layer(name, batch_size=8)(64) for name in NAMES}
    assert type(layers["bn"]) is nn.BatchNorm2d
    assert [layers[n].num_groups for n in ("in", "ln", "gn", "gbgn", "bgn")] == [64, 1, 32, 32, 16]
    assert layers["gbgn"].batch_blocks == 1
    assert type(layers["pn"]) is bgn.PositionalNorm2d
    x = torch.randn(3, 64, 5, 5)
    torch.testing.assert_close(layers["in"](x), nn.InstanceNorm2d(64)(x))
    torch.testing.assert_close(layers["ln"](x), nn.LayerNorm((64, 5, 5))(x))


def test_options_reach_the_layer() -> None:
    layer: Any = bgn.norm_layer("bgn", num_groups=4, eps=1e-3, momentum=None, affine=False)(8)
    assert (layer.eps, layer.momentum, layer.weight) == (1e-3, None, None)
    assert bgn.norm_layer("in", affine=False)(8).weight is None


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_layers_for_volumes_and_sequences(name: str, spatial: int) -> None:
    known = tuple(NORMALIZERS[name].layers)
    if spatial not in known:
        with pytest.raises(ValueError, match=f"spatial={spatial} has no layer of '{name}'"):
            bgn.norm_layer(name, batch_size=2, spatial=spatial)
        return
    layer = bgn.norm_layer(name, batch_size=2, spatial=spatial)(8)
    assert type(layer) is NORMALIZERS[name].layers[spatial]
    x = torch.randn(2, 8, *[4] * spatial)
    y = layer(x).detach()
    assert y.shape == x.shape
    assert abs(float(y.mean())) < 1e-5


def test_instance_norm_of_1x1_maps_is_the_bias() -> None:
    layer: Any = bgn.norm_layer("in")(4)
    nn.init.normal_(layer.bias)
    with pytest.warns(UserWarning, match="outputs the bias alone"):
        y = layer(torch.randn(2, 4, 1, 1))
    assert torch.equal(y, layer.bias.view(1, 4, 1, 1).expand(2, 4, 1, 1))


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (
            ("batchgroup",),
            {},
            "name='batchgroup' is not known; accepted: bn, in, ln, gn, pn, gbgn, bgn",
        ),
        (("BGN",), {}, "did you mean 'bgn'"),
        (("bgn",), {}, "num_groups=None and batch_size=None for 'bgn'; expected one"),
        (("bgn",), {"batch_size": 0}, "batch_size=0"),
        (("bn",), {"batch_size": -1}, "batch_size=-1"),
        (("ln",), {"num_groups": 8}, "num_groups=8 has no meaning for 'ln'"),
        (("gn",), {"num_groups": 0}, "num_groups=0"),
    ],
)
def test_refusals(args: tuple[str, ...], kwargs: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bgn.norm_layer(*args, **kwargs)


def test_the_papers_schedule() -> None:
    printed = {128: 512, 64: 256, 32: 128, 16: 64, 8: 16, 4: 2, 2: 1}
    assert {n: bgn.paper_groups(n) for n in printed} == printed
    between = [bgn.paper_groups(n) for n in range(1, 2000)]
    assert between == sorted(between)
    assert bgn.paper_groups(1) == 1
    assert bgn.paper_groups(127) == 256
    assert bgn.paper_groups(5000) == 512
    with pytest.raises(TypeError, match=r"batch_size=2.0 is a float"):
        bgn.paper_groups(2.0)  # type: ignore[arg-type]


def test_group_norm_has_groups_of_two_or_more_whole_channels() -> None:
    make = bgn.norm_layer("gn")
    widths = {1: 1, 3: 1, 8: 4, 36: 18, 64: 32, 100: 25, 512: 32}
    assert {C: make(C).num_groups for C in widths} == widths
    assert bgn.norm_layer("gn", num_groups=32)(8).num_groups == 32, "an int is used as given"


@pytest.mark.parametrize("name", NAMES)
def test_numpys_integers_are_accepted(name: str) -> None:
    takes_groups = NORMALIZERS[name].fixed_groups is None
    groups = {"num_groups": np.int64(4)} if takes_groups else {}
    layer: Any = bgn.norm_layer(name, batch_size=np.int64(8), **groups)(8)
    if takes_groups:
        assert (layer.num_groups, type(layer.num_groups)) == (4, int)


@pytest.mark.parametrize("word", ["Auto", "AUTO", "papers"])
def test_a_misspelled_word_is_told_the_right_ones(word: str) -> None:
    with pytest.raises(
        ValueError, match=f"num_groups='{word}'; .*'paper', 'auto', 'channels'; did you mean"
    ):
        bgn.norm_layer("bgn", num_groups=word)
    with pytest.raises(
        TypeError, match=f"num_groups='{word}' .*'paper', 'auto' and 'channels' are for 'bgn'"
    ):
        bgn.norm_layer("gn", num_groups=word)


class TestTable:
    """The rows agree with the layers that they make."""

    @pytest.mark.parametrize(
        ("name", "spatial"), [(name, n) for name in NAMES for n in NORMALIZERS[name].layers]
    )
    def test_a_layer_is_recognized_as_its_row(self, name: str, spatial: int) -> None:
        row = NORMALIZERS[name]
        G = usual_groups(name, 8) or 4
        layer: Any = row.make(spatial, 8, G)
        kind = identify(layer)
        assert kind is not None
        assert (kind.name, kind.num_features) == (name, 8)
        assert kind.spatial in (None, spatial)
        assert layer(torch.randn(2, 8, *[3] * spatial)).shape[1] == 8
        assert (getattr(layer, "running_mean", None) is not None) == row.running_statistics

    @pytest.mark.parametrize("name", [name for name in NAMES if NORMALIZERS[name].cut])
    def test_the_partition_is_what_the_layer_normalizes_together(self, name: str) -> None:
        row = NORMALIZERS[name]
        G = usual_groups(name, 8) or 4
        x = torch.randn(4, 8, 3, 3, dtype=torch.float64)
        y = row.make(2, 8, G, dtype=torch.float64)(x).flatten()
        part = row.partition(4, 8, 9, G, 1)
        assert part is not None
        labels = part.labels().flatten()
        for label in labels.unique():
            own = y[labels == label]
            assert own.mean().abs() < 1e-9
            assert abs(own.var(correction=0).item() - 1) < 1e-3
