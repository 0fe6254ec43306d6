"""A sample is a shape or a batch; its number of images is certain, or it is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bgn
from bgn.surgery.sample import read_sample


def model(dims: int = 2) -> nn.Sequential:
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
    return nn.Sequential(conv(3, 64, 3, padding=1), norm(64))


@pytest.mark.parametrize("images", [1, 2, 5])
def test_the_size_of_the_sample_does_not_matter(images: int) -> None:
    batch = torch.zeros(images, 3, 2, 2)
    (row,) = bgn.describe(model(), batch, batch_size=2)
    assert (row.instances, row.shape) == (8, (64, 2, 2))
    converted = bgn.convert(model(), num_groups="auto", batch_size=2, sample=batch)
    assert converted[1].num_groups == 16
    by_shape = bgn.convert(model(), num_groups="auto", batch_size=2, sample=(3, 2, 2))
    assert by_shape[1].num_groups == 16


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_shapes_for_every_number_of_dimensions(dims: int) -> None:
    shape = (3, *[4] * dims)
    (row,) = bgn.describe(model(dims), shape, batch_size=2)
    assert (row.shape, row.instances) == ((64, *shape[1:]), 2 * 4**dims)


def test_shapes_for_linear_layers() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8))
    (row,) = bgn.describe(net, (3,), batch_size=4)
    assert row.instances == 4
    with pytest.raises(ValueError, match=r"input_size=\(2, 3\) has 2 numbers, .* take \(C\) "):
        bgn.describe(net, (2, 3), batch_size=4)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_shape_with_a_batch_dimension_is_refused(dims: int) -> None:
    shape = (2, 3, *[4] * dims)
    words = rf"has {dims + 2} numbers, .* without a batch dimension; .*=\(3, 4.*or a batch"
    with pytest.raises(ValueError, match=r"input_size=\(2, 3, 4.*" + words):
        bgn.describe(model(dims), shape, batch_size=2)
    with pytest.raises(ValueError, match=r"sample=\(2, 3, 4.*" + words):
        bgn.convert(model(dims), num_groups="auto", batch_size=2, sample=shape)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_tensor_without_a_batch_dimension_is_refused(dims: int) -> None:
    image = torch.zeros(3, *[4] * dims)
    with pytest.raises(ValueError, match=r"without a batch dimension; .* sample\[None\]"):
        bgn.convert(model(dims), num_groups="auto", batch_size=2, sample=image)


class Pair(nn.Module):
    """Two inputs of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, image: Tensor, label: Tensor, scale: float = 1.0) -> Tensor:
        out: Tensor = self.net(image) * label.view(-1, 1, 1, 1) * scale
        return out


@pytest.mark.parametrize("images", [1, 3])
def test_tuples_and_dicts_are_arguments(images: int) -> None:
    image, label = torch.zeros(images, 3, 4, 4), torch.zeros(images)
    samples = [(image, label), (image, label, 2.0), {"image": image, "label": label}]
    for sample in samples:
        (row,) = bgn.describe(Pair(), sample, batch_size=2)
        assert row.instances == 2 * 16


def test_a_list_is_a_batch_of_images() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, images: list[Tensor]) -> list[Tensor]:
            return [self.net(image[None]) for image in images]

    rows = bgn.describe(Detector(), [torch.zeros(3, 4, 4), torch.zeros(3, 6, 6)], batch_size=2)
    assert [row.shape for row in rows] == [(64, 4, 4), (64, 6, 6)]
    assert read_sample(Detector(), [torch.zeros(3, 4, 4)] * 2).images == 2


def test_inputs_whose_first_dimensions_differ_are_refused() -> None:
    sample: Any = torch.zeros(2, 3, 4, 4), torch.zeros(3)
    words = r"shapes \(2, 3, 4, 4\), \(3,\), whose first dimensions differ"
    with pytest.raises(ValueError, match=words):
        bgn.describe(Pair(), sample, batch_size=2)
    with pytest.raises(ValueError, match=words):
        bgn.convert(Pair(), num_groups="auto", batch_size=2, sample=sample)


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (32, "input_size=32 is an int"),
        ("image", "is a str without a tensor"),
        ((3.0, 4.0, 4.0), "is a tuple without a tensor"),
        (["image"], "is a list of str; expected a list of images"),
    ],
)
def test_what_is_no_sample_is_refused(sample: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        bgn.describe(model(), sample, batch_size=2)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="number of images in input_size=0"):
        bgn.describe(model(), torch.zeros(0, 3, 4, 4), batch_size=2)
