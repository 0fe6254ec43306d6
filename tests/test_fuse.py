"""convert(fuse_act=True): which pairs are found, what stays, and that the network is the same."""

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bgn
from bgn.surgery.fuse import Fused
from bgn_lab.models.resnet import resnet
from tests.tolerance import assert_close

C = 8


def norm() -> bgn.BatchGroupNorm2d:
    return bgn.BatchGroupNorm2d(C, 2)


def conv() -> nn.Conv2d:
    return nn.Conv2d(C, C, 3, padding=1, bias=False)


class Block(nn.Module):
    """The parts of a block; each subclass has a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = conv(), norm(), nn.ReLU(inplace=True)
        self.conv2, self.norm2 = conv(), norm()


class Twice(Block):
    """One ReLU called twice."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.conv(x)))
        z: Tensor = self.act(self.norm2(self.conv2(y)))
        return z


class Residual(Block):
    """torchvision's way: the shortcut is computed after the second normalizer, then added."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.conv(x)))
        y = self.norm2(self.conv2(y))
        y += self.conv(x)
        z: Tensor = self.act(y)
        return z


class Reversed(Block):
    """The shortcut is changed in place: it may be used elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(x))
        z = self.act(self.norm(self.conv(x)))
        z = z.clone()
        z += y
        total: Tensor = F.relu(z) + z
        return total


class Functional(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.norm(self.conv(x)), 0.1, inplace=True)
        z = self.norm2(self.conv2(y)).add(x)
        return torch.relu(z)


class SmoothSum(Block):
    """A residual before SiLU is left alone."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)) + x)


class Preactivated(Block):
    """The output of the first normalizer is used twice."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        z: Tensor = self.act(y) + y
        return z


class ByMode(Block):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x))
        return F.relu(F.dropout(y, 0.0, self.training))


class Untraceable(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return F.relu(y) if y.sum() > -1e9 else y


class Optional(Block):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        z: Tensor = self.act(self.norm(self.conv(x))) * scale
        return z


def stem() -> nn.Module:
    return nn.Sequential(conv(), norm(), nn.SiLU(), conv(), norm(), nn.Hardswish(), conv(), norm())


def trained(model: nn.Module, shape: tuple[int, ...] = (4, C, 6, 6)) -> nn.Module:
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, bgn.BatchGroupNorm2d):
                m.weight.uniform_(0.5, 1.5)
                m.bias.normal_()
    for _ in range(2):
        model(torch.randn(shape))
    return model


def fused(model: nn.Module, fuse_act: bool | str = True, G: int = 2) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return bgn.convert(copy.deepcopy(model), num_groups=G, fuse_act=fuse_act, exact=False)


def count(model: nn.Module) -> int:
    return sum(isinstance(m, bgn.BatchGroupNormAct2d) for m in model.modules())


def assert_same_network(a: nn.Module, b: nn.Module, x: Tensor) -> None:
    """The same keys; output and gradients in both modes."""
    assert list(a.state_dict()) == list(b.state_dict())
    for training in (False, True):
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        found = [m.train(training)(leaf) for m, leaf in zip((a, b), leaves, strict=True)]
        assert_close(*found)
        for m, y in zip((a, b), found, strict=True):
            m.zero_grad()
            y.square().mean().backward()
        assert_close(*(leaf.grad for leaf in leaves))  # type: ignore[arg-type]
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None and q.grad is not None:
                assert_close(p.grad, q.grad)
    for s, t in zip(a.buffers(), b.buffers(), strict=True):
        assert_close(s, t, torch.float32)


@pytest.mark.parametrize(
    ("build", "layers", "rewritten"),
    [
        (Twice, 2, True),
        (Residual, 2, True),
        (Reversed, 1, False),
        (Functional, 2, True),
        (SmoothSum, 0, False),
        (Preactivated, 0, False),
        (stem, 2, False),
    ],
)
def test_pairs(build: Callable[[], nn.Module], layers: int, rewritten: bool) -> None:
    torch.manual_seed(0)
    model = trained(build())
    own = fused(model)
    assert count(own) == layers
    assert isinstance(own, Fused) == rewritten
    assert isinstance(own, type(model))
    assert_same_network(own, model, torch.randn(4, C, 6, 6))


@pytest.mark.parametrize("build", [ByMode, Untraceable, Optional])
def test_what_cannot_be_traced_is_left_and_reported(build: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(trained(build()), trained(Twice()))
    with pytest.warns(UserWarning, match=r"fuse_act left .* alone.*: 0"):
        own = bgn.convert(copy.deepcopy(model), num_groups=2, fuse_act=True)
    assert count(own) == 2
    assert type(own[0]) is build  # type: ignore[index]
    assert_same_network(own, model, torch.randn(4, C, 6, 6))


def test_hooks_and_shared_layers_are_left() -> None:
    for name in ("norm", "act"):
        model = Twice()
        model.get_submodule(name).register_forward_hook(lambda *_: None)
        assert count(fused(model)) == (1 if name == "norm" else 0)
    model = Twice()
    model.norm2 = model.norm
    assert count(fused(model)) == 0


@pytest.mark.slow
def test_resnet_of_the_paper() -> None:
    """Both families of blocks, copies, files, compiled, folded, and back to BN."""
    torch.manual_seed(0)
    for name, layers in (("resnet8", 7), ("resnet50", 49)):
        side = 16 if name == "resnet8" else 32
        x = torch.randn(4, 3, side, side)
        model = trained(resnet(name, lambda c: bgn.BatchGroupNorm2d(c, 2), 5), tuple(x.shape))
        own = fused(model)
        assert count(own) == layers
        assert type(own.layer1[0]).__name__.startswith("Fused")  # type: ignore[index,union-attr]
        if name == "resnet50":
            model, own = model.double(), own.double()  # 53 layers amplify the last bits
            assert_same_network(own, model, x.double())
            continue
        assert_same_network(own, model, x)
        y = own.eval()(x)
        file = io.BytesIO()
        torch.save(own, file)
        file.seek(0)
        for again in copy.deepcopy(own), torch.load(file, weights_only=False):
            assert torch.equal(again(x), y)
            assert again.layer1[0].bn1 is not own.layer1[0].bn1  # type: ignore[index,union-attr]
        assert_close(torch.fx.symbolic_trace(own)(x), y)
        folded = bgn.fold(own, example=x)
        assert not any(isinstance(m, bgn.BatchGroupNorm2d) for m in folded.modules())
        assert_close(folded(x), y)
        assert_close(bgn.convert(copy.deepcopy(own), "bn")(x), y)
        assert_close(torch.compile(own, backend="aot_eager", fullgraph=True)(x), y)
        assert count(fused(own)) == layers  # nothing more to find, nothing to warn of


def test_leaky_layers_keep_their_output() -> None:
    """With the sum at the end of a block, its shortcut's normalizer keeps its output too."""
    model = trained(resnet("resnet8", lambda c: bgn.BatchGroupNorm2d(c, 2), 5), (4, 3, 16, 16))
    for m in list(model.modules()):
        if hasattr(m, "relu"):
            m.relu = nn.LeakyReLU(0.1, inplace=True)
    own = fused(model, "output")
    saves = {n: m.save for n, m in own.named_modules() if isinstance(m, bgn.BatchGroupNormAct2d)}
    assert set(saves.values()) == {"output"}
    assert "layer2.0.downsample.1" in saves
    assert_same_network(own, model, torch.randn(4, 3, 16, 16))
    plain = fused(Twice(), "output")
    assert not any(m.save == "output" for m in plain.modules() if hasattr(m, "save"))  # ReLU


def test_layers_that_contain_their_activation_become_fused() -> None:
    """As timm's BatchNormAct2d, which convert makes a layer with an activation of its own."""
    model = fused(nn.Sequential(conv(), norm(), nn.SiLU()))
    back = bgn.convert(copy.deepcopy(model), "bn")
    assert type(back[1]).__name__ == "ActivatedBatchNorm2d"  # type: ignore[index]
    again = bgn.convert(back, num_groups=2, fuse_act=True)
    assert type(again[1]) is bgn.BatchGroupNormAct2d  # type: ignore[index]


@pytest.mark.parametrize(
    ("norm_name", "value"), [("bn", True), ("gn", "output"), ("bgn", "input"), ("bgn", 3)]
)
def test_errors(norm_name: str, value: Any) -> None:
    model = Twice()
    with pytest.raises(ValueError, match=f"fuse_act={value!r} with norm={norm_name!r}; expected"):
        bgn.convert(model, norm_name, batch_size=2, fuse_act=value)
    assert type(model) is Twice
