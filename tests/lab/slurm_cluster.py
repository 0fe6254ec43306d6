"""A real Slurm cluster of this machine, for the time of a test."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MinJobAge=10
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


@contextlib.contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """The environment in which commands of Slurm reach it; nothing is left of it afterwards."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if sys.platform != "linux" or missing or os.geteuid():
        wanted = ", ".join(missing) or "root"
        pytest.skip(f"a Slurm cluster needs {wanted} (Debian: munge, slurmctld, slurmd)")
    folder = Path(tempfile.mkdtemp(prefix="bgnslurm"))
    host, ports = socket.gethostname(), [_free_port(), _free_port()]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=host, ports=ports))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for words in (
            ["munged", "--foreground", "--force", *munge, f"--socket={folder}/munge.socket"],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-c"],
        ):
            with (folder / f"{words[0]}.log").open("wb") as log:
                daemons.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))
            time.sleep(0.5)
        _wait_until_idle(environment, folder)
        yield environment
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True)
        _wait_until_empty(environment)
        for daemon in reversed(daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while ask(environment, "sinfo", "--noheader", "--format=%T").strip() != "idle":
        said = "\n".join(path.read_text() for path in folder.glob("slurm*.log"))
        assert time.monotonic() < deadline, said
        time.sleep(0.5)


def _wait_until_empty(environment: dict[str, str]) -> None:
    deadline = time.monotonic() + 60
    while ask(environment, "squeue", "--noheader").strip() and time.monotonic() < deadline:
        time.sleep(0.5)


def ask(environment: dict[str, str], *words: str) -> str:
    """What a command of Slurm prints."""
    return subprocess.run(words, env=environment, capture_output=True, text=True).stdout
