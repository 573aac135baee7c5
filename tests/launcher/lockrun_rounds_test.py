"""Rounds of a job on several machines: its ranks' numbers, how it ends on all of them, machines that come and go."""

import os
import pathlib
import resource
import signal
import socket
import sys
import threading
import time
import unittest

from lockrun_support import wait_until
from nodes_support import LOOP, AgentsTest


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


class RoundsTest(AgentsTest):
    def test_an_empty_id_is_one_for_all_machines(self):
        # As of --rdzv-id=$JOB with no JOB.
        jobs = [self.static(machine, "echo $TORCHELASTIC_RUN_ID", "--rdzv-id=") for machine in range(2)]
        self.assertEqual([(code, out) for code, out, _ in self.finish(*jobs)], [(0, "none\n")] * 2)

    def test_what_lockrun_fails_of_where_it_serves_is_told(self):
        first = self.static(0, "true")
        self.assertIn("waiting", first.stderr.readline())
        # It has the descriptors that it needs to wait, and none for ranks.
        resource.prlimit(first.pid, resource.RLIMIT_NOFILE, (3, 3))
        second = self.static(1, "true")
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        self.assertRegex(err_b, rf"lockrun: on {socket.gethostname()}: .*Too many open files")

    def test_ranks_elsewhere_have_time_to_save_when_one_asks_to_be_resumed(self):
        (self.directory / "waits.py").write_text(
            "import pathlib, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\npathlib.Path('up').touch()\n"
            "print('si_code', signal.sigwaitinfo([signal.SIGTERM]).si_code)\n"
        )
        later = "while [ ! -e up ]; do sleep 0.02; done; exit 75"
        (code, out, err), (code_b, _, err_b) = self.finish(self.static(0, f"exec {sys.executable} waits.py"), self.static(1, later))
        self.assertEqual((code, code_b), (75, 75), err + err_b)
        self.assertEqual(out, "si_code 0\n", "SI_QUEUE (-1) is for a failed peer, and kills at once")

    def test_a_rank_that_fails_to_save_is_a_failure(self):
        saves = "trap 'exit 4' TERM; touch up; while :; do sleep 0.02; done"
        later = "while [ ! -e up ]; do sleep 0.02; done; exit 75"
        (code, _, err), _ = self.finish(self.static(0, saves), self.static(1, later))
        self.assertEqual(code, 4, err)

    def test_a_restart_may_wait_longer_than_machines_do(self):
        script = "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 0 ] || exit 5; exec sleep 60"
        conf = self.token + ",join_timeout=3"
        for code, _, err in self.finish(*[self.static(rank, script, "--max-restarts", 2, "--restart-delay", 5, conf=conf) for rank in range(2)]):
            self.assertEqual(code, 0, err)

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
        # Each tells it once while it happens; the report comes last, where the rank was.
        self.assertRegex(err_a, r"lockrun: rank 1 on \S+ ended with exit code 7; ending the ranks here\nlockrun: the job has failed\n\Z")
        self.assertRegex(
            err_b,
            r"lockrun: rank 1 ended with exit code 7; ending the other ranks\nlockrun: the job has failed\n"
            r"lockrun: rank 1 failed: it ended with exit code 7 .*\n  it wrote nothing to standard error\n\Z",
        )

    def test_a_failure_restarts_all(self):
        script = (
            "echo attempt $TORCHELASTIC_RESTART_COUNT; touch said$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit;"
            "[ $RANK = 0 ] && exec sleep 60; while [ ! -e said0 ]; do sleep 0.02; done; exit 5"
        )
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

    def up(self):
        """Until both ranks have started."""
        for name in ("up0.2", "up1.2"):
            self.wait_for_file(name)
            (self.directory / name).unlink()

    def lose(self, first, *flags):
        """The first machine, which serves, dies; a new one comes in its place. Returns it."""
        first.kill()
        first.communicate()
        again = self.static(0, LOOP, *flags)
        self.up()
        return again

    def test_each_loss_of_the_first_machine_counts_until_no_restart_is_left(self):
        flags = ("--max-restarts", 2)
        first, second = [self.static(rank, LOOP, *flags) for rank in range(2)]
        self.up()
        for _ in range(2):
            first = self.lose(first, *flags)
        first.kill()
        self.assertEqual(first.communicate()[0], "started 0 of 2 in 2\n")
        ((code, out, err),) = self.finish(second)
        self.assertEqual((code, out), (1, "".join(f"started 1 of 2 in {restarts}\n" for restarts in range(3))), err)
        self.assertRegex(err, rf"lockrun: error: the rendezvous at 127\.0\.0\.1:{self.port} was lost: .*; all 2 restarts are used\n")

    def test_a_first_machine_in_place_of_a_lost_one_goes_on_counting(self):
        flags = ("--max-restarts", 2)
        fails = LOOP.replace("do ", "do [ -e fail ] && rm fail && exit 5; ")
        first, second = self.static(0, LOOP, *flags), self.static(1, fails, *flags)
        self.up()
        first = self.lose(first, *flags)
        (self.directory / "fail").touch()  # the second restart, and the last one
        self.up()
        (self.directory / "fail").touch()
        (code_a, out_a, err_a), (code_b, out_b, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (5, 5), err_a + err_b)
        self.assertEqual(out_a, "started 0 of 2 in 1\nstarted 0 of 2 in 2\n")
        self.assertEqual(out_b, "".join(f"started 1 of 2 in {restarts}\n" for restarts in range(3)))
        self.assertIn("ended with exit code 5 (restart 2 of 2)", err_a)

    def test_with_no_restart_the_loss_of_the_first_machine_ends_the_job(self):
        first, second = [self.static(rank, LOOP) for rank in range(2)]
        self.up()
        first.kill()
        first.communicate()
        ((code, out, err),) = self.finish(second)
        self.assertEqual((code, out), (1, "started 1 of 2 in 0\n"), err)
        self.assertRegex(err, rf"lockrun: error: the rendezvous at 127\.0\.0\.1:{self.port} was lost: .* closed\n")

    def test_an_error_on_one_machine_is_the_reason_on_all(self):
        bad = self.directory / "bad"
        bad.write_bytes(b"\0no program")
        bad.chmod(0o755)
        first = self.static(0, LOOP)
        second = self.start("--nnodes", 2, "--node-rank", 1, "--master-port", self.port, "--rdzv-conf", self.token, bad)
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        self.assertIn(f"lockrun: on {socket.gethostname()}: cannot execute {bad}: Exec format error", err_a)

    def test_replacements_are_restarts_where_a_program_has_no_recovery(self):
        script = "[ $RANK.$TORCHELASTIC_RESTART_COUNT = 1.0 ] && kill -9 $$; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 60"
        machines = [self.static(rank, script, "--nproc-per-node", 2, "--max-restarts", 1, "--max-replacements", 3) for rank in (0, 1)]
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(*machines)
        self.assertEqual((code_a, code_b), (0, 0), err_a + err_b)
        told = "rank 1 was killed by SIGKILL and is not replaced: the program has not reached lockstep::Recovery"
        self.assertEqual((err_a + err_b).count(told), 1, err_a + err_b)
        self.assertIn("starting all ranks again", err_a + err_b)

    def test_a_lockrun_that_cannot_go_on_says_why_to_all(self):
        # The second attempt finds a file where its logs are to be.
        script = "[ $RANK = 0 ] && exec sleep 60; rm -r logs/*; touch logs/file; rm -r logs; touch logs; exit 5"
        first = self.static(0, script, "--max-restarts", 1)
        second = self.static(1, script, "--max-restarts", 1, "--log-dir", "logs", "--redirects", "3")
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (1, 1), err_a + err_b)
        self.assertRegex(err_a, rf"lockrun: (the job has failed: )?on {socket.gethostname()}: .*logs")
        self.assertNotIn("was lost", err_a)

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

    def test_a_program_that_ran_alone_goes_on_when_a_machine_joins(self):
        del self.environment["LOCKSTEP_BACKEND"]  # Nobody chooses.
        rank = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "growing_rank")
        first = self.elastic("1:2", f"exec {rank}")
        self.wait_for_file("up0.1")
        second = self.elastic("1:2", f"exec {rank}")
        self.wait_for_file("up0.2")
        self.wait_for_file("up1.2")
        (self.directory / "release").touch()
        (code_a, out_a, err_a), (code_b, out_b, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (0, 0), err_a + err_b)
        self.assertEqual(out_a, "rank 0 of 1 on lockstep\nrank 0 of 2 on lockstep\n")
        self.assertEqual(out_b, "rank 1 of 2 on lockstep\n")

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

    def test_a_suspended_machine_is_not_lost(self):
        conf = self.token + ",keep_alive_interval=0.5,keep_alive_max_attempt=6"
        first = self.static(0, LOOP, conf=conf)
        second = self.static(1, LOOP, conf=conf)
        self.wait_for_file("up0.2")
        self.wait_for_file("up1.2")
        for process in (second, first):  # the one that serves, too
            process.send_signal(signal.SIGTSTP)
            self.assertTrue(wait_until(lambda: pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"))
            time.sleep(4.5)  # more than six intervals
            process.send_signal(signal.SIGCONT)
        (self.directory / "release").touch()
        (code, _, err), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code, code_b), (0, 0), err + err_b)
        self.assertNotIn("no heartbeat", err + err_b)


if __name__ == "__main__":
    unittest.main()
