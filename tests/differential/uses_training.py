"""Optimizers, threads and processes."""

from __future__ import annotations

import copy
import os
import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.differential.layers import Make, state, step
from tests.differential.table import CORE, EVALUATION, TRAINING, use


def _fit(make: Make, layer: nn.Module, optimizer: Any, steps: int = 3) -> Any:
    for seed in range(steps):
        optimizer.zero_grad()
        y = layer(make.x(seed=seed, grad=False))
        y.pow(3).mean().backward()
        optimizer.step()
    return state(layer)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "sgd foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 0.1),
    "adam foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}


@use(cases={"name": OPTIMIZERS}, tolerance=10)
def optimizer(make: Make, name: str) -> Any:
    layer = make()
    return _fit(make, layer, OPTIMIZERS[name](layer.parameters()))


@use(tolerance=50)
def optimizer_with_a_closure(make: Make) -> Any:
    layer, x = make(track_running_stats=False), make.x(grad=False)
    lbfgs = torch.optim.LBFGS(layer.parameters(), 0.1, max_iter=3)

    def closure() -> Tensor:
        lbfgs.zero_grad()
        loss = (layer(x) - 0.5).square().mean()
        loss.backward()
        return loss

    return lbfgs.step(closure), state(layer)


@use()
def optimizer_inside_backward(make: Make) -> Any:
    layer = make()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in layer.parameters()}

    def apply(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(apply)
    for seed in range(2):
        layer(make.x(seed=seed)).pow(3).mean().backward()
    return state(layer)


@use()
def accumulation_over_micro_batches(make: Make) -> Any:
    layer = make()
    for part in make.x(8, grad=False).chunk(4):
        (layer(part).pow(3).mean() / 4).backward()
    return state(layer)


@use(CORE, tolerance=10, relu=False)
def small_network(make: Make) -> Any:
    net = nn.Sequential(nn.Conv2d(8, 8, 3, bias=False), make(), nn.ReLU(inplace=True))
    with torch.no_grad():
        values = torch.linspace(-1, 1, 576, dtype=torch.float64).sin().view(8, 8, 3, 3)
        net[0].weight.copy_(values)
    net.to(make.dtype)
    x = make.x()
    y = net(x)
    y.backward(make.gy(y))
    return y, x.grad, net[0].weight.grad, state(net[1])


@use(tolerance=10)
def sequence_of_shapes(make: Make) -> Any:
    layer = make()
    found = []
    for N, H, W in ((4, 6, 5), (3, 6, 5), (4, 6, 5), (2, 9, 1), (4, 7, 3)):
        x = make.x(N, H=H, W=W)
        if N == 3:
            x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        y = layer(x)
        y.backward(make.gy(y))
        found.append((y, x.grad))
    return found, state(layer)


@use(cases={"threads": [2, 4]})
def several_threads(make: Make, threads: int) -> Any:
    torch.set_num_threads(threads)
    found = step(make, make(), make.x(16, H=40, W=30))
    return found["y"][::4], found["gx"][0][::4], found["running_mean"], found["weight.grad"]


@use()
def number_of_threads_changed_before_backward(make: Make) -> Any:
    layer, x = make(), make.x(16, H=40, W=30)
    y = layer(x)
    torch.set_num_threads(3)
    y.backward(make.gy(y))
    return x.grad[::4], state(layer)


@use()
def calls_from_many_threads(make: Make) -> Any:
    layers = [make() for _ in range(4)]
    found: list[Any] = [None] * 4

    def work(i: int) -> None:
        for seed in range(5):
            found[i] = step(make, layers[i], make.x(seed=seed, H=12, W=11))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


@use(EVALUATION)
def one_layer_from_many_threads(make: Make) -> Any:
    layer, found = make(), [None] * 4

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = layer(make.x(seed=i))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


@use()
def backward_in_another_thread(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    worker = threading.Thread(target=lambda: y.backward(make.gy(y)))
    worker.start()
    worker.join()
    return x.grad, state(layer)


@use()
def one_graph_from_two_threads(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    found: list[Any] = [None, None]

    def work(i: int) -> None:
        found[i] = torch.autograd.grad(y, x, make.gy(y, i), retain_graph=True)[0]

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


def _in_child(function: Any) -> Any:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with os.fdopen(write, "wb") as pipe:
                torch.save(function(), pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        import io

        data = io.BytesIO(pipe.read())
    status = os.waitpid(pid, 0)[1]
    if status:
        raise RuntimeError(f"the forked process ended with {status}")
    return torch.load(data, weights_only=False)


@use(cases={"threads": [1, 2]})
def forked_after_use(make: Make, threads: int) -> Any:
    if threads == 1:
        step(make, make(), make.x(seed=5))

    def work() -> Any:
        found = step(make, make(), make.x())
        return [found["y"].detach(), found["gx"], found["running_mean"]]

    return _in_child(work)


class _Normalized(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, layer: nn.Module, x: Tensor) -> None:
        self.layer, self.x = layer, x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        with torch.no_grad():
            return self.layer(self.x[i : i + 1])[0]


@use(cases={"workers": [0, 2]})
def inside_a_data_loader(make: Make, workers: int) -> Any:
    loader = DataLoader(_Normalized(make(), make.x(grad=False)), 2, num_workers=workers)
    return list(loader)


@use()
def fed_by_a_data_loader(make: Make) -> Any:
    layer = make()
    for (part,) in DataLoader(TensorDataset(make.x(8, grad=False)), 4):
        layer(part).pow(2).sum().backward()
    return state(layer)


@use()
def replicas(make: Make) -> Any:
    layer = make()
    replica = layer._replicate_for_data_parallel()
    for name, p in layer.named_parameters():
        setattr(replica, name, p * 1)
    x = make.x()
    y = replica(x)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(TRAINING, slow=True, timeout=200)
def spawned_process(make: Make) -> Any:
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    layer = make().share_memory()
    worker = context.Process(target=_work, args=(layer, make.x(grad=False), queue))
    worker.start()
    y = torch.tensor(queue.get())  # not as a tensor: its memory may go with the process
    worker.join()
    return y, state(layer)


def _work(layer: nn.Module, x: Tensor, queue: Any) -> None:
    with torch.no_grad():
        queue.put(layer(x).tolist())


@use(TRAINING)
def custom_operator_around_it(make: Make) -> Any:
    layer = make()

    @torch.library.custom_op("differential::around", mutates_args=())
    def around(x: Tensor) -> Tensor:
        return layer(x).detach().clone()

    return around(make.x(grad=False)), state(layer)


@use()
def functional_form_beside_it(make: Make) -> Any:
    """Layers of several sorts in one graph do not disturb each other."""
    layer, x = make(), make.x()
    y = F.group_norm(layer(F.instance_norm(x)), 2)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use()
def copy_between_forward_and_backward(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    other = copy.deepcopy(layer)
    y.backward(make.gy(y))
    return x.grad, state(layer), state(other)
