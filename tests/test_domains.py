"""Normalizers per domain: each copy is a layer of its own, and a forgotten switch is an error."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.checkpoint import checkpoint

import bgn
from tests.test_sync import spread

GROUPS = {"gn": 2, "gbgn": 2, "bgn": 4}
NORMS = ("bn", "in", "ln", "gn", "pn", "gbgn", "bgn")


def network(norm: str = "bgn") -> Any:
    torch.manual_seed(0)
    make = (
        bgn.norm_layer(norm, num_groups=GROUPS.get(norm))
        if norm in GROUPS
        else bgn.norm_layer(norm)
    )
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), make(8), nn.ReLU(), nn.Conv2d(8, 8, 3), make(8)
    ).double()


def images(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("norm", NORMS)
def test_each_domain_is_a_network_of_its_own(norm: str) -> None:
    alone = {name: network(norm) for name in ("source", "target")}
    both = bgn.convert_domains(network(norm))
    for step in range(3):
        for name, shift in {"source": 0.0, "target": 3.0}.items():
            x = images(4, step) + shift
            with bgn.domain(both, name):
                assert torch.equal(both(x), alone[name](x))
    state = both.state_dict()
    for name, own in alone.items():
        for key, value in own.state_dict().items():
            layer, rest = key.split(".")
            assert torch.equal(state[key if layer in "03" else f"{layer}.{name}.{rest}"], value)
    assert len(state) == 4 + 2 * (len(alone["source"].state_dict()) - 4), (
        "convolutions once, normalizers twice"
    )
    assert ("1.target.running_mean" in state) == (norm in ("bn", "gbgn", "bgn"))


@pytest.mark.parametrize("norm", NORMS)
def test_parts_of_a_batch_are_as_batches(norm: str) -> None:
    one, other = bgn.convert_domains(network(norm)), bgn.convert_domains(network(norm))
    parts, x = [("source", 2), ("source", 3), ("target", 4)], images(9).requires_grad_()
    with bgn.domain(one, parts):
        together = one(x)
    apart = []
    for (name, _), part in zip(parts, images(9).split([2, 3, 4]), strict=True):
        with bgn.domain(other, name):
            apart.append(other(part))
    torch.testing.assert_close(together, torch.cat(apart))
    together.square().sum().backward()
    torch.cat(apart).square().sum().backward()
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)
    for (name, value), own in zip(one.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(value, own, msg=name)


class TestForgottenSwitch:
    def test_is_an_error(self) -> None:
        model = bgn.convert_domains(network())
        with pytest.raises(
            RuntimeError,
            match="no domain is chosen; expected with bgn.domain.*one of source, target",
        ):
            model(images(2))

    def test_after_a_context_even_one_that_failed(self) -> None:
        model = bgn.convert_domains(network())
        with pytest.raises(KeyError), bgn.domain(model, "source"), bgn.domain(model, "target"):
            raise KeyError
        with pytest.raises(RuntimeError, match="no domain"):
            model(images(2))

    def test_inner_contexts_end_in_the_outer_one(self) -> None:
        model = bgn.convert_domains(network())
        with bgn.domain(model, "source"):
            with bgn.domain(model, "target"):
                model(images(2))
            model(images(2))
            model(images(2))
        assert [int(model[1][name].num_batches_tracked) for name in ("source", "target")] == [2, 1]

    def test_in_copies_made_within_a_context(self) -> None:
        model, file = bgn.convert_domains(network()), io.BytesIO()
        with bgn.domain(model, "source"):
            twin = copy.deepcopy(model)
            torch.save(model, file)
            model(images(2))
        for other in (twin, torch.load(io.BytesIO(file.getvalue()), weights_only=False)):
            with pytest.raises(RuntimeError, match="no domain"):
                other(images(2))

    def test_when_activations_are_recomputed(self) -> None:
        model = bgn.convert_domains(network())
        with bgn.domain(model, "source"):
            loss = checkpoint(model, images(2), use_reentrant=False).sum()
        with (
            bgn.domain(model, "target"),
            pytest.raises(RuntimeError, match="enter bgn.domain within the checkpointed"),
        ):
            loss.backward()

    def test_recomputing_is_right_with_the_switch_inside(self) -> None:
        model, plain = bgn.convert_domains(network()), bgn.convert_domains(network())

        def segment(x: Tensor) -> Tensor:
            with bgn.domain(model, "source"):
                return model(x)

        checkpoint(segment, images(2), use_reentrant=False).square().sum().backward()
        with bgn.domain(plain, "source"):
            plain(images(2)).square().sum().backward()
        torch.testing.assert_close(model[0].weight.grad, plain[0].weight.grad)
        assert int(model[1]["source"].num_batches_tracked) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m: bgn.domain(m, "else"), "domain='else' is not one of source, target"),
        (lambda m: bgn.domain(m, []), r"domain=\[\] is empty"),
        (lambda m: bgn.domain(m, [("source", 0)]), "images of domain 'source'=0"),
        (
            lambda m: bgn.domain(m[0], "source"),
            "has no normalizers per domain; expected a model from bgn.convert_domains",
        ),
    ],
)
def test_bad_domains(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message), wrong(bgn.convert_domains(network())):
        pass


def test_parts_that_do_not_fit() -> None:
    model = bgn.convert_domains(network())
    with (
        bgn.domain(model, [("source", 2), ("target", 3)]),
        pytest.raises(ValueError, match="are 5 images, the batch has 4"),
    ):
        model(images(4))


@pytest.mark.parametrize(
    "names",
    [("a",), ("a", "a"), ("a", "x.y"), ("a", "train"), ("a", "keys"), ("a", "training"), ("a", 1)],
)
def test_bad_names(names: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="domains="):
        bgn.convert_domains(network(), names)


def test_converting_twice_changes_nothing_and_other_domains_are_refused() -> None:
    model = bgn.convert_domains(network())
    keys = list(model.state_dict())
    assert list(bgn.convert_domains(model).state_dict()) == keys
    with pytest.raises(ValueError, match="domains=.'a', 'b'., but 1 has source, target already"):
        bgn.convert_domains(model, ("a", "b"))
    with pytest.raises(ValueError, match="has no normalizer"):
        bgn.convert_domains(nn.ReLU())


def test_a_state_dict_of_before_goes_into_every_copy() -> None:
    trained = network()
    trained(images(4))
    model = bgn.convert_domains(network())
    model.load_state_dict(trained.state_dict())
    for name in ("source", "target"):
        with bgn.domain(model.eval(), name):
            assert torch.equal(model(images(4)), trained.eval()(images(4)))
    with pytest.raises(RuntimeError, match="Unexpected key.*1.nonsense"):
        model.load_state_dict({**model.state_dict(), "1.nonsense": torch.ones(1)})
    again = bgn.convert_domains(network())
    again.load_state_dict(model.state_dict())


def test_keep_domain_is_an_ordinary_model_again() -> None:
    model = bgn.convert_domains(network())
    keys = list(network().state_dict())
    with bgn.domain(model, "target"):
        model(images(4))
        expected = model.eval()(images(4))
    kept = bgn.keep_domain(model, "target")
    assert list(kept.state_dict()) == keys
    assert torch.equal(kept(images(4)), expected)
    torch.testing.assert_close(bgn.fold(kept)(images(4)), expected)


def test_a_normalizer_alone_and_a_shared_one() -> None:
    alone = bgn.convert_domains(nn.BatchNorm2d(8))
    assert isinstance(alone, bgn.DomainNorm)
    assert isinstance(bgn.keep_domain(alone, "source"), nn.BatchNorm2d)
    norm = nn.BatchNorm2d(3)
    twice = bgn.convert_domains(nn.Sequential(norm, nn.Conv2d(3, 3, 1), norm))
    assert twice[0] is twice[2]


def test_hooks_stay_where_the_layer_was() -> None:
    model, seen = network(), []
    handle = model[1].register_forward_hook(lambda _layer, _args, y: seen.append(len(y)))
    bgn.convert_domains(model)
    with bgn.domain(model, [("source", 2), ("target", 4)]):
        model(images(6))
    assert seen == [6]
    bgn.keep_domain(model, "target")(images(3))
    assert seen == [6, 3]
    handle.remove()
    model(images(3))
    assert seen == [6, 3]


def test_other_tools_see_the_copies() -> None:
    model = bgn.convert_domains(network("bn")).eval()
    with bgn.domain(model, "target"):
        before = model(images(4))
        bgn.convert(model, num_groups=2)
        torch.testing.assert_close(model(images(4)), before)
        assert [row.layer for row in bgn.describe(model, (3, 8, 8), 4)] == ["1.target", "4.target"]
        with pytest.warns(UserWarning, match="no data reached 1.source"):
            bgn.recalibrate(model, [images(4) + 5])
    assert (
        float(model[1]["target"].running_mean.abs().max())
        > 1
        > float(model[1]["source"].running_mean.abs().max())
    )


def test_an_optimizer_trains_all_copies() -> None:
    model = network()
    optimizer = torch.optim.SGD(
        [p for name, p in model.named_parameters() if name != "4.bias"], 0.1
    )
    bgn.convert_domains(model, optimizer=optimizer)
    with bgn.domain(model, [("source", 2), ("target", 2)]):
        model(images(4)).pow(3).sum().backward()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    assert {name for name, p in model.named_parameters() if torch.equal(p, before[name])} == {
        "4.source.bias",
        "4.target.bias",
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled() -> None:
    model, plain = bgn.convert_domains(network()), bgn.convert_domains(network())
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(2):
        for name in ("source", "target", [("source", 1), ("target", 3)]):
            x = images(4, step) + 2 * (name == "target")
            with bgn.domain(compiled, name), bgn.domain(plain, name):
                torch.testing.assert_close(compiled(x), plain(x))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, msg=name)
    with pytest.raises(RuntimeError, match="no domain is chosen"):
        compiled(images(4))


def _distributed(rank: int) -> dict[str, Any]:
    model = nn.parallel.DistributedDataParallel(bgn.convert_domains(network()))
    with bgn.domain(model, [("source", 2), ("target", 2)]):
        model(images(8)[4 * rank : 4 * rank + 4]).square().mean().backward()
    with pytest.raises(RuntimeError, match="no domain is chosen"):
        model(images(4))
    return {name: p.grad for name, p in model.module.named_parameters()}


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")
def test_distributed(tmp_path: Path) -> None:
    """Both domains in one forward pass, so every parameter has a gradient, as DDP expects."""
    found = spread(_distributed, 2, tmp_path)
    model = bgn.convert_domains(network())
    total = sum(_loss(model, images(8)[4 * rank : 4 * rank + 4]) for rank in range(2)) / 2
    total.backward()
    for name, p in model.named_parameters():
        for own in found:
            torch.testing.assert_close(own[name], p.grad, msg=name)
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        bgn.convert_domains(_wrapped(tmp_path))


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    with bgn.domain(model, [("source", 2), ("target", 2)]):
        return model(x).square().mean()


def _wrapped(folder: Path) -> nn.Module:
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "alone"), 1), rank=0, world_size=1
    )
    try:
        return nn.parallel.DistributedDataParallel(network())
    finally:
        dist.destroy_process_group()
