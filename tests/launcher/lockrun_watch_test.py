"""What lockrun notices while ranks run, and what it says in the end."""

import os
import resource
import select
import signal
import sys
import unittest

from lockrun_support import TIMEOUT, LockrunTest, wait_until

LATE_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "late_rank")
ALL_REDUCE_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "all_reduce_rank")
RECORDED = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "recorded_rank")

# As a tool that is killed while it reads the stacks of a process.
ATTACH_AND_DIE = """
import ctypes, os, pathlib, signal, sys
PTRACE_ATTACH = 16
if ctypes.CDLL(None).ptrace(PTRACE_ATTACH, int(sys.argv[2]), None, None) == 0:
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path("refused").touch()
"""


class HangTest(LockrunTest):
    def test_a_log_directory_that_is_gone_costs_no_job(self):
        process = self.start(
            "--nproc-per-node", 2, "--hang-timeout", "1", "--log-dir", "logs", "sh", "-c", f"[ $RANK = 1 ] && rm -r logs/*; exec {LATE_RANK} 600"
        )
        err = ""
        while "\nrank 1 (pid" not in err:
            self.assertTrue(line := process.stderr.readline(), err)
            err += line
        (self.directory / "go").touch()
        err += process.communicate(timeout=TIMEOUT)[1]
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("lockrun: warning: cannot create the log file", err)

    def test_the_rank_that_others_wait_for_is_named(self):
        process = self.start("--nproc-per-node", 2, "--hang-timeout", "1", LATE_RANK, "600")
        err = ""
        # On a busy machine the ranks may have waited for each other in init(), and been told of. The stacks take a tool its time.
        while "rank 1 (pid" not in err.partition("no collective was started for")[2]:
            self.assertTrue(line := process.stderr.readline(), err)
            err += line
        (self.directory / "go").touch()
        err += process.communicate(timeout=TIMEOUT)[1]
        self.assertEqual(process.returncode, 0, err)
        self.assertRegex(
            err,
            r"lockrun: warning: no collective was started for \d+ s: rank 0 waits in the 3rd operation "
            r"\(barrier of 0 bytes\) for rank 1, which has started 2 \(the last: barrier of 0 bytes\)\n",
        )
        self.assertIn("lockrun: where the ranks are:\nrank 0 (pid", err)
        self.assertRegex(err, r"  thread \d+ \(late_rank\): state S, in the kernel at \S+")

    def test_without_descriptors_there_are_no_stacks_and_the_job_goes_on(self):
        process = self.start("--nproc-per-node", 2, "--hang-timeout", "2", LATE_RANK, "600")
        self.assertTrue(wait_until(lambda: len(self.processes()) >= 4))
        # One is left, and a pipe needs two.
        taken = {int(number) for number in os.listdir(f"/proc/{process.pid}/fd")}
        limit = [number for number in range(len(taken) + 2) if number not in taken][1]
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        err = ""
        while "cannot look where the ranks are: " not in err:
            self.assertTrue(line := process.stderr.readline(), err)
            err += line
        self.assertIn("no collective was started for", err)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        (self.directory / "go").touch()
        err += process.communicate(timeout=TIMEOUT)[1]
        self.assertEqual(process.returncode, 0, err)

    def test_a_rank_that_has_not_called_init_is_named(self):
        code, _, err = self.run_lockrun(
            "--nproc-per-node", 2, "--hang-timeout", "1", "--hang-action", "end", "sh", "-c", f"[ $RANK = 1 ] && exec sleep 600; exec {LATE_RANK} 0"
        )
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"lockrun: warning: rank 0 waits in init\(\) for rank 1, which has not called it for \d+ s; ending")
        self.assertRegex(err, r"rank 1 \(pid \d+\)\n  thread \d+ \(sleep\): state S")

    def test_ranks_on_gloo_are_watched(self):
        self.check_that_a_late_rank_is_named(LOCKSTEP_BACKEND="gloo")

    def test_the_sleep_of_a_progress_thread_is_no_waiting(self):
        self.check_that_a_late_rank_is_named(LOCKSTEP_PROGRESS_THREAD="1")

    def check_that_a_late_rank_is_named(self, **environment):
        for name in "late", "release":
            (self.directory / name).touch()
        self.environment.update(environment)
        process = self.start("--nproc-per-node", 2, "--hang-timeout", "3", ALL_REDUCE_RANK)
        warning = next(line for line in process.stderr if "no collective" in line)
        self.assertRegex(
            warning,
            r"no collective was started for \d+ s: rank 0 waits in the 1st operation "
            r"\(all_reduce of 4000 bytes\) for rank 1, which has started none\n",
        )
        (self.directory / "late").unlink()
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[rank 0]: rank 0 of 2 sum 3", "[rank 1]: rank 1 of 2 sum 3"])

    def test_a_tool_that_dies_leaves_no_rank_stopped(self):
        tools = {"eu-stack": f"#!{sys.executable}\n{ATTACH_AND_DIE}", "gdb": "#!/bin/sh\n"}
        for name, text in tools.items():
            (self.directory / name).write_text(text)
            (self.directory / name).chmod(0o755)
        self.environment["PATH"] = f"{self.directory}:{os.environ['PATH']}"
        process = self.start("--nproc-per-node", 2, "--hang-timeout", "1", LATE_RANK, "600")
        err = ""
        while "\nrank 1 (pid" not in err:
            self.assertTrue(line := process.stderr.readline(), err)
            err += line
        if (self.directory / "refused").exists():
            process.kill()
            process.communicate()
            self.skipTest("no right to trace processes")
        (self.directory / "go").touch()
        err += process.communicate(timeout=TIMEOUT)[1]
        self.assertEqual(process.returncode, 0, err)
        self.assertNotIn("was stopped", err)

    def test_the_job_ends_only_if_asked(self):
        code, _, err = self.run_lockrun("--nproc-per-node", 2, "--hang-timeout", "1", "--hang-action", "end", "--log-dir", "logs", LATE_RANK, "600")
        self.assertEqual(code, 1, err)
        self.assertIn("ending the job (--hang-action end)", err)
        (stacks,) = (self.directory / "logs").glob("*/attempt_0/stacks.txt")
        self.assertIn("rank 1 (pid", stacks.read_text())

    def test_no_alarm_where_nobody_waits(self):
        code, _, err = self.run_lockrun("--nproc-per-node", 2, "--hang-timeout", "0.3", "sleep", "1.5")
        self.assertEqual((code, err), (0, ""))


class ReportTest(LockrunTest):
    def test_cpp_programs_write_error_files(self):
        code, _, err = self.run_lockrun("--nproc-per-node", 2, RECORDED, "throw")
        self.assertEqual(code, 2)
        self.assertIn("its error:\n    ValueError: the flag is wrong", err)
        code, _, err = self.run_lockrun("--nproc-per-node", 1, RECORDED, "terminate")
        self.assertEqual(code, 128 + signal.SIGABRT)
        self.assertIn("its error:\n    std::out_of_range: beyond", err)

    def test_the_error_file_is_named_where_it_is_kept(self):
        code, _, err = self.run_lockrun("--nproc-per-node", 2, "--log-dir", "logs", RECORDED, "throw")
        self.assertEqual(code, 2)
        named = [
            path
            for path in (self.directory / "logs").glob("*/attempt_0/*/error.json")
            if f"its error ({path}):\n    ValueError: the flag is wrong" in err
        ]
        self.assertEqual(len(named), 1, err)

    def test_what_the_only_rank_has_said_is_not_said_again(self):
        code, _, err = self.run_lockrun(RECORDED, "throw")
        self.assertEqual((code, err), (2, "recorded_rank: error: the flag is wrong\n"))

    def test_reasons_of_restarts_are_listed(self):
        code, _, err = self.shell(2, "[ $RANK = 1 ] && exit $((5 + TORCHELASTIC_RESTART_COUNT)); sleep 60", "--max-restarts", "2")
        self.assertEqual(code, 7)
        self.assertRegex(
            err,
            r"lockrun: 2 restarts:\n  after \d+\.\d s: rank 1 ended with exit code 5\n"
            r"  after \d+\.\d s: rank 1 ended with exit code 6\n\Z",
        )

    def test_a_stopped_worker_is_reported_while_it_is_stopped(self):
        process = self.start("--nproc-per-node", 1, "sh", "-c", "echo $$ > pid.tmp; mv pid.tmp pid; sleep 60 & wait")
        self.wait_for_file("pid")
        pid = int((self.directory / "pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        self.assertTrue(select.select([process.stderr], [], [], TIMEOUT)[0], "nothing is told")
        self.assertIn("was stopped by SIGSTOP", process.stderr.readline())
        process.terminate()
        process.wait(TIMEOUT)


class SignalsToHandleTest(LockrunTest):
    LOOP = "trap 'echo got; exit 0' USR1; touch ready; while true; do sleep 0.02; done"

    def test_sigusr1_ends_nothing_by_default(self):
        process = self.start("sh", "-c", "trap 'touch got' USR1; touch ready; while [ ! -e go ]; do sleep 0.02; done; true")
        self.wait_for_file("ready")
        process.send_signal(signal.SIGUSR1)
        self.wait_for_file("got")
        self.assertIsNone(process.poll())
        (self.directory / "go").touch()
        self.assertEqual(process.wait(TIMEOUT), 0)

    def test_sigusr1_may_be_the_request_to_end(self):
        process = self.start("--signals-to-handle", "SIGUSR1", "sh", "-c", self.LOOP)
        self.wait_for_file("ready")
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("SIGUSR1 received and passed on", err)

    def test_unlisted_signals_end_lockrun_and_so_everything(self):
        process = self.start("--signals-to-handle", "SIGINT", "sh", "-c", self.LOOP)
        self.wait_for_file("ready")
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), -signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
