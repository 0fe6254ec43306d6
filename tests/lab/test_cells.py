"""Networks of cells: the sizes of the published ones; mixing one operation is applying it."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from benchmarks.search import straightforward
from torch import nn

import bgn
from bgn.factory import NAMES
from bgn_lab.experiments.nas.genotype import NAMED, OPERATIONS, Edge, Genotype
from bgn_lab.experiments.nas.mixture import mixture
from bgn_lab.experiments.nas.network import FoundCell, FoundNetwork, SearchNetwork, drop_path
from bgn_lab.experiments.nas.operations import Alone, FactorizedReduce, operation


def plain(C: int, *, affine: bool = True) -> nn.Module:
    return nn.BatchNorm2d(C, affine=affine)


def count(module: nn.Module | None) -> int:
    assert module is not None
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "parameters"), [("DARTS_V1", 3_169_414), ("DARTS_V2", 3_349_342)])
def test_parameters_of_published_networks(name: str, parameters: int) -> None:
    model = FoundNetwork(NAMED[name], 36, 20, 10, plain)
    assert count(model.auxiliary) == 476_426
    assert count(model) - count(model.auxiliary) == parameters


def test_parameters_of_the_network_for_searching() -> None:
    model = SearchNetwork(16, 8, 10, plain)
    assert count(model) == 1_930_618
    affine = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d) and m.affine]
    assert affine == [model.stem[1]], "no other normalizer has weight and bias"


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_operations(name: str, stride: int) -> None:
    x = torch.randn(2, 8, 8, 8)
    own = operation(name, 8, stride, plain)
    assert own(x).shape == (2, 8, 8 // stride, 8 // stride)
    normalized = any(isinstance(m, nn.BatchNorm2d) for m in own.modules())
    assert normalized == ("conv" in name or (name == "skip_connect" and stride == 2))
    if name == "none":
        assert not own(x).any()
    if (name, stride) == ("skip_connect", 1):
        assert own(x) is x


def test_a_reduction_sees_every_second_pixel_of_both_kinds() -> None:
    own = FactorizedReduce(1, 2, plain, affine=True).eval()
    with torch.no_grad():
        own.conv_1.weight.fill_(1)
        own.conv_2.weight.fill_(1)
    x = torch.rand(1, 1, 4, 4)
    y = own(x) * (1 + 1e-5) ** 0.5  # of the variance
    torch.testing.assert_close(y[0, 0], x[0, 0, ::2, ::2])
    torch.testing.assert_close(y[0, 1], x[0, 0, 1::2, 1::2])
    with pytest.raises(ValueError, match="maps of 5x4 cannot be halved"):
        own(torch.rand(1, 1, 5, 4))
    with pytest.raises(ValueError, match="K=3 channels cannot be halved"):
        FactorizedReduce(1, 3, plain, affine=True)


def test_mixing_one_operation_is_applying_it() -> None:
    torch.manual_seed(0)
    model = SearchNetwork(4, 5, 10, plain).double().eval()
    x = torch.randn(2, 3, 16, 16).double()
    chosen = [torch.randint(len(OPERATIONS), (14,)).tolist() for _ in range(5)]
    one_hot = [nn.functional.one_hot(torch.tensor(own), len(OPERATIONS)).double() for own in chosen]
    torch.testing.assert_close(model(x, chosen), model(x, one_hot))
    shared = [chosen[0], chosen[1]]
    torch.testing.assert_close(model(x, shared), model(x, [shared[i in (1, 3)] for i in range(5)]))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_mixture_is_the_straightforward_one(layout: torch.memory_format) -> None:
    """Shared beginnings, dilation by parts and sums in one sweep change nothing.

    Outputs, gradients and running statistics are those of the straightforward network.
    """
    torch.manual_seed(0)
    x, y = torch.randn(4, 3, 16, 16).double().to(memory_format=layout), torch.arange(4)
    ours = SearchNetwork(4, 4, 10, plain).double().to(memory_format=layout)
    theirs = straightforward(copy.deepcopy(ours), plain).double()
    found = []
    for model in (ours, theirs):
        alphas = torch.linspace(-1, 1, 224).double().view(2, 14, 8).requires_grad_()
        logits = model(x, list(alphas.softmax(-1)))
        loss = nn.functional.cross_entropy(logits, y)
        found.append((logits, *torch.autograd.grad(loss, [alphas, *model.parameters()])))
    assert len(found[0]) == len(found[1])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)
    weights = list(alphas.softmax(-1))
    torch.testing.assert_close(ours.eval()(x, weights), theirs.eval()(x, weights))


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 4, 10), (2, 2, 7, 8), (1, 1, 2, 2)])
def test_dilation_by_parts_is_dilation(
    size: int, stride: int, shape: tuple[int, int, int, int]
) -> None:
    torch.manual_seed(0)
    own = Alone(shape[1], size, stride, 2).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y, plainly = own(x), nn.Conv2d.forward(own, x)
    torch.testing.assert_close(y, plainly)
    g = torch.randn_like(plainly)
    ours, theirs = (torch.autograd.grad(out, (x, own.weight), g) for out in (y, plainly))
    torch.testing.assert_close(ours, theirs)


def test_gradients_of_a_mixture() -> None:
    torch.manual_seed(0)
    weights = torch.randn(3, dtype=torch.float64, requires_grad=True)
    parts = [torch.randn(2, 3, dtype=torch.float64, requires_grad=i != 1) for i in range(3)]
    torch.testing.assert_close(
        mixture(weights, parts), sum(w * part for w, part in zip(weights, parts, strict=True))
    )

    def apply(*all_of_them: torch.Tensor) -> torch.Tensor:
        return mixture(all_of_them[0], all_of_them[1:])

    assert torch.autograd.gradcheck(apply, (weights, *parts))
    assert torch.autograd.gradgradcheck(apply, (weights, *parts))
    assert torch.autograd.gradcheck(apply, (weights.detach(), *parts))
    last = torch.randn(2, 3, 4, 5, dtype=torch.float64).to(memory_format=torch.channels_last)
    assert torch.autograd.gradcheck(apply, (weights[:2], last, last.contiguous()))


def test_only_what_is_chosen_is_computed() -> None:
    model = SearchNetwork(4, 3, 10, plain)
    seen: list[str] = []
    for cell in model.cells:
        for edge in cell.edges:  # type: ignore[union-attr]
            for name, own in zip(OPERATIONS, edge, strict=True):
                own.register_forward_hook(lambda *_, name=name: seen.append(name))
    model(torch.randn(2, 3, 16, 16), [[4] * 14] * 3)
    assert seen == ["sep_conv_3x3"] * 14 * 3


def test_a_found_network_is_the_mixture_with_the_same_operations() -> None:
    """Both compute the same where all edges are there and no pool is.

    Pools have a normalizer for searching only.
    """
    torch.manual_seed(0)
    cell = tuple(
        tuple(Edge("dil_conv_3x3", state) for state in range(2 + node)) for node in range(4)
    )
    search, found = (
        SearchNetwork(4, 3, 10, plain).double(),
        FoundNetwork(Genotype(cell, cell), 4, 3, 10, plain, False).double(),
    )
    chosen = [[OPERATIONS.index("dil_conv_3x3")] * 14] * 3
    ours = {
        k: v for k, v in search.state_dict().items() if ".edges." not in k or k.split(".")[4] == "6"
    }
    theirs = found.state_dict()
    weights = [v for v in ours.values() if v.dim() == 4]
    assert len(weights) == sum(v.dim() == 4 for v in theirs.values())
    with torch.no_grad():
        for own, value in zip([v for v in theirs.values() if v.dim() == 4], weights, strict=True):
            own.copy_(value)
        found.fc.load_state_dict(search.fc.state_dict())
    x = torch.randn(4, 3, 16, 16).double()
    torch.testing.assert_close(found(x), search(x, chosen))


def test_dropped_paths_keep_the_mean() -> None:
    torch.manual_seed(0)
    x = torch.ones(20_000, 2, 1, 1)
    y = drop_path(x, 0.3, training=True)
    assert y.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert float(y.mean()) == pytest.approx(1, abs=0.02)
    assert torch.equal(y[:, 0], y[:, 1]), "whole samples"
    assert drop_path(x, 0.3, training=False) is x
    assert drop_path(x, 0.0, training=True) is x


def test_paths_are_dropped_on_all_edges_but_identities() -> None:
    only = tuple((Edge("skip_connect", 0),) for _ in range(4))
    convs = tuple((Edge("sep_conv_3x3", 0),) for _ in range(4))
    x = torch.randn(8, 12, 16, 16)
    for genotype, same in ((only, True), (convs, False)):
        cell = FoundCell(genotype, 12, 12, 4, False, False, plain)
        assert torch.equal(cell(x, x, 0.9), cell(x, x)) == same
        assert torch.equal(cell.eval()(x, x, 0.9), cell(x, x))


@pytest.mark.parametrize("norm", NAMES)
def test_every_normalizer_trains_a_step(norm: str) -> None:
    groups = {"gn": 2, "gbgn": 2, "bgn": 16}.get(norm)

    def make(C: int, *, affine: bool = True) -> nn.Module:
        return bgn.norm_layer(norm, num_groups=groups, affine=affine)(C)

    torch.manual_seed(0)
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    search: Any = SearchNetwork(4, 3, 10, make)
    alphas = torch.zeros(2, 14, 8, requires_grad=True)
    nn.functional.cross_entropy(search(x, list(alphas.softmax(-1))), y).backward()
    assert alphas.grad is not None
    assert float(alphas.grad.abs().sum()) > 0
    found: Any = FoundNetwork(NAMED["DARTS_V2"], 4, 3, 10, make)
    degenerate = pytest.warns(
        UserWarning, match="one element and outputs the bias alone"
    )  # on 1x1 maps
    with degenerate if norm == "in" else nullcontext():
        logits, beside = found(x, both=True)
        assert found.eval()(x).shape == (4, 10)
    (
        nn.functional.cross_entropy(logits, y) + 0.4 * nn.functional.cross_entropy(beside, y)
    ).backward()
    assert all(p.grad is not None for p in found.parameters())
