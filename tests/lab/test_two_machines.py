"""One run over two machines: what each of their failures costs, counted in records.

Two workers, one on each machine, then both on one: their batches have the same shapes on any number
of processes, so the numbers of every epoch are those of a run that nothing happened to.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import allclose

from bgn_lab import experiments
from bgn_lab.system.launch import REFUSED
from bgn_lab.training import checkpoint
from bgn_lab.training.record import ABOUT, METRICS, RESULT
from bgn_lab.training.run import WEIGHTS
from tests.lab.namespaces import Machine, two_machines, wait_for
from tests.lab.test_workers import ALIKE, command, start

pytestmark = pytest.mark.slow
RECIPE = replace(ALIKE, limit=800, epochs=6)
STEP = RECIPE.batch_size * RECIPE.simulate_workers  # images
# The clock of the day with an offset from a file; other clocks are as they are. (libfaketime makes
# time.sleep fail where it leaves the monotonic clock alone.)
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t offset(void) {
    long seconds = 0;
    FILE *file = fopen(getenv("CLOCK_OFFSET"), "r");
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += offset();
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
"""
YEAR, DAY = 365 * 86400, 86400


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    experiments.run(RECIPE, folder)
    return folder


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    with two_machines(tmp_path) as found:
        yield found


def numbers(folder: Path) -> list[tuple[int, float]]:
    """Epochs and accuracies on the images that were trained on: shares of all that were seen."""
    lines = (json.loads(line) for line in (folder / METRICS).read_text().splitlines())
    return [(line["epoch"], line["train_accuracy"]) for line in lines]


def check_nothing_lost_or_doubled(folder: Path, whole: Path) -> None:
    """Every epoch once, with the images that it should have, and the weights of all their steps."""
    assert (folder / RESULT).exists()
    assert numbers(folder) == numbers(whole)
    one, two = load_file(folder / WEIGHTS), load_file(whole / WEIGHTS)
    assert all(allclose(one[name], two[name], rtol=1e-4, atol=1e-5) for name in two)


def check_checkpoint(folder: Path) -> tuple[int, int]:
    """Epoch and step of a checkpoint, in which every image of these steps counts once."""
    about, _ = checkpoint._read((folder / checkpoint.NAME).read_bytes(), folder)
    found = about["progress"]
    assert found["score"]["images"] == found["step"] * STEP
    return found["epoch"], found["step"]


def torchrun(machine: Machine, head: Machine, out: Path, nodes: str) -> "subprocess.Popen[bytes]":
    """The part of one run on a machine; gloo takes the cable."""
    words = command(RECIPE, out, "--lost-after", "0.5")
    return machine.start(
        [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes,
            "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"{head.address}:29511",
            "--rdzv-conf", f"last_call_timeout=5,join_timeout=60,is_host={int(machine is head)}",
            "--local-addr", machine.address, *words[1:],
        ],
        f"{machine.name}.log",
        {
            "GLOO_SOCKET_IFNAME": machine.cable,
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
    )  # fmt: skip


def epochs(folder: Path) -> int:
    path = folder / METRICS
    return path.read_text().count("\n") if path.exists() else 0


def said(*machines: Machine) -> str:
    return "\n".join((m.logs / f"{m.name}.log").read_text() for m in machines)


def worker(machine: Machine) -> int:
    """The process that trains on a machine: the child of torchrun."""
    for pid in machine.pids():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "bgn_lab" in words and "torch.distributed.run" not in words:
            return pid
    raise AssertionError(said(machine))


def test_a_process_is_killed(
    machines: tuple[Machine, Machine], tmp_path: Path, whole: Path
) -> None:
    """Both machines begin again from the checkpoint."""
    head, other = machines
    children = [torchrun(machine, head, tmp_path / "run", "2") for machine in machines]
    wait_for(lambda: epochs(tmp_path / "run") >= 1, 240, "an epoch", children[0])
    os.kill(worker(other), signal.SIGKILL)
    for child in children:
        assert child.wait(400) == 0, said(head, other)
    assert said(head).count("workers, on 2 processes") == 2
    check_nothing_lost_or_doubled(tmp_path / "run", whole)


@pytest.mark.parametrize("nodes", ["1:2", "2"])
def test_a_machine_is_lost_for_good(
    machines: tuple[Machine, Machine], tmp_path: Path, whole: Path, nodes: str
) -> None:
    """With 1:2 the other one goes on alone, with both workers; else it stops."""
    (head, other), out = machines, tmp_path / "run"
    child = torchrun(head, head, out, nodes)
    torchrun(other, head, out, nodes)
    wait_for(lambda: epochs(out) >= 1, 240, "an epoch", child)
    other.power_off()
    if nodes == "1:2":
        assert child.wait(400) == 0, said(head)
        assert "for each of 2 workers, on one process" in said(head)
    else:
        assert child.wait(400) == 1, said(head)
        assert not (out / RESULT).exists()
        check_checkpoint(out)
        subprocess.run(command(RECIPE, out), check=True, capture_output=True)
    check_nothing_lost_or_doubled(out, whole)


def test_sigterm_on_both_machines(
    machines: tuple[Machine, Machine], tmp_path: Path, whole: Path
) -> None:
    (head, other), out = machines, tmp_path / "run"
    children = [torchrun(machine, head, out, "2") for machine in machines]
    wait_for(lambda: epochs(out) >= 1, 240, "an epoch", children[0])
    time.sleep(0.2)
    for child in children:
        child.send_signal(signal.SIGTERM)
    for child in children:
        child.wait(120)
    _, step = check_checkpoint(out)
    assert step > 0, said(head, other)
    subprocess.run(command(RECIPE, out), check=True, capture_output=True)
    check_nothing_lost_or_doubled(out, whole)


def test_the_disk_is_full_while_a_checkpoint_is_written(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "disk"
    out.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(out)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        child = start([*command(RECIPE, out / "run"), "--processes", "2", "--restarts", "1"])
        wait_for(lambda: epochs(out / "run") >= 1, 240, "an epoch")
        with contextlib.suppress(OSError), (out / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        text, _ = child.communicate(timeout=240)
        assert child.returncode == REFUSED, text
        assert "cannot be written: No space left on device" in text
        assert "Traceback" not in text
        epoch, _ = check_checkpoint(out / "run")
        assert 1 <= epoch < RECIPE.epochs
        (out / "ballast").unlink()
        subprocess.run(command(RECIPE, out / "run"), check=True, capture_output=True)
        check_nothing_lost_or_doubled(out / "run", whole)
    finally:
        subprocess.run(["umount", "--lazy", str(out)], check=True)


def test_the_clock_jumps(tmp_path: Path, whole: Path) -> None:
    """A year ahead, and a day back: what the system calls now is used for no decision."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("a clock of one's own needs Linux and a C compiler")
    (tmp_path / "clock.c").write_text(CLOCK)
    library, offset, out = tmp_path / "clock.so", tmp_path / "offset", tmp_path / "run"
    built = ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "clock.c"), "-ldl"]
    subprocess.run(built, check=True)
    offset.write_text("0")
    environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(
            [*command(RECIPE, out), "--processes", "2"], stdout=log, stderr=log, env=environment
        )
    for number, jump in enumerate((YEAR, -DAY), 1):
        wait_for(lambda n=number: epochs(out) >= n, 240, "an epoch", child)
        offset.write_text(str(jump))
    assert child.wait(240) == 0, (tmp_path / "log").read_text()
    check_nothing_lost_or_doubled(out, whole)
    # the clock was that of the run's processes: a run that begins now says so
    offset.write_text(str(YEAR))
    subprocess.run(
        command(replace(RECIPE, epochs=1), tmp_path / "later"), check=True, env=environment,
        capture_output=True,
    )  # fmt: skip
    began = json.loads((tmp_path / "later" / ABOUT).read_text())["time"]
    assert int(began[:4]) == time.gmtime().tm_year + 1
