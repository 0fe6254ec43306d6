"""A server that runs each use in a forked process, so that a crash ends that use alone.

The server imports torch and the table once. For each request it forks; the fork runs one use with
each kind of layer, ours last, and sends descriptions of the results back through a pipe.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tests.differential.compare import describe
from tests.differential.layers import C, Make
from tests.differential.table import Use, Variant, load

KINDS = ("torch", "definition", "bgn")
ROOT = Path(__file__).parents[2]
PRELOAD = [
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch.export",
    "torch.fx.experimental.proxy_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.testing",
    "torch.utils.flop_counter",
    "torch.optim.swa_utils",
]


def run(use: Use, kind: str, variant: Variant) -> dict[str, Any]:
    """Outcome of one use with one kind of layer: a result, or what was raised."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome: dict[str, Any] = {"result": describe(use.run(Make(kind, variant)))}
        except Exception as error:
            outcome = {"raised": f"{type(error).__name__}: {error}"[:2000]}
            outcome["traceback"] = "".join(traceback.format_exception(error))[-4000:]
    outcome["warnings"] = [f"{w.category.__name__}: {w.message}"[:500] for w in caught]
    return outcome


def _child(use: Use, variant: Variant, write: int, log: BinaryIO) -> None:
    """Run a use with every kind of layer that is to be compared, ours last."""
    os.setpgid(0, 0)  # so that a timeout ends what the use started too
    os.dup2(log.fileno(), 2)
    os.dup2(log.fileno(), 1)
    faulthandler.enable(log)
    pipe = os.fdopen(write, "wb", closefd=False)
    theirs = run(use, "torch", replace(variant, groups=None))
    _send(pipe, theirs)
    meaning: dict[str, Any] = {}
    if variant.groups is not None or (use.may_work and "raised" in theirs):
        meaning = run(use, "definition", replace(variant, groups=variant.groups or C))
    _send(pipe, meaning)
    _send(pipe, run(use, "bgn", variant))
    gc.collect()  # a damaged heap shows when memory is returned


def _fork(use: Use, variant: Variant) -> dict[str, Any]:
    """Outcomes by kind of layer; a crash is the outcome of the kind that has no other."""
    read, write = os.pipe()
    with tempfile.TemporaryFile() as log:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(read)
                _child(use, variant, write, log)
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
                sys.stderr.flush()
            finally:
                os._exit(code)
        os.close(write)
        data, status = _wait(pid, read, time.monotonic() + use.timeout)
        os.close(read)
        log.seek(0)
        text = log.read().decode(errors="replace")[-4000:]
    found = dict(zip(KINDS, _frames(data), strict=False))
    if status is None or status != 0:
        if status is None:
            crash = f"no answer within {use.timeout:.0f} s"
        elif os.WIFSIGNALED(status):
            crash = signal.Signals(os.WTERMSIG(status)).name
        else:
            crash = f"exit code {os.WEXITSTATUS(status)}"
        guilty = KINDS[min(len(found), len(KINDS) - 1)]
        found[guilty] = {"crashed": crash, "log": text}
    return found


def _wait(pid: int, read: int, deadline: float) -> tuple[bytes, int | None]:
    """What the child sent, and its status; None where it did not end in time."""
    data = b""
    closed = False
    while time.monotonic() < deadline:
        if not closed and select.select([read], [], [], 0.05)[0]:
            part = os.read(read, 1 << 20)
            closed = not part
            data += part
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return data, status
        if closed:
            time.sleep(0.001)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return data, None


def _frames(data: bytes) -> list[Any]:
    found = []
    while len(data) >= 8 and len(data) >= 8 + (size := int.from_bytes(data[:8], "little")):
        found.append(_unpack(data[8 : 8 + size]))
        data = data[8 + size :]
    return found


def _unpack(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def _send(pipe: Any, message: Any) -> None:
    buffer = io.BytesIO()
    torch.save(message, buffer)
    data = buffer.getvalue()
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def _receive(pipe: Any) -> Any:
    head = pipe.read(8)
    if len(head) < 8:
        return None
    return _unpack(pipe.read(int.from_bytes(head, "little")))


def serve() -> None:
    """Answer requests from standard input until it ends."""
    torch.set_num_threads(1)
    for name in PRELOAD:
        __import__(name)
    table = load()
    gc.freeze()  # the forks share this memory as long as nobody writes to it
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a use prints is no answer
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    while (request := _receive(requests)) is not None:
        name, fields = request
        _send(answers, _fork(table[name], Variant(*fields)))


class Server:
    """A server process, started by the first request."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, use: Use, variant: Variant) -> dict[str, Any]:
        """Outcomes of a use by kind of layer."""
        if self.process is None:
            single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            single["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
            # new memory holds nonsense rather than the zeros that a fresh process happens to get
            single["MALLOC_PERTURB_"] = "165"
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.differential.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, **single},
            )
        _send(self.process.stdin, (use.name, astuple(variant)))
        answer = _receive(self.process.stdout)
        if answer is None:
            raise RuntimeError(f"the server ended during {use.name}")
        return answer

    def close(self) -> None:
        """End the server, if it was started."""
        if self.process is not None:
            self.process.communicate(timeout=10)


if __name__ == "__main__":
    serve()
