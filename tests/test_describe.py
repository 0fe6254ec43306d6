"""The table of what each normalizer does."""

import pytest
import torch
from torch import nn

import bgn


def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 36, 3, padding=1),
        bgn.BatchGroupNorm2d(36, 4),
        bgn.GeneralBatchGroupNorm2d(36, 64),
        bgn.GeneralBatchGroupNorm2d(36, 6, batch_blocks=2),
        bgn.GroupNorm(32, 36),
        bgn.GroupNorm(1, 36),
        bgn.PositionalNorm2d(36),
        nn.AdaptiveAvgPool2d(1),
        nn.BatchNorm2d(36),
        bgn.GroupNorm(36, 36),
    )


def test_the_numbers() -> None:
    net = model().train()
    table = bgn.describe(net, (3, 8, 8), batch_size=4)
    rows = {row.layer: row for row in table}
    assert [(r.G, r.S, r.instances, r.channels_per_group) for r in table] == [
        (4, 576, 2304, 9.0),
        (36, 64, 256, 1.0),
        (6, 384, 768, 6.0),
        (32, 72, 72, 1.125),
        (1, 2304, 2304, 36.0),
        (64, 36, 36, 36.0),
        (36, 1, 4, 1.0),
        (36, 1, 1, 1.0),
    ]
    assert [r.acts_as for r in table] == [
        "BGN",
        "BN",
        "GBGN in 2 blocks",
        "GN",
        "LN",
        "PN",
        "BN",
        "bias alone",
    ]
    assert [r.few for r in table] == [False] * 6 + [True, True]
    assert rows["1"].shape == (36, 8, 8)
    assert rows["1"].D == 2304
    assert net.training
    assert net[1].num_batches_tracked == 0


def test_it_prints_as_a_table() -> None:
    lines = str(bgn.describe(model(), (3, 8, 8), batch_size=4)).splitlines()
    assert lines[0].split() == [
        "layer",
        "kind",
        "C",
        "x",
        "H",
        "x",
        "W",
        "D",
        "G",
        "S",
        "N*S",
        "channels/group",
        "acts",
        "as",
    ]
    assert lines[2].split() == [
        "1",
        "bgn",
        "36",
        "x",
        "8",
        "x",
        "8",
        "2304",
        "4",
        "576",
        "2304",
        "9",
        "BGN",
    ]
    assert (
        lines[-1] == "8 normalizers at batch size 4; 2 with fewer than 16 instances per statistic"
    )


def test_any_input_of_the_models_own() -> None:
    class Dictionary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            out: torch.Tensor = self.net(batch["image"])
            return out

    assert len(bgn.describe(Dictionary(), {"image": torch.zeros(1, 3, 8, 8)}, batch_size=2)) == 8


def test_frames_count_as_instances() -> None:
    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.norm(x.flatten(0, 1))
            return out

    for images in (1, 2, 3):
        (row,) = bgn.describe(Frames(), torch.zeros(images, 16, 3, 4, 4), batch_size=2)
        assert row.instances == 2 * 16 * 16


def test_what_cannot_run_is_said() -> None:
    (row,) = bgn.describe(
        nn.Sequential(nn.BatchNorm2d(8, track_running_stats=False)), (8, 1, 1), batch_size=2
    )
    assert row.instances == 2


def test_refusals() -> None:
    with pytest.raises(TypeError, match="input_size=32 is an int; expected"):
        bgn.describe(model(), 32, 2)
    with pytest.raises(ValueError, match="batch_size=0"):
        bgn.describe(model(), (3, 8, 8), 0)
    with pytest.raises(ValueError, match="input_size=0"):
        bgn.describe(model(), (3, 0, 8), 2)
    with pytest.raises(ValueError, match="has no normalizer"):
        bgn.describe(nn.Sequential(nn.ReLU()), (3, 8, 8), 2)
