"""A real Slurm on this machine: a login host and three nodes, each with its name, address and processes.

    slurm = SlurmNodes(folder)
    slurm.run("srun", "--nodes=3", "hostname").stdout      # on the login host
    slurm.kill("n2")                                       # the node dies, with all of its processes
    slurm.revive("n2")
    slurm.close()

The login host runs munged and slurmctld, and a node runs slurmd. Their network is a bridge in a network
namespace of its own, which this machine's network does not reach. A node has a namespace of process
identifiers, too, so that no process outlives it. The key of munge, the configuration and the state lie in
``folder``: a Slurm and a munge of this machine are not touched. All of it ends with the test's process. The
hosts share this machine's disk, but ``home`` is a folder of each host's own, and so is /dev/shm.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from waiting import until

LOGIN = "login"
NODES = ("n1", "n2", "n3")
ADDRESSES = {LOGIN: "10.92.7.10", "n1": "10.92.7.1", "n2": "10.92.7.2", "n3": "10.92.7.3"}
CORES, GPUS = 4, 2  # of a node, as Slurm counts them
PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "sshd", "ip", "unshare", "nsenter", "setpriv")
DIES_WITH_TEST = ("setpriv", "--pdeathsig", "KILL")
SPACES = ("--net", "--uts", "--mount")
SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"  # where a user's PATH does not look for daemons

# A node that does not answer is down after seconds, not minutes; otherwise it is as on a site.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={login}({address})
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=10000,bf_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout=4
MessageTimeout=2
KillWait=2
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName={nodes} CPUs={cores} RealMemory=4000 Gres=gpu:{gpus}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE
PartitionName=short Nodes=ALL MaxTime=5
"""

# The nodes let root in, with a key of this Slurm only, as a site lets users in to the nodes of their jobs.
SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PasswordAuthentication no
UsePAM no
StrictModes no
PidFile none
SetEnv NBDIST_HOME={folder}/home/nbdist
"""
SSH = """
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking accept-new
LogLevel ERROR
"""

Done = subprocess.CompletedProcess[str]


@lru_cache(maxsize=1)
def why_not() -> str:
    """Return the reason why this process cannot run a Slurm of its own; empty if it can."""
    if os.geteuid():
        return "a Slurm of several nodes on one machine needs root"
    path = f"{os.environ['PATH']}:{SYSTEM}"
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=path)]:
        return f"no {', '.join(missing)} here: apt-get install slurmctld slurmd munge iproute2 util-linux"
    tried = subprocess.run(["unshare", *SPACES, "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"this process may make no hosts (root may): {tried.stderr.strip()}" if tried.returncode else ""


class SlurmNodes:
    """A Slurm whose files lie in ``folder``: a new one, with a path short enough for sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.environment = environment_of(os.environ, folder) | {"NBDIST_HOME": str(self.home / "nbdist")}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._write_files()
        try:
            self._hold(
                "bridge", "ip link add bridge type bridge && ip link set bridge up && echo up && exec cat"
            )
            self._hold(LOGIN, "echo up && exec cat")
            self._connect(LOGIN)
            munge = folder / "munge"
            files = {
                "key-file": "key",
                "socket": "socket",
                "pid-file": "pid",
                "log-file": "log",
                "seed-file": "seed",
            }
            options = [f"--{option}={munge / name}" for option, name in files.items()]
            self.start("munged", "--foreground", "--force", *options)
            until((munge / "socket").exists, describe=self.logs)
            self.start_controller()
            until(lambda: not self.run("scontrol", "ping", check=False).returncode, describe=self.logs)
            for node in NODES:
                self._boot(node)
            until(self.is_idle, describe=self.logs)
        except BaseException:
            self.close()
            raise

    def start(self, *command: str, host: str = LOGIN, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command on a host; its output goes to a log, unless ``options`` of Popen say otherwise.

        A command on the login host can be sent signals; on a node, the process returned only waits for it.
        """
        with (self.folder / "output.log").open("ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            given = {"env": self.environment, **streams, **options}
            self._started.append(subprocess.Popen([*self.inside(host), *command], **given))
        return self._started[-1]

    def run(self, *command: str, host: str = LOGIN, check: bool = True, **options: Any) -> Done:
        """Run a command on a host; it must succeed, unless ``check`` is false."""
        given = {"env": self.environment, "stdin": subprocess.DEVNULL, "timeout": 60, **options}
        done = subprocess.run([*self.inside(host), *command], capture_output=True, text=True, **given)
        assert not check or not done.returncode, f"{command}: {done.stderr}\n{self.logs()}"
        return done

    def inside(self, host: str) -> list[str]:
        """Return the beginning of a command that runs on a host."""
        holder = self._holders[host].pid
        if host not in NODES:
            return ["nsenter", f"--target={holder}", *SPACES, *DIES_WITH_TEST]
        return ["nsenter", f"--target={first_child(holder)}", "--pid", *SPACES, *DIES_WITH_TEST]

    def is_idle(self) -> bool:
        """Return whether all nodes are up and have no job."""
        return self.states() == dict.fromkeys(NODES, "idle")

    def states(self) -> dict[str, str]:
        """Return the state of each node, in Slurm's words: "idle", "alloc", "mix", "down*"."""
        found = self.run("sinfo", "-h", "-p", "debug", "-N", "-o", "%N %t", check=False)
        return dict(line.split() for line in found.stdout.splitlines())

    def jobs(self) -> dict[str, str]:
        """Return the state of each job that has not ended, by its number."""
        found = self.run("squeue", "-h", "-o", "%i %T")
        return dict(line.split() for line in found.stdout.splitlines())

    def processes(self) -> list[str]:
        """Return the processes on the nodes, except those of Slurm itself."""
        nodes = [self._holders[node] for node in NODES if node in self._holders]
        found = processes_in({os.readlink(f"/proc/{holder.pid}/ns/net") for holder in nodes})
        own = ("slurm", "sshd", "/usr/sbin/sshd", "unshare --net", "sh -c hostname", "setpriv")
        return [line for line in found if not line.split(" ", 1)[1].startswith(own)]

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._controller = self.start("slurmctld", "-D")

    def stop_controller(self) -> None:
        """End slurmctld; the nodes and their jobs go on."""
        self._controller.terminate()
        self._controller.wait()

    def up(self) -> list[str]:
        """Return the hosts that are up."""
        return [host for host in (LOGIN, *NODES) if host in self._holders]

    def files(self, host: str) -> list[str]:
        """Return nbdist's files in a host's home and in its shared memory."""
        root = Path(f"/proc/{self._holders[host].pid}/root")
        found = [*(root / str(self.home)[1:]).rglob("*"), *(root / "dev/shm").glob("nbdist-*")]
        return sorted(f"/{path.relative_to(root)}" for path in found if not path.is_dir())

    def kill(self, node: str) -> None:
        """End all processes of a node at once, as a loss of power does."""
        holder = self._holders.pop(node)
        holder.kill()
        holder.communicate()

    def revive(self, node: str) -> None:
        """Start a node that was killed."""
        self._boot(node)
        until(lambda: self.states()[node] in ("idle", "mix", "alloc"), describe=self.logs)

    def cut(self, node: str) -> None:
        """Take a node off the network; its traffic is lost silently."""
        self.run("ip", "link", "set", f"port_{node}", "nomaster", host="bridge")

    def heal(self, node: str) -> None:
        """Put a node on the network again."""
        self.run("ip", "link", "set", f"port_{node}", "master", "bridge", host="bridge")

    def reset(self) -> None:
        """Cancel all jobs, and bring up all nodes, for the next test."""
        for node in set(NODES) - self._holders.keys():
            self._boot(node)
        if jobs := self.jobs():
            self.run("scancel", *jobs)
        until(self.is_idle, describe=self.logs)

    def logs(self) -> str:
        """Return the end of each log, for the message of a test that fails."""
        logs = [
            path
            for path in (*sorted(self.folder.glob("*.log")), self.folder / "munge" / "log")
            if path.exists()
        ]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)

    def close(self) -> None:
        """End all processes of the hosts, and thereby their namespaces; safe to repeat."""
        networks = {os.readlink(f"/proc/{holder.pid}/ns/net") for holder in self._holders.values()}
        for process in (*self._holders.values(), *self._started):
            process.kill()
            with process:  # waits for it, and closes its pipes
                pass
        self._holders.clear()
        self._started.clear()
        until(lambda: not processes_in(networks), 5, describe=lambda: processes_in(networks))

    def _write_files(self) -> None:
        for name in ("munge", "state", "home", *NODES):
            (self.folder / name).mkdir()
        key = self.folder / "munge" / "key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))
        values = {"login": LOGIN, "address": ADDRESSES[LOGIN], "folder": self.folder}
        values |= {"nodes": ",".join(NODES), "cores": CORES, "gpus": GPUS}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format_map(values))
        devices = [self.folder / f"gpu{number}" for number in range(GPUS)]
        for device in devices:  # as /dev/null is: Slurm takes it for a GPU's
            os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))
        for name in ("host_key", "user_key"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(key, check=True)
        (self.folder / "sshd.conf").write_text(SSHD.format(folder=self.folder))
        (self.folder / "ssh.conf").write_text(SSH.format(folder=self.folder))
        hosts = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")

    def _boot(self, node: str) -> None:
        # The shell is the node's first process: it waits for the processes that have lost their parents.
        sshd = f"mkdir -p /run/sshd && $(command -v sshd) -D -f {self.folder}/sshd.conf"
        script = f"echo up && read line && {{ {sshd} & slurmd -D -N {node} & wait; }}"
        self._hold(node, script, "--pid", "--fork", "--kill-child", "--mount-proc")
        self._connect(node)
        stdin = self._holders[node].stdin
        assert stdin is not None
        stdin.write(b"\n")
        stdin.flush()

    def _hold(self, name: str, script: str, *spaces: str) -> None:
        files = {"hosts": "/etc/hosts", "ssh.conf": "/etc/ssh/ssh_config"}
        binds = [f"mount --bind {self.folder}/{file} {path}" for file, path in files.items()]
        own = " && ".join([f"hostname {name}", *binds, "ip link set lo up"])
        shared = "mount -t tmpfs -o mode=1777,size=256m tmpfs /dev/shm"
        shared += f" && mount -t tmpfs -o mode=0700,size=256m tmpfs {self.home}"
        with (self.folder / "output.log").open("ab") as log:
            holder = self._holders[name] = subprocess.Popen(
                [*DIES_WITH_TEST, "unshare", *SPACES, *spaces, "sh", "-c", f"{own} && {shared} && {script}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
            )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n", f"host {name} cannot be made\n{self.logs()}"

    def _connect(self, name: str) -> None:
        there = self._holders[name].pid
        for host, command in (
            ("bridge", f"link add port_{name} type veth peer name eth0 netns {there}"),
            ("bridge", f"link set port_{name} up master bridge"),
            (name, f"address add {ADDRESSES[name]}/24 dev eth0"),
            (name, "link set eth0 up"),
        ):
            self.run("ip", *command.split(), host=host)


def environment_of(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a user on the login host."""
    others = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_")
    kept = {name: value for name, value in environ.items() if not name.startswith(others)}
    return kept | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{environ['PATH']}:{SYSTEM}"}


def first_child(pid: int) -> int:
    """Return the first child of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def processes_in(networks: set[str]) -> list[str]:
    """Return the number and the command of each process in one of these network namespaces."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(path / "ns" / "net") in networks:
                found.append(f"{path.name} {(path / 'cmdline').read_text().replace(chr(0), ' ')}")
    return found
