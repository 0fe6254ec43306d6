"""Standardized weights beside the rest: the library's functions on models, and torch's."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bgn
from bgn.surgery.standardized import Standardized
from tests.test_convert import Residual, trained
from tests.tolerance import assert_close

x = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(1))


def network() -> Any:
    """Several kinds of convolutions and normalizers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8),
        bgn.BatchGroupNorm2d(8, 2),
        nn.ConvTranspose2d(8, 4, 3, stride=2),
        bgn.GroupNorm(2, 4),
    )


def standardized() -> Any:
    return bgn.standardize(network(), gain=True)


def train(model: Any, steps: int = 3, batch: Tensor = x) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).pow(3).mean().backward()
        optimizer.step()


def test_conversions_go_on() -> None:
    model = trained(bgn.standardize(network()), dtype=torch.float64)
    batch = x.double()
    before = model(batch)
    bgn.convert(model, num_groups=4, only=nn.BatchNorm2d)
    assert_close(model(batch), before)
    bgn.regroup(model, 8)
    assert_close(model(batch), before)
    bgn.freeze(model).train()
    assert_close(model(batch), before)
    bgn.unfreeze(model).eval()
    bgn.convert_sync(model)
    assert_close(model(batch), before)
    assert sum(isinstance(m, Standardized) for m in model.modules()) == 3


def test_a_frozen_normalizer_behind_a_standardized_convolution() -> None:
    model = bgn.freeze(standardized())
    before = model[0].weight.clone()
    statistics = model[1].running_mean.clone()
    train(model.train())
    assert not torch.equal(model[0].weight, before)
    assert torch.equal(model[1].running_mean, statistics)
    bgn.standardize(model, gain=True)
    both = bgn.standardize(bgn.freeze(network()))
    assert isinstance(both[0], Standardized)
    folded: Any
    with pytest.warns(UserWarning, match="left: 6$"):
        folded = bgn.fold(model.eval())
    assert_close(folded(x), model(x))
    assert not any(isinstance(m, Standardized) for m in folded.modules())
    assert [type(folded[i]) for i in (0, 3, 5)] == [nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d]


def test_convert_standardizes_on_request() -> None:
    model = network()
    bgn.convert(model, num_groups=4, only=nn.BatchNorm2d, standardize=True)
    assert [isinstance(model[i], Standardized) for i in (0, 3, 5)] == [True, False, False]
    bgn.convert(model, num_groups=2, standardize=True, only=(bgn.BatchGroupNorm2d,))
    assert [isinstance(model[i], Standardized) for i in (0, 3, 5)] == [True, True, False]
    refused = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1))
    with pytest.raises(ValueError, match="nothing to standardize"):
        bgn.convert(refused, num_groups=1, standardize=True)
    assert type(refused[0]) is nn.BatchNorm2d


def test_nothing_is_standardized_if_the_conversion_is_refused() -> None:
    model = network()
    with pytest.raises(ValueError, match="nothing was converted"):
        bgn.convert(model, num_groups=3, standardize=True)
    assert not any(isinstance(m, Standardized) for m in model.modules())


def test_describe_marks_them_and_only_them() -> None:
    model = network()
    assert "with" not in str(bgn.describe(model, (3, 9, 9), batch_size=4))
    bgn.standardize(model, only=nn.Conv2d)
    found = bgn.describe(model, (3, 9, 9), batch_size=4)
    marks = [row.partners for row in found]
    assert marks == [("standardized",), ("standardized",), ()]
    head, _, first, _, last, _ = str(found).splitlines()
    assert head.endswith("acts as  with")
    assert first.endswith("standardized")
    assert last.endswith("GN")


def test_normalizers_per_domain() -> None:
    model = bgn.convert_domains(network())
    bgn.standardize(model)
    assert sum(isinstance(m, Standardized) for m in model.modules()) == 3
    with bgn.domain(model, "source"):
        train(model)
    block = bgn.standardize(bgn.convert_domains(Residual()))  # found in its trace, not by order
    assert sum(isinstance(m, Standardized) for m in block.modules()) == 4
    one = bgn.keep_domain(model, "source").eval()
    with pytest.warns(UserWarning, match="left: 6$"):
        assert_close(bgn.fold(one)(x), one(x))


def test_copies_pickles_and_files() -> None:
    model = standardized()
    train(model)
    model.eval()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert type(twin[0]) is type(model[0])
        assert_close(twin(x), model(x))
        train(twin.train())
    assert not torch.equal(twin[0].weight, model[0].weight)


def test_averages_of_weights() -> None:
    model = standardized()
    average: Any = torch.optim.swa_utils.AveragedModel(model)
    train(model)
    average.update_parameters(model)
    assert isinstance(average.module[0], Standardized)
    for averaged, own in zip(average.parameters(), model.parameters(), strict=True):
        assert_close(averaged, own)
    torch.optim.swa_utils.update_bn([x, x], average)
    assert average(x).isfinite().all()


def test_gradient_checkpointing() -> None:
    twins = standardized(), standardized()
    twins[0](x).pow(3).mean().backward()
    checkpoint(twins[1], x, use_reentrant=False).pow(3).mean().backward()
    for a, b in zip(*(twin.parameters() for twin in twins), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_compiles_in_one_graph_and_exports() -> None:
    torch.compiler.reset()
    model = standardized()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    model(x).pow(3).mean().backward()
    compiled(x).pow(3).mean().backward()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(a.grad, b.grad)
    exported = torch.export.export(model.eval(), (x,))
    assert_close(exported.module()(x), model(x))
    assert "0.weight" in exported.state_dict


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_precision(dtype: torch.dtype) -> None:
    model = bgn.standardize(nn.Sequential(nn.Conv2d(64, 8, 3), nn.BatchNorm2d(8)))
    expected = model[0].standardized_weight()
    half = copy.deepcopy(model).to(dtype)
    assert half[0].standardized_weight().dtype == dtype
    assert_close(half[0].standardized_weight(), expected, atol=0.02)
    batch = torch.randn(2, 64, 8, 8)
    out = half[0](batch.to(dtype))
    assert out.isfinite().all()
    with torch.autocast("cpu", dtype):
        assert model[0].standardized_weight().dtype == torch.float32
        assert model(batch).isfinite().all()


@pytest.mark.parametrize(
    ("cls", "shape", "layout"),
    [
        (nn.Conv2d, (2, 6, 9, 9), torch.channels_last),
        (nn.Conv3d, (2, 6, 4, 4, 4), torch.channels_last_3d),
    ],
)
def test_channels_last_stays(cls: Any, shape: tuple[int, ...], layout: torch.memory_format) -> None:
    norm = nn.BatchNorm2d(8) if len(shape) == 4 else nn.BatchNorm3d(8)
    conv = cls(6, 8, 3)
    model: Any = bgn.standardize(nn.Sequential(conv, norm))
    batch = torch.randn(shape)
    expected = conv.standardized_weight()
    assert expected.is_contiguous()
    model.to(memory_format=layout)
    weight = conv.standardized_weight()
    assert weight.is_contiguous(memory_format=layout)
    assert_close(weight, expected)
    model(batch.to(memory_format=layout)).pow(3).mean().backward()
    assert conv.weight.grad.is_contiguous(memory_format=layout)


def test_functional_transforms_and_ensembles() -> None:
    models = [standardized().eval() for _ in range(3)]
    for seed, model in enumerate(models):
        torch.manual_seed(seed)
        model[0].reset_parameters()
    parameters, buffers = torch.func.stack_module_state(models)

    def call(parameters: Any, buffers: Any) -> Any:
        return torch.func.functional_call(models[0], (parameters, buffers), (x,))

    found = torch.func.vmap(call)(parameters, buffers)
    assert_close(found, torch.stack([model(x) for model in models]))


def test_meta_device_and_later_values() -> None:
    with torch.device("meta"):
        model = standardized()
    model.to_empty(device="cpu")
    model.load_state_dict(network().state_dict())
    assert_close(model.eval()(x), standardized().eval()(x))


def test_output_size_of_transposed_convolutions() -> None:
    model = bgn.standardize(network())
    y = torch.randn(1, 8, 4, 4)
    assert model[5](y, output_size=[10, 10]).shape[-2:] == (10, 10)


def test_a_wrapped_model_is_refused() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel
        with pytest.raises(TypeError, match="wrapped in DistributedDataParallel"):
            bgn.standardize(parallel(network()))
        model = standardized()
        wrapped = parallel(model)
        train(wrapped, steps=2)
        twin = standardized()
        train(twin, steps=2)
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert_close(own, other)
    finally:
        torch.distributed.destroy_process_group()


def test_a_constant_filter_is_zero_and_has_a_gradient() -> None:
    model = bgn.standardize(nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)))
    nn.init.constant_(model[0].weight, 0.7)
    model(torch.randn(2, 3, 8, 8)).pow(3).mean().backward()
    assert_close(model[0].standardized_weight(), torch.zeros(8, 3, 3, 3), atol=1e-3)
    assert model[0].weight.grad.isfinite().all()
