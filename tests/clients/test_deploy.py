"""Converted models of other packages in other runtimes: ONNX, torch.export, AOTInductor, C++."""

import copy
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import bgn
from tests.clients.test_clients import nearest, warmed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).parent.parent.parent / "docs/deploy.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
(BLOCK,) = (block for block in BLOCKS if "aoti_compile_and_package" in block)
Make = Callable[[], nn.Module]


class Case(NamedTuple):
    """A model with two inputs that differ in every dimension that may."""

    model: nn.Module
    inputs: tuple[Tensor, Tensor]
    shapes: Any
    """For dynamic_shapes of torch.export."""


class Out(nn.Module):
    """A segmenter of torchvision without the dict around its answer."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)["out"]
        return out


def resnet50(request: pytest.FixtureRequest) -> Case:
    torchvision = request.getfixturevalue("torchvision")
    dim = torch.export.Dim
    shapes = ({0: dim("N"), 2: dim("H", min=33), 3: dim("W", min=33)},)
    model = torchvision.models.resnet50(num_classes=10)
    return Case(model, (torch.randn(2, 3, 64, 64), torch.randn(3, 3, 96, 80)), shapes)


def deeplab(request: pytest.FixtureRequest) -> Case:
    torchvision = request.getfixturevalue("torchvision")
    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=4
    )
    dim = torch.export.Dim
    shapes = ({0: dim("N"), 2: dim("H", min=64), 3: dim("W", min=64)},)
    return Case(Out(model), (torch.randn(2, 3, 64, 64), torch.randn(3, 3, 96, 72)), shapes)


def unet_3d(request: pytest.FixtureRequest) -> Case:
    monai = request.getfixturevalue("monai")
    model = monai.networks.nets.UNet(
        spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2),
        num_res_units=1, norm="batch",
    )  # fmt: skip
    dim = torch.export.Dim  # each half of it is halved once more
    shapes = ({0: dim("N"), **{2 + i: 4 * dim(f"D{i}", min=2) for i in range(3)}},)
    return Case(model, (torch.randn(2, 1, 16, 16, 16), torch.randn(3, 1, 24, 16, 20)), shapes)


CASES = {"resnet50": resnet50, "deeplab": deeplab, "unet-3d": unet_3d}
cases = pytest.mark.parametrize("name", CASES)


def converted(name: str, request: pytest.FixtureRequest) -> Case:
    """With four groups in every layer, in eval mode, with statistics as after training."""
    case = CASES[name](request)
    with torch.random.fork_rng():
        model = warmed(case.model).eval()
    bgn.convert(model, num_groups=nearest(4))
    assert any("BatchGroupNorm" in type(m).__name__ for m in model.modules())
    return case._replace(model=model)


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Within 1e-4 of the largest output, which is about 1 in a trained network."""
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max().clamp(min=1)


def session_of(model: nn.Module, case: Case) -> tuple[Any, list[Any]]:
    """onnxruntime's session, and the nodes of the graph."""
    pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    program: Any = torch.onnx.export(
        model, (case.inputs[0],), dynamo=True, dynamic_shapes=case.shapes, verbose=False
    )
    proto = program.model_proto
    assert not proto.functions
    return runtime.InferenceSession(proto.SerializeToString()), list(proto.graph.node)


@cases
@pytest.mark.parametrize("folded", [False, True])
def test_onnx(name: str, folded: bool, request: pytest.FixtureRequest) -> None:
    case = converted(name, request)
    model = bgn.fold(case.model) if folded else case.model
    session, nodes = session_of(model, case)
    assert {node.domain for node in nodes} <= {"", "ai.onnx"}
    for x in case.inputs:
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            assert_same(torch.from_numpy(found), case.model(x))
    kinds = [node.op_type for node in nodes]
    print(f"\n{name}, {'folded' if folded else 'as it is'}: {len(nodes)} nodes", sorted(set(kinds)))
    if folded:
        plain = copy.deepcopy(case.model)
        assert "BatchNormalization" not in kinds
        assert kinds.count("Conv") + kinds.count("ConvTranspose") == sum(
            isinstance(m, nn.modules.conv._ConvNd) for m in plain.modules()
        )
    else:  # no more nodes than the same network with BN
        theirs = bgn.convert(copy.deepcopy(case.model), "bn")
        assert len(nodes) <= len(session_of(theirs, case)[1])


PLAIN = {
    "conv2d", "conv3d", "conv_transpose3d", "relu", "relu_", "prelu", "max_pool2d", "linear", "add",
    "add_", "adaptive_avg_pool2d", "flatten", "cat", "upsample_bilinear2d", "dropout",
}  # fmt: skip


@cases
def test_a_folded_model_is_made_of_plain_convolutions(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Node by node in the graph of torch.export."""
    case = converted(name, request)
    program = torch.export.export(bgn.fold(case.model), case.inputs[:1], dynamic_shapes=case.shapes)
    found = {
        node.target.__name__.partition(".")[0]
        for node in program.graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor)
    }  # others are of sizes
    assert found <= PLAIN
    with torch.no_grad():
        for x in case.inputs:
            assert_same(program.module()(x), case.model(x))


LOAD = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("bgn", "bgn_lab"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import torch
for name in ("bgn", "bgn_lab"):
    try:
        __import__(name)
    except ImportError:
        pass
    else:
        raise SystemExit(f"{name} was imported")
package = torch._inductor.aoti_load_package(sys.argv[1])
inputs = torch.load(sys.argv[2], weights_only=True)
torch.save([package(x) for x in inputs], sys.argv[3])
program = torch.export.load(sys.argv[4]).module()
torch.save([program(x) for x in inputs], sys.argv[5])
"""

CPP = """
#include <torch/torch.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <cstdio>

int main(int, char** argv) {
  c10::InferenceMode mode;
  torch::inductor::AOTIModelPackageLoader loader(argv[1]);
  for (int n = 2; n <= 3; n++) {
    auto x = torch::linspace(-1, 1, n * 3 * 64 * 64).view({n, 3, 64, 64});
    auto y = loader.run({x})[0].contiguous();
    for (int64_t i = 0; i < y.numel(); i++) std::printf("%.9g\\n", y.data_ptr<float>()[i]);
  }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.fixture
def package(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Case, Path]:
    """A ResNet-50 compiled by AOTInductor, as the page does; any number of images, not folded."""
    torch.manual_seed(0)
    case, path = converted("resnet50", request), folder / "model.pt2"
    if not path.exists():
        monkeypatch.chdir(folder)
        shapes = ({0: torch.export.Dim("N")},)
        with torch.no_grad():
            program = torch.export.export(case.model, case.inputs[:1], dynamic_shapes=shapes)
        torch.export.save(program, folder / "program.pt2")
        names: dict[str, Any] = {"torch": torch, "program": program}
        exec(BLOCK, names)
        with torch.no_grad():
            assert_same(names["run"](case.inputs[0]), case.model(case.inputs[0]))
    return case, path


def test_a_process_without_this_package_runs_the_files(
    package: tuple[Case, Path], tmp_path: Path
) -> None:
    case, path = package
    inputs = [torch.randn(N, 3, 64, 64) for N in (2, 5)]
    torch.save(inputs, tmp_path / "inputs.pt")
    files = [tmp_path / "package.pt", path.with_name("program.pt2"), tmp_path / "program.pt"]
    words = [path, tmp_path / "inputs.pt", *files]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for file in (files[0], files[2]):
        for x, found in zip(inputs, torch.load(file, weights_only=True), strict=True):
            with torch.no_grad():
                assert_same(found, case.model(x))


def test_a_program_in_cpp_runs_the_package(package: tuple[Case, Path], tmp_path: Path) -> None:
    from torch.utils import cpp_extension

    case, path = package
    try:
        compiler = cpp_extension.get_cxx_compiler()
        subprocess.run([compiler, "--version"], capture_output=True, check=True)
    except OSError:
        pytest.skip("needs a C++ compiler")
    (tmp_path / "main.cpp").write_text(CPP)
    (libraries,) = cpp_extension.library_paths()[:1]
    includes = [f"-I{where}" for where in cpp_extension.include_paths()]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    subprocess.run(
        [
            compiler, "-std=c++20", "-O0", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "main.cpp", "-o",
            "main", *includes, f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-Wl,--no-as-needed",
            "-ltorch_cpu", "-ltorch", "-lc10", "-ldl",
        ],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run([tmp_path / "main", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = torch.tensor([float(line) for line in done.stdout.split()]).view(5, 10)
    inputs = [torch.linspace(-1, 1, n * 3 * 64 * 64).view(n, 3, 64, 64) for n in (2, 3)]
    with torch.no_grad():
        assert_same(found, torch.cat([case.model(x) for x in inputs]))
