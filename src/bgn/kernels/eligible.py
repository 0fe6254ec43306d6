"""Which tensors fast code may read: a whitelist.

Fast code looks at memory, so it must know what the memory means. A tensor is *plain* if its type
is ``Tensor`` or ``Parameter`` and its dispatch keys are exactly those of a dense tensor on its
device. That rules out wrappers of torch.func and functionalization, lazy negations, lazy zeros,
sparse, quantized and fake tensors, and whatever torch adds in the future. Everything that is not
plain, or met while a transform is active, goes to :mod:`bgn.kernels.definition`. The C core asks
for tensors that are plain on the CPU, which is what the functions take unless told otherwise.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

_keys = torch._C._dispatch_keys
TYPES = (Tensor, torch.nn.Parameter)
DEVICES = ("cpu", "cuda", "xpu", "mps", "meta")  # kinds of devices with torch's own kernels


Keys = tuple[int, int]  # of a dense tensor outside and inside inference mode


@functools.cache
def plain_keys(device_type: str) -> Keys:
    """The dispatch keys of dense tensors on a kind of device that exists here.

    Asked for only where ``no_transform()``: a mode would make other tensors.
    """
    tensors = []
    for mode in (False, True):  # whatever mode this is called in
        with torch.inference_mode(mode):
            tensors.append(torch.empty(0, device=device_type))
    dense, inference = (_keys(tensor).raw_repr() for tensor in tensors)
    return dense, inference


PLAIN = plain_keys("cpu")


def no_transform() -> bool:
    """Whether operations take effect now, on the very tensors they are given.

    Not so under torch.func, forward-mode differentiation, torch.jit.trace and dispatch modes.
    Compilers are asked about before this is called: they cannot trace it.
    """
    return (
        peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and not _len_torch_dispatch_stack()
        and not _get_tracing_state()
    )


def is_plain(tensor: Tensor, size: int, keys: Keys = PLAIN) -> bool:
    """Whether this is a plain tensor whose storage holds ``size`` elements from its first one on.

    Code that saves memory frees storages of tensors that still exist (``resize_(0)``).
    """
    return (
        type(tensor) in TYPES
        and _keys(tensor).raw_repr() in keys
        and tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + size) * tensor.itemsize
    )


def extent(tensor: Tensor) -> int:
    """How many elements of its storage a tensor reaches over, from its first one on."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def reaches(tensor: Tensor, numel: int, keys: Keys = PLAIN) -> bool:
    """Whether this is a plain tensor of ``numel`` elements, all of them within its storage."""
    size = numel if tensor.is_contiguous() else extent(tensor)
    return is_plain(tensor, size, keys)


def refuse_freed(**tensors: Tensor | None) -> None:
    """Raise an error for a plain tensor whose storage was freed: torch would read past its end."""
    if torch.compiler.is_compiling() or _get_tracing_state():
        return
    for name, tensor in tensors.items():
        if tensor is None or tensor.numel() == 0:
            continue
        keys = PLAIN
        if type(tensor) in TYPES and tensor.device.type in DEVICES and no_transform():
            keys = plain_keys(tensor.device.type)
        dense = type(tensor) in TYPES and _keys(tensor).raw_repr() in keys
        if dense and not is_plain(tensor, extent(tensor), keys):
            raise RuntimeError(
                f"{name} of shape {tuple(tensor.shape)} has no memory: its storage was resized to"
                f" {tensor.untyped_storage().nbytes()} bytes"
            )


def is_plain_vector(tensor: Tensor, size: int, keys: Keys = PLAIN) -> bool:
    """Whether this is a plain (size,) tensor without gaps."""
    return (
        tensor.numel() == size
        and tensor.dim() == 1
        and tensor.is_contiguous()
        and is_plain(tensor, size, keys)
    )
