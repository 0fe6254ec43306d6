"""Frozen normalizers stay as they are through training, copies and files."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import bgn
from tests.test_support import Doubled, FrozenBatchNorm2d
from tests.tolerance import assert_close


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        bgn.BatchGroupNorm2d(8, 2),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, 1),
        bgn.GroupNorm(2, 8),
    )


def train_some(net: Any) -> None:
    net.train()
    optimizer = torch.optim.SGD(
        [p for p in net.parameters() if p.requires_grad], 0.1, weight_decay=0.1
    )
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 3, 8, 8)).pow(3).sum().backward()
        optimizer.step()


def test_frozen_layers_do_not_move_and_thawed_ones_do() -> None:
    net = model()
    net[1].bias.requires_grad_(False)
    keys = list(net.state_dict())
    assert bgn.freeze(net) is net
    assert list(net.state_dict()) == keys
    before = copy.deepcopy(net.state_dict())
    train_some(net)
    for key, value in net.state_dict().items():
        layer = net[int(key[0])]
        assert torch.equal(value, before[key]) == (not isinstance(layer, nn.Conv2d)), key
    bgn.unfreeze(net)
    assert [type(net[i]) for i in (1, 3, 5)] == [
        bgn.BatchGroupNorm2d,
        nn.BatchNorm2d,
        bgn.GroupNorm,
    ]
    assert (net[1].weight.requires_grad, net[1].bias.requires_grad) == (True, False)
    train_some(net)
    assert not torch.equal(net.state_dict()["1.running_mean"], before["1.running_mean"])
    assert not torch.equal(net.state_dict()["5.weight"], before["5.weight"])
    assert torch.equal(net.state_dict()["1.bias"], before["1.bias"])


def test_freezing_twice_is_freezing_once() -> None:
    net = bgn.freeze(bgn.freeze(model()))
    assert type(net[1]).__name__ == "FrozenBatchGroupNorm2d"
    bgn.unfreeze(bgn.unfreeze(net))
    assert all(p.requires_grad for p in net.parameters())
    assert net[1].training


def test_copies_and_pickles_stay_frozen() -> None:
    net = bgn.freeze(model())
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    x = torch.randn(2, 3, 8, 8)
    for twin in (
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),
        torch.load(file, weights_only=False),
    ):
        twin.train()
        assert not twin[1].training
        assert isinstance(twin[3], nn.BatchNorm2d)
        assert_close(twin(x), net(x))
        bgn.unfreeze(twin).train()
        assert twin[1].training
    assert not net[1].training


def test_compiles_and_exports() -> None:
    torch.compiler.reset()
    net = bgn.freeze(model()).train()
    x = torch.randn(2, 3, 8, 8)
    assert_close(torch.compile(net, fullgraph=True, backend="aot_eager")(x), net(x))
    assert_close(torch.export.export(net, (x,)).module()(x), net(x))


def test_conversion_keeps_frozen_layers_frozen() -> None:
    net = bgn.freeze(model()).double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    before = net(x)
    bgn.convert(net, num_groups=4, only=nn.BatchNorm2d)
    assert type(net[3]).__name__ == "FrozenBatchGroupNorm2d"
    assert_close(net.train()(x), before)
    bgn.unfreeze(net)
    assert net[3].weight.requires_grad
    assert net[3].training


def test_a_model_without_normalizers_is_refused() -> None:
    with pytest.raises(ValueError, match="Sequential has no normalizer"):
        bgn.freeze(nn.Sequential(nn.Conv2d(3, 3, 1)))


def test_modes_come_back() -> None:
    alone = nn.BatchNorm2d(4).eval()
    assert not bgn.unfreeze(bgn.freeze(alone)).training
    net = model().train()
    net[3].eval()
    bgn.unfreeze(bgn.freeze(net))
    assert net[1].training
    assert not net[3].training
    bgn.freeze(net).eval()
    assert not bgn.unfreeze(net)[1].training


def test_a_detectors_frozen_batch_norm_is_left() -> None:
    net = nn.Sequential(FrozenBatchNorm2d(4))
    assert type(bgn.unfreeze(bgn.freeze(net))[0]) is FrozenBatchNorm2d


def test_parametrized_weights_are_frozen_too() -> None:
    net = model()
    parametrize.register_parametrization(net[1], "weight", Doubled())
    bgn.freeze(net)
    assert not any(p.requires_grad for p in net[1].parameters())
    bgn.unfreeze(net)
    assert all(p.requires_grad for p in net[1].parameters())


def test_a_parametrization_of_a_frozen_layer_is_named() -> None:
    net = bgn.freeze(model())
    parametrize.register_parametrization(net[1], "weight", Doubled())
    with pytest.raises(ValueError, match="1 was parametrized after it was frozen"):
        bgn.unfreeze(net)
    assert type(net[3]).__name__ == "FrozenBatchNorm2d"
