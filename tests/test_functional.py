"""What the functions refuse, and that a refusal changes nothing."""

from typing import Any

import pytest
import torch

from bgn import functional as F

x = torch.randn(2, 4, 3, 3)


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"num_groups": 0}, ValueError, "num_groups=0 is not positive"),
        ({"num_groups": -3}, ValueError, "num_groups=-3"),
        ({"num_groups": 2.0}, TypeError, "num_groups=2.0 is a float; expected a positive int"),
        ({"num_groups": True}, TypeError, "num_groups=True is a bool"),
        ({"num_groups": None}, TypeError, "num_groups=None"),
        (
            {"num_groups": 37},
            ValueError,
            r"num_groups=37 exceeds the 36 features of one sample \(C\*H\*W = 4\*3\*3\)",
        ),
        (
            {"input": torch.randn(2, 4), "num_groups": 5},
            ValueError,
            r"exceeds the 4 features .* \(C = 4\)",
        ),
        ({"input": torch.randn(4)}, ValueError, r"input has 1 dimension\(s\), shape \(4,\)"),
        ({"input": torch.ones(2, 4, dtype=torch.int64)}, TypeError, "input has dtype torch.int64"),
        (
            {"input": x[:1], "num_groups": 36},
            ValueError,
            r"\(1, 4, 3, 3\) with num_groups=36 leaves 1 value per stat",
        ),
        ({"input": x[:1], "num_groups": 20}, ValueError, "leaves 1 value per statistic"),
        (
            {"weight": torch.ones(3)},
            ValueError,
            r"weight has shape \(3,\); expected \(4,\), one entry per channel",
        ),
        ({"bias": torch.ones(1, 4)}, ValueError, r"bias has shape \(1, 4\)"),
        (
            {"running_mean": torch.ones(4), "running_var": torch.ones(2)},
            ValueError,
            "running_mean .* one entry per group",
        ),
        (
            {"running_mean": torch.ones(2), "running_var": torch.ones(4)},
            ValueError,
            r"running_var has shape \(4,\)",
        ),
        (
            {"running_mean": torch.ones(2)},
            ValueError,
            "running_var=None .* expected both or neither",
        ),
        ({"running_var": torch.ones(2)}, ValueError, "running_mean=None"),
        ({"training": False}, ValueError, "training=False needs running_mean and running_var"),
        ({"eps": -1e-5}, ValueError, "eps=-1e-05 is out of range"),
        ({"eps": "small"}, TypeError, "eps='small'"),
        (
            {"momentum": 1.5},
            ValueError,
            r"momentum=1.5 is out of range; expected None or a float in \[0, 1\]",
        ),
    ],
)
def test_batch_group_norm_refuses(
    kwargs: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        F.batch_group_norm(**{"input": x, "num_groups": 2, "training": True, **kwargs})


def test_a_refusal_changes_no_running_statistic() -> None:
    mean, var = torch.zeros(36), torch.ones(36)
    with pytest.raises(ValueError, match="1 value per statistic"):
        F.batch_group_norm(x[:1], 36, mean, var, training=True)
    assert torch.equal(mean, torch.zeros(36))
    assert torch.equal(var, torch.ones(36))


def test_other_functions_refuse() -> None:
    with pytest.raises(ValueError, match="batch_blocks=0"):
        F.general_batch_group_norm(x, 2, 0, training=True)
    with pytest.raises(ValueError, match="num_groups=37 exceeds the 36 features"):
        F.group_norm(x, 37)
    with pytest.raises(ValueError, match=r"weight has shape \(3,\)"):
        F.positional_norm(x, torch.ones(3))


def test_running_statistics_move_by_momentum_with_the_unbiased_variance() -> None:
    mean, var = torch.full((5,), 2.0), torch.full((5,), 3.0)
    F.batch_group_norm(x, 5, mean, var, training=True, momentum=0.25)
    flat = x.reshape(2, 36)
    for g in range(5):
        part = flat[:, g * 36 // 5 : (g + 1) * 36 // 5]
        assert mean[g].item() == pytest.approx(0.75 * 2 + 0.25 * part.mean().item(), rel=1e-6)
        assert var[g].item() == pytest.approx(0.75 * 3 + 0.25 * part.var().item(), rel=1e-5)


def test_gbgn_averages_its_running_statistics_over_the_blocks() -> None:
    batch = torch.randn(6, 4, 3, 3, dtype=torch.float64)
    mean, var = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    F.general_batch_group_norm(batch, 2, 3, mean, var, training=True, momentum=1.0)
    blocks = batch.reshape(3, 2, 2, 2 * 9)  # (B, n, G, S)
    torch.testing.assert_close(mean, blocks.mean((1, 3)).mean(0))
    torch.testing.assert_close(var, blocks.var((1, 3)).mean(0))


def test_a_single_element_per_sample_statistic_leaves_the_bias() -> None:
    bias = torch.randn(4)
    maps = torch.randn(3, 4, 1, 1) * 1e6
    with pytest.warns(
        UserWarning,
        match=r"group_norm with num_groups=4 on input of shape \(3, 4, 1, 1\): each of its",
    ):
        y = F.group_norm(maps, 4, torch.randn(4), bias)
    assert torch.equal(y, bias.view(1, 4, 1, 1).expand_as(maps))
    with pytest.warns(UserWarning, match="positional_norm"):
        assert torch.equal(F.positional_norm(maps[:, :1]), torch.zeros(3, 1, 1, 1))
