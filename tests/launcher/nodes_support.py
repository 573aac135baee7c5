"""What the tests of jobs on several machines share: hosts made of namespaces, and several lockruns on this one."""

import os
import pathlib
import socket
import subprocess
import sys

from lockrun_support import LOCKRUN, TIMEOUT, LockrunTest
from ports import free_port

ALL_REDUCE_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "all_reduce_rank")
LATE_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "late_rank")
# A rank that says who it is, with a file too, and ends when there is a file `release`.
LOOP = "echo started $RANK of $WORLD_SIZE in $TORCHELASTIC_RESTART_COUNT; touch up$RANK.$WORLD_SIZE; while [ ! -e release ]; do sleep 0.02; done"
# Heartbeats soon, but no loss where a lockrun does not run for some seconds, as on a busy machine.
PATIENT = "keep_alive_interval=0.5,keep_alive_max_attempt=30"


class NodesTest(LockrunTest):
    def setUp(self):
        super().setUp()
        self.environment["PYTHON_EXEC"] = sys.executable
        self.environment["LOCKSTEP_BACKEND"] = "gloo"
        token = self.directory / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)
        self.token = f"token_file={token}"

    def those(self, pids, condition):
        found = []
        for pid in pids:
            try:
                if condition(pid):
                    found.append(pid)
            except OSError:  # it has ended
                pass
        return found

    def called(self, name, pids):
        return self.those(pids, lambda pid: pathlib.Path(f"/proc/{pid}/comm").read_text() == name + "\n")

    def finish(self, *processes):
        """(exit code, stdout, stderr) of each."""
        results = []
        for process in processes:
            out, err = process.communicate(timeout=TIMEOUT)
            results.append((process.returncode, out, err))
        return results


class OnHosts(NodesTest):
    """`self.two`: the hosts."""

    def on(self, host, *arguments):
        process = subprocess.Popen(
            self.two.hosts[host].command("env", "-C", self.directory, LOCKRUN, *arguments),
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(lambda: (process.stdout.close(), process.stderr.close()))
        return process

    def processes_of(self, host):
        wanted = os.readlink(f"/proc/{self.two.hosts[host].pid}/ns/pid")
        return self.those(self.processes(), lambda pid: os.readlink(f"/proc/{pid}/ns/pid") == wanted)


class AgentsTest(NodesTest):
    """Several lockruns on this machine, with shell scripts as ranks."""

    def setUp(self):
        super().setUp()
        self.environment["PET_PREFIX"] = "off"
        self.port = free_port()

    def static(self, node_rank, script, *flags, nnodes=2, conf=None):
        return self.start(
            "--nnodes", nnodes, "--node-rank", node_rank, "--master-port", self.port, "--rdzv-conf", conf or self.token, *flags, "sh", "-c", script
        )

    def elastic(self, nnodes, script, *flags):
        conf = f"{self.token},last_call_timeout=0.5,{PATIENT}"
        return self.start(
            "--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-conf", conf, *flags, "sh", "-c", script
        )

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        except OSError:
            return False
