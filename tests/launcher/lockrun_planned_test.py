"""Planned changes lose nothing: machines join and leave, and the ranks save first. Spare machines wait until they are needed."""

import pathlib
import re
import signal
import unittest

from lockrun_support import wait_until
from nodes_support import LOOP, PATIENT, AgentsTest

# Ranks that count steps until there is a file `release`. Asked to stop, each saves where it is and exits with 75; a new one
# goes on from the last that was saved. A SIGTERM after a failure (SI_QUEUE) ends it at once.
COUNTS = """
import os, pathlib, signal, time
rank, size, node = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "GROUP_RANK"))
saved = pathlib.Path("step")
step = int(saved.read_text()) if saved.exists() else 0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print(f"rank {rank} of {size} from {step}", flush=True)
pathlib.Path(f"up{rank}.{size}").touch()
if os.environ.get("ENDS_AT_ONCE") == rank:
    raise SystemExit
while not pathlib.Path("release").exists():
    step += 1
    asked = signal.sigtimedwait([signal.SIGTERM], 0.02)
    if asked and asked.si_code == -1:
        raise SystemExit("a failure")
    if asked:
        time.sleep(float(os.environ.get("SAVING", "0")))
        if rank == "0":
            saved.with_suffix(".new").write_text(str(step))
            saved.with_suffix(".new").rename(saved)
        print(f"rank {rank} saved {step}", flush=True)
        raise SystemExit(75)
"""


class PlannedTest(AgentsTest):
    def setUp(self):
        super().setUp()
        (self.directory / "counts.py").write_text(COUNTS)

    def machine(self, nnodes, *flags, conf="", **options):
        conf = f"{self.token},last_call_timeout=0.5,{PATIENT}{conf}"
        return self.start(
            "--nnodes",
            nnodes,
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"127.0.0.1:{self.port}",
            "--rdzv-conf",
            conf,
            "--prefix",
            "off",
            *flags,
            "counts.py",
            **options,
        )

    def up(self, ranks):
        for rank in range(ranks):
            self.wait_for_file(f"up{rank}.{ranks}")
            (self.directory / f"up{rank}.{ranks}").unlink()

    def release(self, *processes):
        (self.directory / "release").touch()
        results = self.finish(*processes)
        self.assertEqual([code for code, _, _ in results], [0] * len(processes), results)
        return results

    def check_that_no_step_was_lost(self, output):
        """Each world begins where the one before has saved."""
        saved = 0
        for what, number in re.findall(r"rank 0 (?:of \d+ )?(from|saved) (\d+)", output):
            if what == "saved":
                saved = int(number)
            else:
                self.assertEqual(int(number), saved, output)
        return saved

    def test_machines_join_and_leave_and_no_step_is_lost(self):
        first = self.machine("1:2")
        self.up(1)
        second = self.machine("1:2", conf=",join_timeout=10")
        self.up(2)
        second.send_signal(signal.SIGTERM)
        ((code, out_b, err_b),) = self.finish(second)
        self.assertEqual(code, 75, err_b)
        self.assertIn("rank 1 saved", out_b)
        self.up(1)
        ((_, out, err),) = self.release(first)
        self.assertGreater(self.check_that_no_step_was_lost(out), 1)
        self.assertEqual(len(re.findall(" of . from", out)), 3, out)
        self.assertRegex(err, r"joins the job; the ranks here have 30 s to save and end\n(.*\n)*.*leaves the job; the ranks here have")
        self.assertNotIn("fail", err)

    def test_the_newcomer_waits_while_the_others_save(self):
        self.environment["SAVING"] = "6"
        first = self.machine("1:2")
        self.up(1)
        second = self.machine("1:2", conf=",join_timeout=4")
        self.up(2)
        self.release(first, second)

    def test_a_numbered_machine_that_is_told_to_leave_ends_the_job_with_75(self):
        machines = [
            self.start("--nnodes", 2, "--node-rank", rank, "--master-port", self.port, "--rdzv-conf", self.token, "--max-restarts", 3, "counts.py")
            for rank in range(2)
        ]
        self.up(2)
        machines[1].send_signal(signal.SIGTERM)
        for rank, (code, out, err) in enumerate(self.finish(*machines)):
            self.assertEqual(code, 75, err)
            self.assertIn(f"rank {rank} saved", out)

    def wait_until_its_ranks_have_ended(self, process):
        self.assertTrue(wait_until(lambda: not self.has_ranks(process)))

    def test_the_others_save_though_the_ranks_of_the_one_that_leaves_have_ended(self):
        self.environment["ENDS_AT_ONCE"] = "1"
        machines = [
            self.start("--nnodes", 2, "--node-rank", rank, "--master-port", self.port, "--rdzv-conf", self.token, "counts.py") for rank in range(2)
        ]
        self.up(2)
        self.wait_until_its_ranks_have_ended(machines[1])
        machines[1].send_signal(signal.SIGTERM)
        results = self.finish(*machines)
        self.assertEqual([code for code, _, _ in results], [75, 75], results)
        self.assertIn("rank 0 saved", results[0][1])

    def test_the_others_go_on_though_the_ranks_of_the_one_that_leaves_have_ended(self):
        self.environment["ENDS_AT_ONCE"] = "1"
        first = self.machine("1:2")
        self.up(1)
        second = self.machine("1:2")
        self.up(2)
        self.wait_until_its_ranks_have_ended(second)
        second.send_signal(signal.SIGTERM)
        ((code, _, err),) = self.finish(second)
        self.assertEqual(code, 143, err)  # they do not use Lockstep, so nobody knows whether there is something to resume
        self.up(1)
        ((_, out, _),) = self.release(first)
        self.assertGreater(self.check_that_no_step_was_lost(out), 1)

    def test_too_few_machines_are_left(self):
        machines = [self.machine("2:3") for _ in range(2)]
        self.up(2)
        machines[0].send_signal(signal.SIGTERM)
        for code, out, err in self.finish(*machines):
            self.assertEqual(code, 75, err)
            self.assertIn("saved", out)

    def test_ranks_that_do_not_save_give_the_signals_code(self):
        machines = [self.static(rank, LOOP) for rank in range(2)]
        for rank in range(2):
            self.wait_for_file(f"up{rank}.2")
        machines[0].send_signal(signal.SIGTERM)
        self.assertEqual([code for code, _, _ in self.finish(*machines)], [143, 143])

    def test_ranks_that_refuse_their_command_line_are_not_started_again(self):
        # Both refuse at once: the first one's end does not stop the other one before it has refused, too.
        refuse = "trap '' TERM; touch here$RANK; until [ -e here0 ] && [ -e here1 ]; do sleep 0.01; done; echo bad flag; exit 2"
        machines = [self.static(rank, refuse, "--max-restarts", 3) for rank in range(2)]
        for code, out, err in self.finish(*machines):
            self.assertEqual((code, out), (2, "bad flag\n"), err)
            self.assertIn("they are not started again", err)

    def test_ranks_that_refuse_end_the_job_though_others_are_ended_before_they_do(self):
        # The first one's end stops the other one, which has not looked at its command line yet.
        refuse = "touch here$RANK; until [ -e here0 ] && [ -e here1 ]; do sleep 0.01; done; [ $RANK = 0 ] && exec sleep 60; exit 2"
        machines = [self.static(rank, refuse, "--max-restarts", 3) for rank in range(2)]
        for code, _, err in self.finish(*machines):
            self.assertEqual(code, 2, err)
            self.assertIn("they are not started again", err)

    def test_exit_code_2_on_one_machine_is_a_failure_where_the_other_has_ended_well(self):
        refuse = (
            "[ $RANK = 0 ] && { echo $$ >pid; mv pid done; exit 0; };"
            "until [ -e done ] && ! kill -0 $(cat done) 2>/dev/null; do sleep 0.01; done; exit 2"
        )
        machines = [self.static(rank, refuse, "--max-restarts", 1) for rank in range(2)]
        for code, _, err in self.finish(*machines):
            self.assertEqual(code, 2, err)
            self.assertIn("(restart 1 of 1)", err)

    def test_machines_that_start_different_programs_are_told_so(self):
        first = self.static(0, "echo one", "--prefix", "auto")
        second = self.static(1, "echo two", "--prefix", "auto")
        for (code, out, err), rank in zip(self.finish(first, second), range(2)):
            self.assertEqual((code, out), (0, f"[rank {rank}]: {('one', 'two')[rank]}\n"), err)
            self.assertRegex(
                err,
                r"start different programs: \S+ starts `sh -c echo one`, and \S+ starts `sh -c echo two`; if .*"
                "--rdzv-id",
            )

    def test_ranks_that_do_not_end_are_killed(self):
        self.environment["SAVING"] = "60"
        first = self.machine("1:2", "--shutdown-timeout", 1)
        self.up(1)
        second = self.machine("1:2", "--shutdown-timeout", 1)
        self.up(2)
        _, (_, _, err) = self.release(second, first)
        self.assertIn("not ended within 1 s, so killed: rank 0", err)

    def test_a_spare_takes_the_place_of_a_machine_that_leaves_and_of_one_that_is_lost(self):
        members = [self.machine("2", "--max-restarts", 1) for _ in range(2)]
        self.up(2)
        spares = [self.start_spare(number) for number in range(3)]
        # The one that serves must live on: it has the server as a child.
        (server,) = self.called("lockrun-rdzv", self.processes())
        with open(f"/proc/{server}/stat") as stat:
            parent = int(stat.read().rsplit(")", 1)[1].split()[1])
        members.sort(key=lambda process: process.pid != parent)
        for number in range(3):
            self.assertTrue(wait_until(lambda: "waits as a spare" in self.said_by_spare(number)), self.said_by_spare(number))
        members[1].send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(members.pop(1))[0][0], 75)
        self.up(2)
        (self.directory / "step").unlink()
        lost = next(process for process in spares if self.has_ranks(process))
        spares.remove(lost)
        lost.kill()
        lost.communicate()
        self.up(2)
        results = self.release(members[0], *spares)
        self.assertIn("was lost", results[0][2])

    def start_spare(self, number):
        with open(self.directory / f"spare{number}", "w") as said:
            return self.machine("2", "--max-restarts", 1, conf=",join_timeout=3", stderr=said)

    def said_by_spare(self, number):
        return (self.directory / f"spare{number}").read_text()

    def has_ranks(self, process):
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return bool(self.called("lockrun-guard", children))


if __name__ == "__main__":
    unittest.main()
