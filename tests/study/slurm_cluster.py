"""A Slurm of one machine for a test: munged, slurmctld and slurmd in a folder of the test's own, ended with it.

Debian has all of it in the packages slurm-wlm and munge; no configuration of the machine is read or changed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

from study_jobs import carriers

START_SECONDS = 60
CONFIG = """
ClusterName=memfit
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
PluginDir={plugins}
SlurmctldPort={port}
SlurmdPort={slurmd_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
KillWait=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=small Nodes={host} MaxTime=INFINITE State=UP
"""


def program(name: str) -> str | None:
    """A program of Slurm or munge, by either name that Debian has for it."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    return shutil.which(name, path=path) or shutil.which(f"{name}-wlm", path=path)


def why_not() -> str:
    """Why there can be no Slurm here; empty when there can."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch") if program(name) is None]
    if missing:
        return f"no {', '.join(missing)} on the path: apt install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd starts jobs of users, so it needs to be root"


class Slurm:
    """The three daemons; commands of Slurm find them by SLURM_CONF."""

    def __init__(self, folder: Path, ports: tuple[int, int]) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self.host = platform.node().split(".")[0]
        self.processes: list[subprocess.Popen[bytes]] = []
        controller, self.stepd = program("slurmctld"), program("slurmstepd")
        assert controller is not None
        library = "usr/lib" if controller.endswith("usr/sbin/slurmctld-wlm") else "lib"
        root = Path(controller).resolve().parents[2]
        plugins = next((root / library).glob("*/slurm-wlm"), root / "usr/lib/slurm-wlm")
        for name in ("state", "spool"):
            (folder / name).mkdir()
        text = CONFIG.format(host=self.host, folder=folder, plugins=plugins, port=ports[0], slurmd_port=ports[1])
        self.config.write_text(text)

    def start(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = {
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munge.seed",
        }
        words = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self._run("munged", "--foreground", "--force", f"--key-file={key}", *words)
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._run("slurmctld", "-D", "-f", str(self.config))
        self._run("slurmd", "-D", "-f", str(self.config), "-N", self.host, "-d", str(self.stepd))
        self._wait(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T"), "an idle node")

    def _run(self, name: str, *words: str) -> None:
        command = program(name)
        assert command is not None
        with open(self.folder / f"{name}.out", "wb") as out:
            self.processes.append(subprocess.Popen([command, *words], stdout=out, stderr=out, env=self.environment()))

    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.config)}

    def ask(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=30)
        return done.stdout

    def jobs(self) -> list[str]:
        """The jobs that wait or run."""
        return self.ask("squeue", "-h", "-o", "%i %T %P").splitlines()

    def _wait(self, is_so, what: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_so():
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                logs = "\n".join(path.read_text(errors="replace")[-600:] for path in self.folder.glob("*.[lo][ou][gt]"))
                raise AssertionError(f"no {what}:\n{logs}")
            time.sleep(0.1)

    def close(self) -> None:
        self.ask("scancel", "--partition=debug")
        self.ask("scancel", "--partition=small")
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in carriers(f"SLURM_CONF={self.config}"):  # a job that slurmd was about to end when it was ended itself
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
