"""A SLURM of our own on the two hosts of two_hosts.py: munge, a controller on a, a node on each."""

import os
import pathlib
import shutil
import subprocess
import time

CONFIGURATION = """
ClusterName=test
SlurmctldHost=a
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile={directory}/controller.pid
SlurmdPidFile={directory}/node.%n.pid
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldLogFile={directory}/controller.log
SlurmdLogFile={directory}/node.%n.log
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
KillWait=2
NodeName=a NodeAddr=10.77.0.1 CPUs=8
NodeName=b NodeAddr=10.77.0.2 CPUs=8
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL State=UP PriorityTier=9
"""

LONGEST_START = 120  # seconds, on a busy machine

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sinfo")


def find(program):
    """Debian keeps daemons where ordinary users do not look."""
    path = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if path is None:
        raise RuntimeError(f"{program} is not installed; install what deps/apt-test.txt lists (scripts/setup --test)")
    return path


class Slurm:
    """`two`: TwoHosts, whose processes end with them; `directory`: an empty one for files."""

    def __init__(self, two, directory):
        self.two, self.directory = two, directory
        programs = {name: find(name) for name in PROGRAMS}
        directory.chmod(0o755)
        for name in ("state", "spool.a", "spool.b"):
            (directory / name).mkdir()
        (directory / "slurm.conf").write_text(CONFIGURATION.format(directory=directory))
        (directory / "munge.key").write_bytes(os.urandom(1024))
        (directory / "munge.key").chmod(0o400)
        # The names of the hosts, and nothing that the files of this machine would look up.
        (directory / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 a\n10.77.0.2 b\n")
        for host in two.hosts.values():
            host.run("mount", "--bind", directory / "hosts", "/etc/hosts")
        self.environment = {"SLURM_CONF": str(directory / "slurm.conf")}
        version = subprocess.run(
            [programs["sinfo"], "-V"], check=True, capture_output=True, text=True, env=dict(os.environ, **self.environment)
        ).stdout.split()[1]
        if int(version.split(".")[0]) >= 24:  # which can do without control groups; older ones end over this file
            (directory / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        self.of_daemons = dict(os.environ, **self.environment)
        if pathlib.Path("/proc/self/setgroups").read_text().strip() == "deny":
            self.of_daemons["LD_PRELOAD"] = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "keep_groups.so")
        files = [
            f"--{name}={directory}/munge.{suffix}"
            for name, suffix in (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))
        ]
        self.daemons = []
        self.start("a", programs["munged"], "--foreground", "--force", *files)
        self.wait_for(lambda: (directory / "munge.socket").exists(), "munged")
        self.start("a", programs["slurmctld"], "-D", "-c")
        for host in "ab":
            self.start(host, programs["slurmd"], "-D", "-N", host)
        idle = two.hosts["a"].command(programs["sinfo"], "--noheader", "--states=idle", "--format=%D")
        self.wait_for(
            lambda: subprocess.run(idle, capture_output=True, text=True, timeout=60, env=dict(os.environ, **self.environment)).stdout.strip() == "2",
            "slurmd",
        )

    def start(self, host, *command):
        log = open(self.directory / f"{pathlib.Path(command[0]).name}.{host}.out", "w")
        with log:
            self.daemons.append(
                subprocess.Popen(self.two.hosts[host].command(*command), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.of_daemons)
            )

    def wait_for(self, ready, what):
        deadline = time.monotonic() + LONGEST_START
        while not ready():
            if time.monotonic() > deadline:
                said = "\n".join(file.read_text() for file in self.directory.glob("*.out"))
                raise RuntimeError(f"{what} is not ready after {LONGEST_START} s:\n{said}")
            time.sleep(0.05)

    def describe(self):
        """What SLURM knows of its jobs and nodes, and what its daemons have written last; for a test that fails."""
        parts = []
        for command in (("squeue", "--long"), ("scontrol", "show", "job"), ("sinfo", "--Node", "--long")):
            try:
                said = subprocess.run(
                    self.two.hosts["a"].command(*command),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=30,
                    env=dict(os.environ, **self.environment),
                ).stdout
            except subprocess.TimeoutExpired:
                said = "no answer within 30 s\n"
            parts.append(f"--- {' '.join(command)}\n{said}")
        for log in sorted(self.directory.glob("*.log")):
            parts.append(f"--- the end of {log.name}\n" + "".join(log.read_text(errors="replace").splitlines(True)[-60:]))
        return "\n" + "".join(parts)

    def stop(self):
        """To call after TwoHosts.stop(), with which the daemons end."""
        for daemon in self.daemons:
            daemon.wait(60)
