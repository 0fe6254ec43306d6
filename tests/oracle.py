"""The paper's definitions in loops over float64 slices, written without looking at the package."""

import math

import torch
from torch import Tensor


def _normalize(values: Tensor, eps: float) -> Tensor:
    centered = values - values.sum() / values.numel()
    return centered / math.sqrt((centered * centered).sum().item() / values.numel() + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (1, -1) + (1,) * (x.dim() - 2)
    if weight is not None:
        x = x * weight.double().reshape(shape)
    if bias is not None:
        x = x + bias.double().reshape(shape)
    return x


def slices_of_features(
    x: Tensor,
    G: int,
    blocks: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """BGN (one block) and the merged view of GN (N blocks).

    Group g has the features floor(g*D/G) up to floor((g+1)*D/G).
    """
    N, D = x.shape[0], math.prod(x.shape[1:])
    flat = x.detach().double().contiguous().reshape(N, D)
    out = torch.empty_like(flat)
    n = N // blocks
    for b in range(blocks):
        for g in range(G):
            rows, columns = slice(b * n, (b + 1) * n), slice(g * D // G, (g + 1) * D // G)
            out[rows, columns] = _normalize(flat[rows, columns], eps)
    return _affine(out.reshape(x.shape), weight, bias)


def groups_of_channels(
    x: Tensor,
    groups: list[list[int]],
    blocks: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """GBGN: explicit lists of channels, contiguous blocks of samples."""
    x = x.detach().double()
    out = torch.empty_like(x)
    n = x.shape[0] // blocks
    for b in range(blocks):
        for channels in groups:
            part = x[b * n : (b + 1) * n][:, channels]
            out[b * n : (b + 1) * n, channels] = _normalize(part, eps)
    return _affine(out, weight, bias)


def positions(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """PN: every position of every sample on its own, across the channels."""
    x = x.detach().double()
    out = torch.empty_like(x)
    for n in range(x.shape[0]):
        for h in range(x.shape[2]):
            for w in range(x.shape[3]):
                out[n, :, h, w] = _normalize(x[n, :, h, w], eps)
    return _affine(out, weight, bias)
