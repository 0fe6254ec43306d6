"""The formats of ``bgn export``: bytes of a network, and those bytes as a function again."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from bgn_lab.training.checkpoint import separate

Function = Callable[[Tensor], Tensor]
DYNAMIC = ("none", "batch", "size")


@dataclass(frozen=True)
class Options:
    """How a network is exported."""

    dynamic: str = "batch"
    """What may differ from the example: nothing, the number of images, their size too."""
    opset: int | None = None
    """Version of ONNX's operators; None for the exporter's default."""
    compiled: bool = False
    """Whether a .pt2 has machine code instead of a graph."""

    def shapes(self, x: Tensor) -> Any:
        """For ``dynamic_shapes`` of torch.export."""
        if self.dynamic == "none":
            return None
        size = range(2, x.dim()) if self.dynamic == "size" else ()
        return (dict.fromkeys((0, *size), torch.export.Dim.DYNAMIC),)


class Format:
    """A kind of file. ``suffix`` names it; what it needs beside torch is an extra of ours."""

    suffix: str
    needs: tuple[str, ...] = ()
    extra = ""
    options: tuple[str, ...] = ()
    """Fields of :class:`Options` that have an effect."""

    def check(self, options: Options) -> None:
        """Refuse options of other formats, and what is not installed."""
        default = Options()
        for name in set(vars(default)) - set(self.options):
            value = getattr(options, name)
            if value != getattr(default, name):
                raise ValueError(f"{name}={value} has no effect on {self.suffix} files")
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(
                f"{self.suffix} files need {' and '.join(missing)}:"
                f" pip install 'batch-group-norm[{self.extra}]'"
            )

    def write(
        self, model: nn.Module, x: Tensor, options: Options, about: Mapping[str, str]
    ) -> bytes:
        """The file."""
        raise NotImplementedError

    def read(self, content: bytes, model: nn.Module, options: Options) -> Function:
        """What it computes. ``model`` is for formats of weights alone."""
        raise NotImplementedError


class ONNX(Format):
    """A graph of ONNX's operators, for onnxruntime and many others."""

    suffix, needs, extra = ".onnx", ("onnx", "onnxscript", "onnxruntime"), "onnx"
    options = ("dynamic", "opset")

    def write(
        self, model: nn.Module, x: Tensor, options: Options, about: Mapping[str, str]
    ) -> bytes:
        """By the exporter that is built on torch.export."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about itself
            program: Any = torch.onnx.export(
                model, (x,), dynamo=True, dynamic_shapes=options.shapes(x), verbose=False,
                opset_version=options.opset, input_names=["images"], output_names=["logits"],
            )  # fmt: skip
        program.model.metadata_props.update(about)
        return bytes(program.model_proto.SerializeToString())

    def read(self, content: bytes, model: nn.Module, options: Options) -> Function:  # noqa: ARG002
        """Run by onnxruntime."""
        import onnxruntime

        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        return lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


class PT2(Format):
    """A program of torch.export, or with ``compiled`` a package of AOTInductor."""

    suffix, options = ".pt2", ("dynamic", "compiled")

    def check(self, options: Options) -> None:
        """See :class:`Format`; machine code needs a compiler."""
        super().check(options)
        if options.compiled:
            from torch._inductor.cpp_builder import get_cpp_compiler

            try:
                get_cpp_compiler()
            except RuntimeError as error:
                raise ValueError(
                    f"compiled=True needs a C++ compiler such as g++: {error}"
                ) from None

    def write(
        self, model: nn.Module, x: Tensor, options: Options, about: Mapping[str, str]
    ) -> bytes:
        """A graph of torch's operators, or machine code for this kind of CPU."""
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of exporter and compiler, about torch itself
            program = torch.export.export(model, (x,), dynamic_shapes=options.shapes(x))
            if not options.compiled:
                content = io.BytesIO()
                torch.export.save(program, content, extra_files=dict(about))
                return content.getvalue()
            with _temporary() as path:
                torch._inductor.aoti_compile_and_package(
                    program,
                    package_path=str(path),
                    inductor_configs={"aot_inductor.metadata": dict(about)},
                )
                return path.read_bytes()

    def read(self, content: bytes, model: nn.Module, options: Options) -> Function:  # noqa: ARG002
        """Run by torch."""
        if not options.compiled:
            loaded: Function = torch.export.load(io.BytesIO(content)).module()
            return loaded
        with _temporary() as path:
            path.write_bytes(content)
            package: Function = torch._inductor.aoti_load_package(str(path))
        return package


class Safetensors(Format):
    """The state_dict alone; the network's code is needed to load it."""

    suffix = ".safetensors"

    def write(
        self,
        model: nn.Module,
        x: Tensor,  # noqa: ARG002
        options: Options,  # noqa: ARG002
        about: Mapping[str, str],
    ) -> bytes:
        """Tensors by name."""
        return save(separate(model.state_dict()), dict(about))

    def read(self, content: bytes, model: nn.Module, options: Options) -> Function:  # noqa: ARG002
        """Put into a network of the same code, whose own weights are gone."""
        empty = copy.deepcopy(model)
        with torch.no_grad():
            for tensor in empty.state_dict().values():
                tensor.zero_()
        empty.load_state_dict(load(content))
        return empty


FORMATS: dict[str, Format] = {one.suffix: one for one in (ONNX(), PT2(), Safetensors())}


def of(path: Path) -> Format:
    """The format that a file's name ends with.

    >>> of(Path("model.onnx")).suffix
    '.onnx'
    """
    if path.suffix not in FORMATS:
        raise ValueError(
            f"to={str(path)!r} ends with {path.suffix!r}; expected {', '.join(FORMATS)}"
        )
    return FORMATS[path.suffix]


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "model.pt2"
