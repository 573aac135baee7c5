"""Jobs on several machines: two hosts made of namespaces, and several lockruns on this one."""

import hashlib
import hmac
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from lockrun_support import LOCKRUN, TIMEOUT, LockrunTest, wait_until
from two_hosts import ThreeHosts, TwoHosts, become_root, shared_memory_of

ALL_REDUCE_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "all_reduce_rank")
LATE_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "late_rank")
SCRIPT = pathlib.Path(__file__).with_name("allreduce_script.py")
LOOP = "echo started $RANK of $WORLD_SIZE in $TORCHELASTIC_RESTART_COUNT; touch up$RANK.$WORLD_SIZE; while [ ! -e release ]; do sleep 0.02; done"


class Proxy:
    """Passes connections to a port of its own on to `port`, until it is told to cut them."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.pairs = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.target))
            except ConnectionRefusedError:
                client.close()
                continue
            except OSError:
                return
            self.pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def pump(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass

    def cut_the_clients_side(self):
        for client, _ in self.pairs:
            client.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()
        for pair in self.pairs:
            for end in pair:
                end.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
        process = subprocess.Popen(self.two.hosts[host].command("env", "-C", self.directory, LOCKRUN, *arguments), env=self.environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (process.stdout.close(), process.stderr.close()))
        return process

    def processes_of(self, host):
        wanted = os.readlink(f"/proc/{self.two.hosts[host].pid}/ns/pid")
        return self.those(self.processes(), lambda pid: os.readlink(f"/proc/{pid}/ns/pid") == wanted)


class HostsTest(OnHosts):
    def setUp(self):
        super().setUp()
        self.two = TwoHosts()
        self.addCleanup(self.two.stop)

    def test_static_all_reduce_in_cpp_shares_no_memory(self):
        del self.environment["LOCKSTEP_BACKEND"]  # Nobody chooses.
        flags = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", self.token,
                 "--prefix", "off"]
        a = self.on("a", *flags, "--node-rank", 0, ALL_REDUCE_RANK)
        b = self.on("b", *flags, "--node-rank", 1, ALL_REDUCE_RANK)
        lines = [a.stdout.readline() for _ in range(2)] + [b.stdout.readline() for _ in range(2)]
        self.assertEqual(sorted(lines), [f"rank {rank} of 4 sum 10\n" for rank in range(4)])
        memory = {host: shared_memory_of(self.processes_of(host)) for host in "ab"}
        self.assertTrue(memory["a"] and memory["b"], "the ranks of a host share a segment")
        self.assertEqual(memory["a"] & memory["b"], set())
        # What is open listens on the agreed address only.
        listening = subprocess.run(self.two.hosts["a"].command("cat", "/proc/net/tcp"), capture_output=True, text=True).stdout
        addresses = {line.split()[1].split(":")[0] for line in listening.splitlines()[1:] if line.split()[3] == "0A"}
        self.assertEqual(addresses, {"01004D0A"})
        (self.directory / "release").touch()
        for node, (code, _, err) in enumerate(self.finish(a, b)):
            self.assertEqual(code, 0, err)
            self.assertEqual(err.count("the 4 ranks are on several machines, so the backend is gloo"), 1 - node, err)

    def test_elastic_all_reduce_of_torchruns_script(self):
        flags = ["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29777", "--rdzv-id", "job",
                 "--rdzv-conf", self.token, "--prefix", "off", SCRIPT]
        results = self.finish(self.on("a", *flags), self.on("b", *flags))
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertEqual(sorted(out for _, out, _ in results), [f"rank {rank} of 2 sum 3.0 attempt 0\n" for rank in range(2)])

    def test_a_cut_cable_ends_a_job_that_needs_both(self):
        conf = self.token + ",keep_alive_interval=0.2,keep_alive_max_attempt=3"
        flags = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", conf]
        a = self.on("a", *flags, "--node-rank", 0, "sh", "-c", LOOP)
        b = self.on("b", *flags, "--node-rank", 1, "sh", "-c", LOOP)
        self.wait_for_file("up0.2")
        self.wait_for_file("up1.2")
        self.two.cut_the_cable()
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(a, b)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        self.assertIn("the machine b (10.77.0.2, rank 1) was lost: no heartbeat for ", err_a)
        self.assertRegex(err_b, r"the rendezvous at 10\.77\.0\.1:29500 was lost: no heartbeat for \d+\.\d s")

    def test_a_machine_that_a_cut_cable_lost_comes_back(self):
        conf = self.token + ",keep_alive_interval=0.5,keep_alive_max_attempt=6"
        flags = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", conf, "--max-restarts", 1]
        a = self.on("a", *flags, "--node-rank", 0, "sh", "-c", LOOP)
        b = self.on("b", *flags, "--node-rank", 1, "sh", "-c", LOOP)
        for name in ("up0.2", "up1.2"):
            self.wait_for_file(name)
            (self.directory / name).unlink()
        self.two.cut_the_cable()
        for process in (a, b):
            while "was lost: no heartbeat for " not in (line := process.stderr.readline()):
                self.assertNotEqual(line, "")
        self.two.mend_the_cable()
        for name in ("up0.2", "up1.2"):
            self.wait_for_file(name)
        (self.directory / "release").touch()
        (code_a, out_a, err_a), (code_b, out_b, err_b) = self.finish(a, b)
        self.assertEqual((code_a, code_b), (0, 0), err_a + err_b)
        self.assertEqual([out_a, out_b], [f"started {rank} of 2 in 0\nstarted {rank} of 2 in 1\n" for rank in (0, 1)])

    def test_a_machine_that_was_dropped_is_told_why(self):
        conf = self.token + ",keep_alive_interval=0.2,keep_alive_max_attempt=3"
        flags = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", conf]
        a = self.on("a", *flags, "--node-rank", 0, "sh", "-c", LOOP)
        b = self.on("b", *flags, "--node-rank", 1, "sh", "-c", LOOP)
        self.wait_for_file("up0.2")
        self.wait_for_file("up1.2")
        (lockrun,) = self.called("lockrun", self.processes_of("b"))
        os.kill(lockrun, signal.SIGSTOP)
        ((code, _, err),) = self.finish(a)
        self.assertEqual(code, 1, err)
        self.assertIn("the machine b (10.77.0.2, rank 1) was lost: no heartbeat for ", err)
        os.kill(lockrun, signal.SIGCONT)
        b.send_signal(signal.SIGCONT)  # nsenter stops with its child
        ((code, _, err),) = self.finish(b)
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"dropped from the job by the rendezvous at 10\.77\.0\.1:29500: no heartbeat for 0\.[6-9] s")
        self.assertNotIn("has ended", err)

    def test_a_rank_that_asks_to_be_resumed_ends_all_with_its_code(self):
        flags = ["--nnodes", 2, "--master-addr", "10.77.0.1", "--rdzv-conf", self.token, "--max-restarts", 2]
        a = self.on("a", *flags, "--node-rank", 0, "sh", "-c", LOOP)
        b = self.on("b", *flags, "--node-rank", 1, "sh", "-c", "while [ ! -e up0.2 ]; do sleep 0.02; done; exit 75")
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(a, b)
        self.assertEqual((code_a, code_b), (75, 75), err_a + err_b)
        self.assertIn("a rank on b asked to be resumed later", err_a)
        self.assertNotIn("failed", err_a + err_b)


class SuccessionTest(OnHosts):
    """The machine that serves the rendezvous is lost."""

    def elastic(self, host, nnodes, *flags):
        conf = self.token + ",keep_alive_interval=0.5,keep_alive_max_attempt=6"
        return self.on(host, "--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400", "--rdzv-conf", conf,
                       "--max-restarts", 1, *flags, "sh", "-c", LOOP)

    def wait_for_ranks(self, count):
        for rank in range(count):
            self.wait_for_file(f"up{rank}.{count}")
            (self.directory / f"up{rank}.{count}").unlink()

    def hosts(self, kind):
        self.two = kind()
        self.addCleanup(self.two.stop)

    def release(self, *processes):
        (self.directory / "release").touch()
        results = self.finish(*processes)
        self.assertEqual([code for code, _, _ in results], [0] * len(processes), results)
        return [out.replace("started ", "").splitlines() for _, out, _ in results], [err for _, _, err in results]

    def test_another_one_serves_and_the_endpoint_does_again(self):
        self.hosts(TwoHosts)
        a = self.elastic("a", "1:2")
        b = self.elastic("b", "1:2")
        self.wait_for_ranks(2)
        for pid in self.called("lockrun", self.processes_of("a")):
            os.kill(pid, signal.SIGKILL)
        a.communicate()
        self.wait_for_ranks(1)
        again = self.elastic("a", "1:2")  # it knows the endpoint only
        self.wait_for_ranks(2)
        (out_b, out_again), (err_b, _) = self.release(b, again)
        self.assertEqual((out_b[1], len(out_b)), ("0 of 1 in 1", 3))
        self.assertEqual(sorted([out_b[2], *out_again]), ["0 of 2 in 1", "1 of 2 in 1"])
        self.assertIn("the rendezvous is served here now, at 10.77.0.2:29400", err_b)
        self.assertIn("the one at 10.77.0.1:29400 answers again", err_b)
        self.assertRegex(err_b, r"2 restarts:\n")

    def test_the_one_that_serves_leaves(self):
        self.hosts(TwoHosts)
        a = self.elastic("a", "1:2")
        b = self.elastic("b", "1:2")
        self.wait_for_ranks(2)
        for pid in self.called("lockrun", self.processes_of("a")):
            os.kill(pid, signal.SIGTERM)
        ((code, _, err),) = self.finish(a)
        self.assertEqual(code, 128 + signal.SIGTERM, err)
        self.wait_for_ranks(1)
        ((out_b,), (err_b,)) = self.release(b)
        self.assertEqual(out_b[1:], ["0 of 1 in 0"])
        self.assertIn("a, which serves it, leaves the job", err_b)

    def test_only_the_larger_part_of_a_cut_network_goes_on(self):
        self.hosts(ThreeHosts)
        machines = [self.elastic(host, "1:3") for host in "abc"]
        self.wait_for_ranks(3)
        self.two.cut_the_cable_of("a")
        self.wait_for_ranks(2)
        self.assertEqual(list(self.directory.glob("up0.1")), [])
        self.two.mend_the_cable_of("a")
        self.wait_for_ranks(3)
        (out_a, out_b, out_c), (err_a, *_) = self.release(*machines)
        self.assertEqual([len(out_a), len(out_b), len(out_c)], [2, 3, 3])
        self.assertEqual(sorted([out_b[1], out_c[1]]), ["0 of 2 in 1", "1 of 2 in 1"])
        self.assertEqual(sorted([out_a[1], out_b[2], out_c[2]]), ["0 of 3 in 1", "1 of 3 in 1", "2 of 3 in 1"])


class AgentsTest(NodesTest):
    """Several lockruns on this machine, with shell scripts as ranks."""

    def setUp(self):
        super().setUp()
        self.port = free_port()

    def static(self, node_rank, script, *flags, nnodes=2, conf=None):
        return self.start("--nnodes", nnodes, "--node-rank", node_rank, "--master-port", self.port, "--rdzv-conf",
                          conf or self.token, *flags, "sh", "-c", script)

    def elastic(self, nnodes, script, *flags):
        conf = self.token + ",last_call_timeout=0.5,keep_alive_interval=0.2"
        return self.start("--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                          "--rdzv-conf", conf, *flags, "sh", "-c", script)

    def test_ranks_are_numbered_over_machines(self):
        script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE"
        first = self.static(0, script, "--nproc-per-node", 1)
        second = self.static(1, script, "--nproc-per-node", 2, "--prefix", "off")
        (code_a, out_a, err_a), (code_b, out_b, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (0, 0), err_a + err_b)
        self.assertEqual((out_a, sorted(out_b.splitlines())), ("0 0 3 1 0 2\n", ["1 0 3 2 1 2", "2 1 3 2 1 2"]))

    def test_the_first_failure_ends_all_with_its_code(self):
        first = self.static(0, LOOP)
        second = self.static(1, "while [ ! -e up0.2 ]; do sleep 0.02; done; exit 7")
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (7, 7), err_a + err_b)
        self.assertRegex(err_a, r"the job has failed: rank 1 on \S+ ended with exit code 7\n")
        self.assertIn("rank 1 failed: it ended with exit code 7", err_b)

    def test_a_failure_restarts_all(self):
        script = ("echo attempt $TORCHELASTIC_RESTART_COUNT; touch said$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit;"
                  "[ $RANK = 0 ] && exec sleep 60; while [ ! -e said0 ]; do sleep 0.02; done; exit 5")
        results = self.finish(*[self.static(rank, script, "--max-restarts", 1) for rank in range(2)])
        for code, out, err in results:
            self.assertEqual((code, out), (0, "attempt 0\nattempt 1\n"), err)
            self.assertRegex(err, r"1 restart:\n  after \d+\.\d s: rank 1 on \S+ ended with exit code 5 \(restart 1 of 1\)")

    def test_a_machine_whose_connection_was_cut_comes_back(self):
        # The side that serves does not notice: it is told by the machine that comes on another connection.
        first = self.static(0, LOOP, "--max-restarts", 1)
        self.assertTrue(wait_until(lambda: self.listens()))
        proxy = Proxy(self.port)
        self.addCleanup(proxy.close)
        self.port = proxy.port
        second = self.static(1, LOOP, "--max-restarts", 1)
        for name in ("up0.2", "up1.2"):
            self.wait_for_file(name)
            (self.directory / name).unlink()
        proxy.cut_the_clients_side()
        for name in ("up0.2", "up1.2"):
            self.wait_for_file(name)
        (self.directory / "release").touch()
        (code_a, _, err_a), (code_b, out_b, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (0, 0), err_a + err_b)
        self.assertEqual(out_b, "started 1 of 2 in 0\nstarted 1 of 2 in 1\n")
        self.assertIn("rank 1) was lost: its connection was cut (restart 1 of 1)", err_a)
        self.assertIn("was lost: the connection to it was closed", err_b)

    def test_an_error_on_one_machine_is_the_reason_on_all(self):
        bad = self.directory / "bad"
        bad.write_bytes(b"\0no program")
        bad.chmod(0o755)
        first = self.static(0, LOOP)
        second = self.start("--nnodes", 2, "--node-rank", 1, "--master-port", self.port, "--rdzv-conf", self.token, bad)
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        self.assertIn(f"lockrun: on {socket.gethostname()}: cannot execute {bad}: Exec format error", err_a)

    def test_a_lockrun_that_cannot_go_on_says_why_to_all(self):
        # The second attempt finds a file where its logs are to be.
        script = "[ $RANK = 0 ] && exec sleep 60; rm -r logs/*; touch logs/file; rm -r logs; touch logs; exit 5"
        first = self.static(0, script, "--max-restarts", 1)
        second = self.static(1, script, "--max-restarts", 1, "--log-dir", "logs", "--redirects", "3")
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        self.assertRegex(err_a, rf"the job has failed: on {socket.gethostname()}: .*logs")
        self.assertNotIn("was lost", err_a)

    def test_a_hang_on_one_machine_ends_all(self):
        ends = ["--hang-timeout", "0.5", "--hang-action", "end", "--shutdown-timeout", 600]
        # They do not end when they are asked to: the other machine learns of it before.
        first = self.static(0, f"trap '' TERM; exec {LATE_RANK} 600", *ends, "--nproc-per-node", 2)
        second = self.static(1, "trap 'touch told; exit' TERM; while :; do sleep 0.02; done", *ends)
        self.wait_for_file("told")
        for pid in self.called("late_rank", self.processes()):
            os.kill(pid, signal.SIGKILL)
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        what = (r"no collective was started for \d s: rank 0 waits in the 3rd operation \(barrier of 0 bytes\) for rank 1, "
                r"which has started 2 \(the last: barrier of 0 bytes\)")
        self.assertRegex(err_a, "warning: " + what + r"; ending the job \(--hang-action end\)")
        self.assertRegex(err_b, rf"lockrun: on {socket.gethostname()}: {what}; ending the ranks here\n")
        self.assertRegex(err_a, f"the job has failed: on {socket.gethostname()}: {what}\n")

    def test_machines_join_and_leave(self):
        first = self.elastic("1:2", LOOP)
        self.wait_for_file("up0.1")
        second = self.elastic("1:2", LOOP)
        self.wait_for_file("up0.2")
        self.wait_for_file("up1.2")
        (self.directory / "up0.1").unlink()
        second.terminate()
        self.wait_for_file("up0.1")
        (self.directory / "release").touch()
        (code_a, out, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (0, 128 + signal.SIGTERM), err_a + err_b)
        self.assertRegex(out, r"(?s)0 of 1 in 0\n.*0 of 2 in 0\n.*0 of 1 in 0\n")
        self.assertRegex(err_a, r"joins the job\n(.*\n)*.*leaves the job")

    def test_a_killed_machine_is_replaced_by_another(self):
        first = self.elastic("2:2", LOOP, "--max-restarts", 1)
        second = self.elastic("2:2", LOOP, "--max-restarts", 1)
        self.wait_for_file("up0.2")
        self.wait_for_file("up1.2")
        # The one that serves must live on: it has the server as a child.
        (server,) = self.called("lockrun-rdzv", self.processes())
        parent = int(pathlib.Path(f"/proc/{server}/stat").read_text().rsplit(")", 1)[1].split()[1])
        victim, survivor = (second, first) if parent == first.pid else (first, second)
        victim.kill()
        victim.communicate()
        third = self.elastic("2:2", "echo third $RANK in $TORCHELASTIC_RESTART_COUNT; touch release", "--max-restarts", 1)
        (code_a, _, err_a), (code_b, out_b, err_b) = self.finish(survivor, third)
        self.assertEqual((code_a, code_b), (0, 0), err_a + err_b)
        self.assertEqual(out_b, "third 1 in 1\n")
        self.assertRegex(err_a, r"the machine \S+ \(127\.0\.0\.1, rank \d\) was lost: its connection was closed")

    def test_an_unreachable_endpoint_is_told_within_3_seconds(self):
        started = time.monotonic()
        process = self.start("--nnodes", 2, "--node-rank", 1, "--master-port", self.port, "--rdzv-conf",
                             self.token + ",join_timeout=4", "true")
        line = process.stderr.readline()
        self.assertLess(time.monotonic() - started, 3)
        self.assertRegex(line, rf"lockrun: cannot reach the rendezvous at 127.0.0.1:{self.port} \(127.0.0.1\): Connection refused; "
                               r"check that lockrun runs there with --node-rank 0 and that no firewall is in between; trying for another \d s")
        self.assertEqual(process.wait(TIMEOUT), 1)
        self.assertIn("gave up after 4 s", process.stderr.read())
        process = self.start("--nnodes", 2, "--node-rank", 1, "--master-addr", "no-such-host.invalid", "--rdzv-conf", self.token, "true")
        self.assertIn("cannot find the address of no-such-host.invalid", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(TIMEOUT), 128 + signal.SIGINT)

    def test_machines_that_start_together_meet_at_once(self):
        quickest = TIMEOUT
        for _ in range(5):
            port = free_port()
            early = self.start("--nnodes", 2, "--node-rank", 1, "--master-port", port, "--rdzv-conf", self.token, "true")
            time.sleep(0.15)  # it has found nobody
            with socket.create_server(("127.0.0.1", port)) as late:
                late.settimeout(TIMEOUT)
                listening = time.monotonic()
                late.accept()[0].close()
                quickest = min(quickest, time.monotonic() - listening)
            early.kill()
            early.communicate()
        self.assertLess(quickest, 0.05)

    def test_too_few_machines(self):
        code, _, err = self.run_lockrun("--nnodes", 2, "--master-port", self.port, "--rdzv-conf", self.token + ",join_timeout=1", "true")
        self.assertEqual(code, 1)
        self.assertRegex(err, r"too few machines came within 1 s: 1 of 2 here \(\S+\)\n")

    def test_another_secret_is_refused_and_logged(self):
        first = self.static(0, "true")
        other = self.directory / "other"
        other.write_text("x" * 32)
        other.chmod(0o600)
        (code, _, err), = self.finish(self.static(1, "true", conf=f"token_file={other}"))
        self.assertEqual(code, 1)
        self.assertIn("its secret is another one; use the same token_file on all machines", err)
        (code, _, err), (code_b, _, _) = self.finish(first, self.static(1, "true"))
        self.assertEqual((code, code_b), (0, 0), err)
        self.assertIn("refused 127.0.0.1: it does not know the secret in token_file", err)

    def test_secrets_must_be_secret(self):
        loose = self.directory / "loose"
        loose.write_text("x" * 32)
        loose.chmod(0o644)
        self.assertIn("others may read it", self.finish(self.static(1, "true", conf=f"token_file={loose}"))[0][2])
        loose.write_text("short")
        loose.chmod(0o600)
        self.assertIn("at least 16 bytes", self.finish(self.static(1, "true", conf=f"token_file={loose}"))[0][2])
        self.assertIn("no secret is set", self.finish(self.static(1, "true", conf="join_timeout=0"))[0][2])

    def test_different_flags_are_refused(self):
        first = self.static(0, "true")
        self.assertIn("refused by the rendezvous", self.finish(self.static(1, "true", nnodes=3))[0][2])
        self.assertIn("is for --rdzv-id none, not x", self.finish(self.static(1, "true", "--rdzv-id", "x"))[0][2])
        self.assertEqual([code for code, _, _ in self.finish(first, self.static(1, "true"))], [0, 0])

    def test_torchruns_side_is_told(self):
        from torch.distributed import TCPStore
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.port = store.port
        (code, _, err), = self.finish(self.static(1, "true"))
        self.assertEqual(code, 1)
        self.assertIn("is no rendezvous of lockrun (torchrun's agents cannot be joined", err)

    def test_strangers_neither_crash_nor_block_it(self):
        first = self.static(0, "true")
        self.assertTrue(wait_until(lambda: self.listens()))
        randomness = random.Random(5)
        idle = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(20)]  # they say nothing at all
        sent = 0
        while sent < 100_000:
            with socket.create_connection(("127.0.0.1", self.port)) as stranger:
                start = b"" if randomness.random() < 0.3 else b"LOCKRUN1" + randomness.randbytes(16)
                messages = [randomness.randbytes(4)[randomness.randrange(4):] + randomness.randbytes(randomness.randrange(60)) for _ in range(500)]
                try:
                    stranger.sendall(start)
                    for message in messages:
                        stranger.sendall(message)
                except OSError:  # thrown out
                    pass
                sent += len(messages)
        (code, _, err), (code_b, _, err_b) = self.finish(first, self.static(1, "true"))
        for connection in idle:
            connection.close()
        self.assertEqual((code, code_b), (0, 0), err + err_b)
        self.assertIn("is no lockrun agent", err)
        self.assertLess(len(err.splitlines()), 40, "strangers fill the log")

    def test_strangers_hold_no_places(self):
        first = self.static(0, "true")
        self.assertTrue(wait_until(lambda: self.listens()))
        idle = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(300)]
        (code, _, err), (code_b, _, err_b) = self.finish(first, self.static(1, "true"))
        for connection in idle:
            connection.close()
        self.assertEqual((code, code_b), (0, 0), err + err_b)
        self.assertIn("refused 127.0.0.1: it did not introduce itself while others wait", err)

    def test_a_suspended_machine_is_not_lost(self):
        conf = self.token + ",keep_alive_interval=0.1,keep_alive_max_attempt=2"
        first = self.static(0, LOOP, conf=conf)
        second = self.static(1, LOOP, conf=conf)
        self.wait_for_file("up0.2")
        self.wait_for_file("up1.2")
        for process in (second, first):  # the one that serves, too
            process.send_signal(signal.SIGTSTP)
            self.assertTrue(wait_until(lambda: pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"))
            time.sleep(1)
            process.send_signal(signal.SIGCONT)
        (self.directory / "release").touch()
        (code, _, err), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code, code_b), (0, 0), err + err_b)
        self.assertNotIn("no heartbeat", err + err_b)

    def test_the_address_for_the_others_can_be_chosen(self):
        code, _, err = self.run_lockrun("--nnodes", 2, "--master-port", self.port, "--local-addr", "192.0.2.1", "--rdzv-conf",
                                        self.token + ",join_timeout=1", "true")
        self.assertEqual((code, err), (1, "lockrun: error: --local-addr 192.0.2.1: this machine has no such address\n"))
        first = self.static(0, "echo $MASTER_ADDR", "--local-addr", "127.0.0.1")
        (code, out, err), (code_b, _, err_b) = self.finish(first, self.static(1, "true"))
        self.assertEqual((code, code_b, out), (0, 0, "127.0.0.1\n"), err + err_b)

    def test_messages_that_make_no_sense_are_survived(self):
        # Without a secret a stranger's frames are read: whole ones, well signed, with anything but a join of this job in them.
        first = self.static(0, "true", conf="join_timeout=60")
        self.assertTrue(wait_until(lambda: self.listens()))
        randomness = random.Random(11)
        values = [None, True, -1, 1e300, "", "x", [1], {}, "2", 2**70]
        keys = ["run_id", "host", "address", "store_port", "nproc", "min", "max", "node_rank", "what", "code"]
        key = hashlib.sha256(b"lockrun rendezvous\n").digest()
        sent = 0
        while sent < 20_000:
            with socket.create_connection(("127.0.0.1", self.port)) as stranger:
                ours = b"LOCKRUN1" + randomness.randbytes(16)
                try:
                    stranger.sendall(ours)
                    theirs = stranger.recv(24, socket.MSG_WAITALL)
                    for number in range(100):
                        message = {randomness.choice(keys): randomness.choice(values) for _ in range(4)}
                        message["type"] = randomness.choice(["join", "beat", "failed", "succeeded", "leave", 5, None])
                        message["run_id"] = "another"
                        body = randomness.choice([json.dumps(message).encode(), randomness.randbytes(40), b"[" * 2000])
                        code = hmac.digest(key, b"c" + number.to_bytes(8, "big") + ours + theirs + body, "sha256")
                        stranger.sendall(len(body).to_bytes(4, "big") + code + body)
                        sent += 1
                except OSError:  # thrown out
                    pass
        (code, _, err), (code_b, _, err_b) = self.finish(first, self.static(1, "true", conf="join_timeout=60"))
        self.assertEqual((code, code_b), (0, 0), err + err_b)
        self.assertIn("sent a message that makes no sense", err)

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        except OSError:
            return False

    def test_slurm_needs_no_flags(self):
        agents = []
        for node in range(2):
            self.environment.update(SLURM_STEP_ID="1", SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_NUM_NODES="2",
                                    SLURM_STEP_NUM_TASKS="2", SLURM_NODEID=str(node), SLURM_STEP_NODELIST="localhost,x")
            agents.append(self.start("sh", "-c", "echo $RANK of $WORLD_SIZE"))
        results = self.finish(*agents)
        self.assertEqual([(code, out) for code, out, _ in results], [(0, "0 of 2\n"), (0, "1 of 2\n")], results)

    def pods(self, variables):
        """Output of the ranks of two pods, each a lockrun without flags. `variables`: a pod's, by its number."""
        agents = []
        for pod in range(2):
            self.environment.update({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "PYTHONUNBUFFERED": "1"})
            self.environment.update({name: str(value) for name, value in variables(pod).items()})
            agents.append(self.start("--prefix", "off", "sh", "-c", "echo $RANK of $WORLD_SIZE in $GROUP_RANK"))
        results = self.finish(*agents)
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        return [sorted(out.splitlines()) for _, out, _ in results]

    # What Kubeflow's operator sets in the pods of a PyTorchJob: newer ones, older ones, and with an elasticPolicy.
    def test_pytorch_job(self):
        outs = self.pods(lambda pod: {"MASTER_ADDR": "localhost", "MASTER_PORT": self.port, "PET_MASTER_ADDR": "localhost",
                                      "PET_MASTER_PORT": self.port, "WORLD_SIZE": 4, "RANK": pod, "PET_NODE_RANK": pod,
                                      "PET_NNODES": 2, "PET_NPROC_PER_NODE": 2})
        self.assertEqual(outs, [["0 of 4 in 0", "1 of 4 in 0"], ["2 of 4 in 1", "3 of 4 in 1"]])

    def test_older_pytorch_job(self):
        outs = self.pods(lambda pod: {"MASTER_ADDR": "localhost", "MASTER_PORT": self.port, "WORLD_SIZE": 2, "RANK": pod})
        self.assertEqual(outs, [["0 of 2 in 0"], ["1 of 2 in 1"]])

    def test_elastic_pytorch_job(self):
        outs = self.pods(lambda pod: {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": f"localhost:{self.port}", "PET_RDZV_ID": "job",
                                      "PET_NNODES": "1:2", "PET_MAX_RESTARTS": 3, "PET_NPROC_PER_NODE": 1})
        self.assertEqual(sorted(outs), [["0 of 2 in 0"], ["1 of 2 in 1"]])


if __name__ == "__main__":
    become_root()
    unittest.main()
