"""Compile, export, trace: everything that records the layer and runs it later."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.differential.layers import Make, state, step
from tests.differential.table import CORE, STANDARD, TRAINING, use


def _compiled(make: Make, backend: str, **options: Any) -> Any:
    layer = make()
    run = torch.compile(layer, backend=backend, **options)
    found = []
    for seed in range(2):
        x = make.x(seed=seed)
        y = run(x)
        y.backward(make.gy(y))
        found.append((y, x.grad))
    return found, state(layer)


@use(STANDARD, cases={"backend": ["eager", "aot_eager"], "fullgraph": [False, True]})
def compiled(make: Make, backend: str, fullgraph: bool) -> Any:
    return _compiled(make, backend, fullgraph=fullgraph)


@use([(True, "float64", "channels_last"), (True, "bfloat16", "contiguous")], groups=())
def compiled_in_another_dtype(make: Make) -> Any:
    return _compiled(make, "aot_eager", fullgraph=True)


@use(STANDARD, slow=True, timeout=300)
def compiled_with_inductor(make: Make) -> Any:
    return _compiled(make, "inductor", fullgraph=True)


@use(STANDARD, slow=True, timeout=300)
def compiled_with_inductor_channels_last(make: Make) -> Any:
    make.last = True
    return _compiled(make, "inductor", fullgraph=True)


@use(TRAINING, groups=())
def compiled_dynamic(make: Make) -> Any:
    layer = make()
    run = torch.compile(layer, backend="aot_eager", dynamic=True, fullgraph=True)
    return [run(make.x(N, H=H)) for N, H in ((4, 6), (3, 7), (2, 9))], state(layer)


@use(TRAINING, groups=())
def compiled_model(make: Make) -> Any:
    layer = make()
    model = nn.Sequential(nn.Sigmoid(), layer, nn.Tanh())
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = make.x()
    y = run(x)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(STANDARD, groups=())
def compiled_without_gradients(make: Make) -> Any:
    layer = make()
    with torch.no_grad():
        return torch.compile(layer, backend="aot_eager", fullgraph=True)(make.x()), state(layer)


@use(TRAINING, groups=())
def compiled_then_switched_mode(make: Make) -> Any:
    layer = make()
    run = torch.compile(layer, backend="aot_eager")
    first = run(make.x())
    layer.train(not layer.training)
    return first, run(make.x(seed=1)), state(layer)


@use(TRAINING, groups=())
def compiled_double_backward(make: Make) -> Any:
    layer, x = make(), make.x()
    y = torch.compile(layer, backend="aot_eager")(x)
    (gx,) = torch.autograd.grad(y, x, make.gy(y), create_graph=True)
    return torch.autograd.grad(gx.square().sum(), x)


@use(STANDARD, groups=())
def compiled_with_a_wrong_shape(make: Make) -> Any:
    return torch.compile(make(), backend="aot_eager")(make.x(num_features=7))


@use(TRAINING, groups=())
def compiled_non_dense_input(make: Make) -> Any:
    layer, x = make(), make.x(W=10)
    y = torch.compile(layer, backend="aot_eager", fullgraph=True)(x[..., ::2])
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(TRAINING, groups=())
def compiled_in_place(make: Make) -> Any:
    layer = make()
    layer.compile(backend="aot_eager")
    return step(make, layer, make.x())


@use(STANDARD)
def exported(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    program = torch.export.export(layer, (x,))
    module = program.module()
    return module(x), dict(module.named_buffers())


@use(STANDARD, groups=())
def exported_dynamic(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    sizes = ({0: torch.export.Dim("N", min=2, max=64)},)
    program = torch.export.export(layer, (x,), dynamic_shapes=sizes)
    return program.module()(make.x(7, seed=1, grad=False))


@use(STANDARD, groups=())
def exported_decomposed_and_saved(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    program = torch.export.export(layer, (x,)).run_decompositions()
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()(x)


@use(CORE)
def traced(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    module = torch.jit.trace(layer, x, check_trace=False)
    other = make.x(seed=3)
    y = module(other)
    y.backward(make.gy(y))
    return y, other.grad, dict(module.named_buffers())


@use(STANDARD)
def traced_and_checked(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    return torch.jit.trace(layer, x)(x)


@use(STANDARD)
def traced_on_another_batch_size(make: Make) -> Any:
    layer = make()
    module = torch.jit.trace(layer, make.x(grad=False), check_trace=False)
    return module(make.x(7, seed=1)), module(make.x(3, seed=1))


@use(STANDARD, groups=())
def traced_on_another_map(make: Make) -> Any:
    layer = make()
    module = torch.jit.trace(layer, make.x(grad=False), check_trace=False)
    return module(make.x(3, H=9, W=7, seed=1))


@use(STANDARD)
def traced_and_saved(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(layer, x, check_trace=False), file)
    file.seek(0)
    return torch.jit.load(file)(x)


@use([(False, "float32", "contiguous")])
def traced_and_frozen(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    with torch.no_grad():
        frozen = torch.jit.freeze(torch.jit.trace(layer, x, check_trace=False))
        return frozen(x), frozen(x)


@use(
    STANDARD,
    groups=(),
    differs="refused: TorchScript is deprecated, trace and export work",
    relu=False,
)
def scripted(make: Make) -> Any:
    layer, x = make(), make.x()
    module = torch.jit.script(layer)
    y = module(x)
    y.backward(make.gy(y))
    return y, x.grad


@use(STANDARD, cases={"mode": ["real", "fake", "symbolic"]})
def proxies(make: Make, mode: str) -> Any:
    layer, x = make(), make.x(grad=False)

    def call(x: Tensor) -> Tensor:
        return layer(x)

    graph = make_fx(call, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    return graph(make.x(seed=1, grad=False)), state(layer)


@use(STANDARD)
def proxies_of_a_gradient(make: Make) -> Any:
    layer, x = make(track_running_stats=not make.training), make.x(grad=False)
    graph = make_fx(torch.func.grad(lambda x: layer(x).pow(3).sum()))(x)
    return graph(make.x(seed=1, grad=False))


@use(STANDARD, groups=(), relu=False)
def symbolically_traced(make: Make) -> Any:
    layer = make()
    net = nn.Sequential(nn.Sigmoid(), layer, nn.Tanh())
    graph = torch.fx.symbolic_trace(net)
    return [node.op for node in graph.graph.nodes], step(make, graph, make.x())


@use(STANDARD)
def fake_tensors(make: Make) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer = make.new().train(make.training)
        x = torch.randn(4, 8, 6, 5, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        return y, x.grad, state(layer)


@use(STANDARD)
def fake_input_after_a_real_one(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    layer(x)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return layer(mode.from_tensor(x))


@use(STANDARD, groups=())
def functional_tensor(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    wrapped = torch._to_functional_tensor(x)
    torch._enable_functionalization(reapply_views=True)
    try:
        y = layer(wrapped)
    finally:
        torch._disable_functionalization()
    torch._sync(y)
    return torch._from_functional_tensor(y)


@use(STANDARD)
def functional_tensor_outside_of_functionalization(make: Make) -> Any:
    layer = make(track_running_stats=not make.training)
    wrapped = torch._to_functional_tensor(make.x(grad=False))
    y = layer(wrapped)
    torch._sync(y)
    return torch._from_functional_tensor(y)


@use(STANDARD)
def disabled_for_the_compiler(make: Make) -> Any:
    layer = make()

    @torch.compiler.disable
    def inner(x: Tensor) -> Tensor:
        return layer(x)

    def outer(x: Tensor) -> Tensor:
        return inner(x * 2) + 1

    x = make.x()
    y = torch.compile(outer, backend="eager")(x)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)
