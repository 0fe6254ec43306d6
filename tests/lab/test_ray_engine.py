"""A real Ray cluster of two machines: what a failure of each of its parts costs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bgn_lab.system.signals import REQUEUE
from bgn_lab.training import checkpoint
from bgn_lab.training.record import ABOUT, RESULT
from tests.lab.namespaces import Machine, two_machines, wait_for
from tests.lab.run_folders import check_records, check_same, epochs

pytest.importorskip("ray", reason="the package ray is missing: pip install ray")
pytestmark = pytest.mark.slow

PORT = 6379
EPOCHS = "40"  # a minute: longer than a busy machine takes to begin the other run
BGN = [sys.executable, "-m", "bgn_lab"]
TINY = ["--width", "4", "--stride", "2", "--limit", "400", "--batch-sizes", "8", "--seeds", "1"]
# a machine that is lost shall be missed soon, a busy one not; logs shall stay small
ENVIRONMENT = {
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_health_check_timeout_ms": "8000",
    "RAY_ROTATION_MAX_BYTES": "1000000",
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "OMP_NUM_THREADS": "1",
}
# a normalizer whose process dies as soon as it trains, but not where the command checks it
CRASHING = """
import os, signal, sys, torch
class Norm(torch.nn.BatchNorm2d):
    def forward(self, x):
        if self.training and torch.is_grad_enabled() and "resume" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
"""


class Cluster:
    """Ray on two machines, with two cores and three gigabytes each."""

    def __init__(self, head: Machine, other: Machine, folder: str) -> None:
        self.head, self.other, self.folder = head, other, folder
        self.address = f"{head.address}:{PORT}"
        self._start(head, "--head", f"--port={PORT}", "--include-dashboard=false",
                    f"--temp-dir={folder}")  # fmt: skip
        self.join()

    def join(self) -> None:
        """The second machine becomes part of the cluster."""
        self._start(self.other, f"--address={self.address}")

    def _start(self, machine: Machine, *words: str) -> None:
        log = machine.logs / f"ray-{machine.address}.log"
        for _ in range(3):  # Ray gives itself 30 seconds, which a busy machine may exceed
            child = self._try(machine, *words)
            while child.poll() is None:  # Ray's own time
                if "Ray runtime started" in log.read_text():
                    return
                time.sleep(0.1)
        raise AssertionError(log.read_text())

    def _try(self, machine: Machine, *words: str) -> "subprocess.Popen[bytes]":
        (machine.logs / f"ray-{machine.address}.log").unlink(missing_ok=True)
        return machine.start(
            [
                sys.executable, "-m", "ray.scripts.scripts", "start", *words, "--num-cpus=2",
                "--memory=3000000000",
                f"--node-ip-address={machine.address}", "--object-store-memory=80000000",
                "--disable-usage-stats", "--block",
            ],
            f"ray-{machine.address}.log", ENVIRONMENT,
        )  # fmt: skip

    def compare(self, out: Path, *words: str) -> "subprocess.Popen[bytes]":
        """The command, on the first machine."""
        own = ["compare", *TINY, "--out", str(out), "--engine", "ray", "--address", self.address]
        return self.head.start([*BGN, *own, *words], f"{out.name}.log", ENVIRONMENT, out.parent)

    def said(self, out: Path) -> str:
        """What the command said."""
        return " ".join((self.head.logs / f"{out.name}.log").read_text().split())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = tmp_path_factory.mktemp("logs")
    folder = tempfile.mkdtemp(prefix="bgnray")  # names of sockets in it must be short
    try:
        with two_machines(logs) as (head, other):
            yield Cluster(head, other, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def finish(child: "subprocess.Popen[bytes]", seconds: float = 400) -> int:
    return child.wait(seconds)


def test_results_are_those_of_this_machine_and_a_run_that_fails_is_reported(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING)
    words = ["--epochs", "2", "--norms", "bn", "crashing:Norm", "gn"]
    out = tmp_path / "ray"
    assert finish(cluster.compare(out, *words)) == 1
    said = cluster.said(out)
    assert said.count("its process was killed by SIGKILL; it resumes") == 2, said
    assert "its process was killed by SIGKILL (3 attempts)" in said
    assert "2 of 3 runs are done" in said
    local = tmp_path / "local"
    plain = ["compare", *TINY, "--epochs", "2", "--norms", "bn", "gn", "--out", str(local)]
    subprocess.run([*BGN, *plain, "--jobs", "1"], check=True, capture_output=True)
    check_same(local, out, runs=2)
    for path in local.glob(f"runs/*/{ABOUT}"):
        assert json.loads((out / path.relative_to(local)).read_text())["threads"] == 1
    check_records(local, 2)


def test_a_machine_is_lost_then_the_command_is_killed_and_started_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Two runs, one on each machine: its memory is enough for one."""
    out, words = tmp_path / "lost", ["--epochs", EPOCHS, "--norms", "bn", "gn", "--memory", "2"]
    child = cluster.compare(out, *words)
    wait_for(lambda: len(epochs(out)) == 2, 240, "both runs trained", child)
    before = epochs(out)
    cluster.other.end()  # the cable stays: where it is cut, Ray takes six minutes
    wait_for(lambda: "it resumes from its last" in cluster.said(out), 180, "loss", child)
    assert cluster.said(out).count("it resumes") == 1, "the other run goes on"
    child.send_signal(signal.SIGKILL)
    child.wait()
    # a new machine in its place
    cluster.join()
    child = cluster.compare(out, *words)
    assert finish(child) == 0, cluster.said(out)
    assert "2 of 2 runs are done" in cluster.said(out)
    assert all(before[name] < int(EPOCHS) for name in before), "it was within the runs"
    check_records(out, int(EPOCHS))
    whole = tmp_path / "whole"
    plain = ["compare", *TINY, "--epochs", EPOCHS, "--norms", "bn", "gn", "--jobs", "1"]
    subprocess.run(
        [*BGN, *plain, "--out", str(whole)], check=True, capture_output=True,
        env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    check_same(whole, out, runs=2)


def test_sigterm_saves_the_runs_of_all_machines(cluster: Cluster, tmp_path: Path) -> None:
    """Here each run has two processes, which share its two workers."""
    out = tmp_path / "processes"
    words = ["--norms", "bn", "gn", "--simulate-workers", "2", "--processes", "2"]
    child = cluster.compare(out, *words, "--epochs", "4")
    wait_for(lambda: len(epochs(out)) == 2, 240, "both runs trained", child)
    child.send_signal(signal.SIGTERM)
    assert finish(child) == REQUEUE
    assert "Stopped. Run the same command to resume." in cluster.said(out)
    unfinished = [path.parent for path in out.glob(f"runs/*/{checkpoint.NAME}")]
    assert len(unfinished) + len(list(out.glob(f"runs/*/{RESULT}"))) == 2
    assert finish(cluster.compare(out, *words, "--epochs", "4")) == 0, cluster.said(out)
    check_records(out, 4)
    for path in out.glob(f"runs/*/{ABOUT}"):
        assert all(own["processes"] == 2 for own in json.loads(path.read_text())["sessions"])


def test_a_folder_that_the_other_machine_does_not_see(cluster: Cluster, tmp_path: Path) -> None:
    """A mount of the first machine's alone lies over the folder there."""
    out = tmp_path / "hidden"
    out.mkdir()
    own = ["compare", *TINY, "--epochs", "1", "--norms", "bn", "gn", "--out", str(out)]
    words = [*BGN, *own, "--engine", "ray", "--address", cluster.address, "--memory", "2"]
    mounted = f"mount -t tmpfs -o size=64m none {out} && exec {' '.join(words)}"
    child = cluster.head.start(
        ["unshare", "--mount", "bash", "-c", mounted], f"{out.name}.log", ENVIRONMENT
    )
    assert finish(child) == 2, cluster.said(out)
    assert "is not visible on" in cluster.said(out)
    assert "expected a folder on a file system that all machines share" in cluster.said(out)


def test_no_cluster(tmp_path: Path) -> None:
    words = ["compare", *TINY, "--out", str(tmp_path), "--engine", "ray"]
    done = subprocess.run(
        [*BGN, *words, "--address", "127.0.0.1:1"], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "no Ray cluster was reached at" in done.stderr
    assert "Connection refused" in done.stderr
