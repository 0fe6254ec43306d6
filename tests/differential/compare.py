"""What a use returned, as plain data, and what must be equal in two such descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tests.tolerance import TOLERANCES


def describe(value: Any) -> Any:
    """Plain data: tensors with what is to be known of them, modules as their state."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, nn.Module):
        parts = {**dict(value.named_parameters()), **dict(value.named_buffers())}
        return {"training": value.training, "state": describe(parts)}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (type, torch.dtype, torch.device, torch.layout, torch.Size)):
        return str(value)
    raise TypeError(f"a use returned a {type(value).__name__}: {value!r}")


def _tensor(t: Tensor) -> dict[str, Any]:
    """A tensor's values and everything else a caller can see of it."""
    told = {
        "tensor": type(t).__name__,
        "dtype": str(t.dtype).removeprefix("torch."),
        "shape": [int(size) for size in t.shape],
        "device": t.device.type,
        "layout": str(t.layout),
        "requires_grad": t.requires_grad,
        "is_leaf": t.is_leaf,
        "inference": t.is_inference(),
        "strides": None,
        "values": None,
    }
    if t.layout is torch.strided and not t.is_nested and not t.is_quantized:
        # the stride of a dimension of size 1, or of an empty tensor, says nothing
        pairs = zip(t.stride(), t.shape, strict=True)
        told["strides"] = [int(stride) for stride, size in pairs if size > 1 and t.numel()]
    if not t.is_meta and not isinstance(t, FakeTensor):
        told["values"] = _values(t.detach())
    return told


def _values(t: Tensor) -> Tensor:
    if t.is_quantized:
        t = t.dequantize()
    if t.layout is not torch.strided:
        t = t.to_dense()
    if torch._is_functional_tensor(t):
        t = torch._from_functional_tensor(t)
    plain = torch.empty(t.shape, dtype=t.dtype)
    with torch.no_grad():
        plain.copy_(t.as_subclass(Tensor))
    return plain


def differences(expected: Any, actual: Any, dtype: str, factor: float, at: str = "") -> list[str]:
    """Where two descriptions differ; values within ``factor`` times the dtype's tolerance."""
    at = at or "result"
    if isinstance(expected, dict) and isinstance(actual, dict):
        if "tensor" in expected and "tensor" in actual:
            return _tensor_differences(expected, actual, dtype, factor, at)
        if expected.keys() != actual.keys():
            return [f"{at}: keys {sorted(actual)} instead of {sorted(expected)}"]
        pairs = [(expected[key], actual[key], f"{at}.{key}") for key in expected]
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return [f"{at}: {len(actual)} items instead of {len(expected)}"]
        pairs = [
            (e, a, f"{at}[{i}]") for i, (e, a) in enumerate(zip(expected, actual, strict=True))
        ]
    elif isinstance(expected, float) and isinstance(actual, float):
        scalars = [torch.tensor(v, dtype=torch.float64) for v in (expected, actual)]
        return _value_differences(scalars[0], scalars[1], dtype, factor, at)
    else:
        return (
            [] if expected == actual else [f"{at}: {_short(actual)} instead of {_short(expected)}"]
        )
    return [line for e, a, where in pairs for line in differences(e, a, dtype, factor, where)]


def _tensor_differences(
    expected: dict[str, Any], actual: dict[str, Any], dtype: str, factor: float, at: str
) -> list[str]:
    lines = [
        f"{at}: {key} {actual[key]} instead of {expected[key]}"
        for key in expected
        if key not in ("values", "tensor", "strides") and expected[key] != actual[key]
    ]
    if expected["shape"] == actual["shape"] and expected["strides"] != actual["strides"]:
        lines.append(f"{at}: strides {actual['strides']} instead of {expected['strides']}")
    if expected["tensor"] != actual["tensor"]:
        lines.append(f"{at}: a {actual['tensor']} instead of a {expected['tensor']}")
    e, a = expected["values"], actual["values"]
    if (e is None) != (a is None):
        return [*lines, f"{at}: values {'missing' if a is None else 'present'}"]
    if e is None or e.shape != a.shape:
        return lines
    return lines + _value_differences(e, a, dtype, factor, at)


def _value_differences(e: Tensor, a: Tensor, dtype: str, factor: float, at: str) -> list[str]:
    if not (e.is_floating_point() and a.is_floating_point()):
        return [] if torch.equal(e, a) else [f"{at}: values {_short(a)} instead of {_short(e)}"]
    known = [d for d in (e.dtype, a.dtype, getattr(torch, dtype)) if d in TOLERANCES]
    tolerance = TOLERANCES[max(known, key=lambda d: torch.finfo(d).eps)]
    options = {key: value * factor for key, value in tolerance.items()}
    finite = e[e.isfinite()].abs()
    # sums of large terms are as exact as their terms are
    options["atol"] *= max(1.0, float(finite.max())) if finite.numel() else 1.0
    try:
        torch.testing.assert_close(a.double(), e.double(), equal_nan=True, **options)
    except AssertionError as error:
        return [f"{at}: " + " ".join(str(error).split())]
    return []


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) < 200 else text[:200] + "..."


def verdict(
    expected: dict[str, Any],
    actual: dict[str, Any],
    dtype: str,
    factor: float = 1.0,
    warn: bool = True,
    strides: bool = True,
) -> list[str]:
    """What is wrong with ours, beside the outcome that is expected; empty where all is well."""
    if "crashed" in actual:
        return [f"crashed: {actual['crashed']}\n{actual['log']}"]
    if "crashed" in expected:
        return [f"the layer to compare with crashed: {expected['crashed']}\n{expected['log']}"]
    if "raised" in expected:
        return [] if "raised" in actual else [f"no error; expected {expected['raised']}"]
    if "raised" in actual:
        return [f"raised {actual['raised']}\n{actual['traceback']}"]
    lines = differences(expected["result"], actual["result"], dtype, factor)
    if not strides:
        lines = [line for line in lines if ": strides" not in line]
    if warn and not expected["warnings"] and actual["warnings"]:
        lines.append(f"warned: {actual['warnings']}")
    return lines
