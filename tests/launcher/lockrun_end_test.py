"""However a job ends, all of it ends."""

import os
import pathlib
import random
import signal
import subprocess
import time
import unittest

from lockrun_support import LOCKRUN, TIMEOUT, LockrunTest, wait_until
from namespaces import in_namespaces

# A rank with a child, and a grandchild in a session of its own that outlives its parent.
FAMILY = "setsid sh -c 'sleep 600 & exit' & sleep 600 & touch ready$RANK; wait"
RANKS, FAMILY_SIZE = 2, 2 * 3


class KillTest(LockrunTest):
    def start_family(self, *flags):
        process = self.start("--nproc-per-node", RANKS, "--shutdown-timeout", "20", *flags, "sh", "-c", FAMILY)
        for rank in range(RANKS):
            self.wait_for_file(f"ready{rank}")
        self.assertTrue(wait_until(lambda: len(self.processes()) == FAMILY_SIZE + 2), self.processes())
        return process

    def children_of(self, pid):
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]

    def guardian_of(self, process):
        (guardian,) = self.children_of(process.pid)
        return guardian

    def worker_of(self, process):
        # Left-over grandchildren are the guardian's children too: the worker is the one that has children itself.
        return next(pid for pid in self.children_of(self.guardian_of(process)) if self.children_of(pid))

    def assert_all_gone(self):
        self.assertTrue(wait_until(lambda: not self.processes()), self.processes())

    def test_kill_lockrun(self):
        process = self.start_family()
        self.pid = process.pid
        process.kill()
        process.wait()
        self.assert_all_gone()
        self.assert_no_groups()

    def test_kill_the_guardian(self):
        process = self.start_family()
        os.kill(self.guardian_of(process), signal.SIGKILL)
        self.assertEqual(process.wait(TIMEOUT), 1)
        self.assert_all_gone()
        self.assertIn("lockrun's guardian process was killed", process.stderr.read())

    def test_a_stopped_guardian_does_its_work(self):
        process = self.start_family()
        os.kill(self.guardian_of(process), signal.SIGSTOP)
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), 128 + signal.SIGTERM)
        self.assert_all_gone()

    def test_kill_a_worker(self):
        process = self.start_family()
        os.kill(self.worker_of(process), signal.SIGKILL)
        self.assertEqual(process.wait(TIMEOUT), 128 + signal.SIGKILL)
        self.assert_all_gone()
        self.assertRegex(process.stderr.read(), r"rank [01] failed first: it was killed by SIGKILL")

    def test_kill_lockruns_process_group(self):
        process = self.start("--nproc-per-node", RANKS, "sh", "-c", FAMILY, start_new_session=True)
        for rank in range(RANKS):
            self.wait_for_file(f"ready{rank}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.assert_all_gone()

    def own_groups(self):
        """Directories of this process's control group (cgroup v2) where groups can be made."""
        own = next(line[3:] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        mounts = [line.split() for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
        directories = [pathlib.Path(mount[4] + own) for mount in mounts if mount[3] == "/" and "rw" in mount[5].split(",")]
        return [directory for directory in directories if os.access(directory, os.W_OK)]

    def assert_no_groups(self):
        def left():
            return [group for directory in self.own_groups() for group in directory.glob(f"lockrun-{self.pid}")]

        self.assertTrue(wait_until(lambda: not left()), left())  # another test's lockrun may be at work on it

    def test_ranks_are_in_a_group_of_their_own_where_that_is_allowed(self):
        # In the second attempt too: what was killed once stays a group in which nothing lives.
        process = self.start(
            "--max-restarts", 1, "sh", "-c", "grep ^0:: /proc/self/cgroup; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit; setsid sleep 600 & exit 1"
        )
        self.pid = process.pid
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(out.count(f"/lockrun-{self.pid}\n"), 2 if self.own_groups() else 0, out)
        self.assert_no_groups()

    def test_ranks_share_a_session(self):
        # Linux divides a core among sessions first: in one each, ranks that share it could not give way to each other.
        code, out, err = self.shell(3, "cut -d' ' -f1,5,6 /proc/$$/stat")
        self.assertEqual(code, 0, err)
        ranks = [[int(number) for number in line.split(":")[-1].split()] for line in out.splitlines()]
        pids, process_groups, sessions = zip(*ranks)
        self.assertEqual(len(set(pids)), 3)
        self.assertEqual(process_groups, pids)
        self.assertEqual(len(set(sessions)), 1)
        self.assertNotIn(sessions[0], (*pids, os.getsid(0)))

    def test_no_group_where_none_can_be_made(self):
        # Control groups that can be looked at only, as in most containers.
        script = (
            "for place in $(sed -n 's/^[^ ]* [^ ]* [^ ]* [^ ]* \\([^ ]*\\) .* - cgroup2 .*/\\1/p' /proc/self/mountinfo); do"
            ' mount -o remount,bind,ro $place; done; exec "$@"'
        )
        command = [*in_namespaces("-m"), "sh", "-c", script, "sh", LOCKRUN, "--nproc-per-node", "2", "grep", "^0::", "/proc/self/cgroup"]
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertNotIn("lockrun-", result.stdout)

    def test_the_next_lockrun_sweeps_what_the_killed_have_left(self):
        self.check_the_sweep()

    def test_the_next_lockrun_sweeps_where_logs_are_kept(self):
        self.check_the_sweep("--log-dir", self.directory / "logs")

    def check_the_sweep(self, *flags):
        process = self.start_family(*flags)
        guardian = self.guardian_of(process)
        os.kill(guardian, signal.SIGSTOP)
        process.kill()
        os.kill(guardian, signal.SIGKILL)
        process.wait()
        self.pid = process.pid
        # Nobody is left to end the grandchildren in sessions of their own but the next lockrun: ours, or one of
        # another test that runs in the same control group.
        self.assertTrue(wait_until(lambda: len(self.processes()) <= FAMILY_SIZE - RANKS), self.processes())
        process = self.start("--nproc-per-node", 1, "sh", "-c", "touch next; while [ ! -e go ]; do sleep 0.02; done")
        self.wait_for_file("next")
        self.assertTrue(wait_until(lambda: len(self.processes()) <= 4), self.processes())  # its own, and a sleep
        self.assertTrue(wait_until(lambda: len(list(self.scratch.iterdir())) == 1))
        (self.directory / "go").touch()
        self.assertEqual(process.wait(TIMEOUT), 0)
        self.assert_all_gone()
        self.assert_no_groups()

    def test_ranks_that_multiply_end_too(self):
        # Each process starts the next one and ends: none of them is there for long. Without `go` they stop by themselves.
        (self.directory / "go").touch()
        self.environment["CHAIN"] = '[ ! -e go ] || { setsid sh -c "$CHAIN" & exit 0; }'
        process = self.start("sh", "-c", 'setsid sh -c "$CHAIN" & touch ready; sleep 600')
        self.wait_for_file("ready")
        self.pid = process.pid
        process.kill()
        process.wait()
        gone = wait_until(lambda: not self.processes())
        (self.directory / "go").unlink()
        self.assertTrue(gone)
        self.assert_no_groups()

    def test_kill_lockrun_at_any_time(self):
        randomness = random.Random(1)
        for _ in range(60):
            process = self.start(
                "--nproc-per-node",
                2,
                "--max-restarts",
                1000,
                "--restart-delay",
                0,
                "sh",
                "-c",
                "setsid sleep 600 & sleep 0.01; exit 1",
                stderr=subprocess.DEVNULL,
            )
            time.sleep(randomness.random() * 0.1)
            process.kill()
            process.wait()
        self.assert_all_gone()  # and no directory is left, which tearDown sees

    def test_left_over_processes_end_with_the_ranks(self):
        code, _, err = self.shell(2, "setsid sleep 600 & exit 0")
        self.assertEqual(code, 0)
        self.assertIn("ended 2 left-over processes", err)
        self.assertEqual(self.processes(), [])

    LEFT_OVER = (
        "setsid sh -c 'trap \"touch told\" TERM; touch left; while [ ! -e told ]; do sleep 0.02; done' & while [ ! -e left ]; do sleep 0.02; done"
    )

    def test_left_over_processes_have_the_time_that_is_asked_for(self):
        process = self.start("--leftover-timeout", "600", "sh", "-c", self.LEFT_OVER)
        self.wait_for_file("left")
        self.assertTrue(wait_until(lambda: self.children_of(process.pid) and len(self.children_of(self.guardian_of(process))) == 1))
        self.assertRaises(subprocess.TimeoutExpired, process.wait, 1.5)  # the default's 0.5 s and SIGTERM would end it
        self.assertFalse((self.directory / "told").exists())
        (self.directory / "told").touch()
        self.assertEqual(process.wait(TIMEOUT), 0)
        self.assertNotIn("left-over", process.stderr.read())

    def test_left_over_processes_end_with_lockrun_and_at_ctrl_c(self):
        for number in (signal.SIGKILL, signal.SIGINT):
            with self.subTest(number):
                (self.directory / "left").unlink(missing_ok=True)
                events = self.directory / f"events{number}"
                process = self.start("--leftover-timeout", "600", "--event-log", events, "sh", "-c", self.LEFT_OVER)
                # lockrun knows that there is no rank any more.
                self.assertTrue(wait_until(lambda: events.exists() and '"exit"' in events.read_text()))
                process.send_signal(number)
                self.assertEqual(process.wait(TIMEOUT), -number if number == signal.SIGKILL else 128 + number)
                self.assert_all_gone()


class SignalTest(LockrunTest):
    def start_ranks(self, script, *flags):
        process = self.start("--nproc-per-node", 2, *flags, "sh", "-c", script)
        for rank in range(2):
            self.wait_for_file(f"ready{rank}")
        return process

    def test_no_restart_follows_a_signal_that_comes_while_ranks_end_after_a_failure(self):
        script = (
            "touch attempt$TORCHELASTIC_RESTART_COUNT; if [ $RANK = 1 ]; then while [ ! -e ready0 ]; do sleep 0.02; done; exit 3; fi;"
            "trap 'touch asked; while [ ! -e go ]; do sleep 0.02; done; exit 0' TERM; touch ready0; while :; do sleep 0.02; done"
        )
        process = self.start("--nproc-per-node", 2, "--max-restarts", 5, "sh", "-c", script)
        self.wait_for_file("asked")
        process.terminate()
        while "SIGTERM received; the ranks are ending" not in (line := process.stderr.readline()):
            self.assertNotEqual(line, "")
        (self.directory / "go").touch()
        self.assertEqual(process.wait(TIMEOUT), 3)
        self.assertFalse((self.directory / "attempt1").exists())

    def test_a_worker_that_ignores_sigterm_is_killed(self):
        process = self.start_ranks(
            "if [ $RANK = 1 ]; then touch ready1; while [ ! -e ready0 ]; do sleep 0.02; done; exit 3; fi;"
            "trap '' TERM; touch ready0; while true; do sleep 0.1; done",
            "--shutdown-timeout",
            "0.5",
        )
        self.assertEqual(process.wait(TIMEOUT), 3)
        err = process.stderr.read()
        self.assertIn("not ended within 0.5 s, so killed: rank 0", err)
        self.assertIn("rank 0: killed by SIGKILL", err)

    def test_sigterm_is_passed_on(self):
        process = self.start_ranks("trap 'touch saved$RANK; exit 0' TERM; touch ready$RANK; while true; do sleep 0.02; done")
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), 0)  # both took it as the request to save and leave
        self.assertTrue((self.directory / "saved0").exists() and (self.directory / "saved1").exists())

    def test_no_restart_follows_a_signal_that_comes_between_attempts(self):
        # What the rank leaves behind keeps lockrun busy when there is no rank any more.
        process = self.start(
            "--max-restarts",
            5,
            "sh",
            "-c",
            "touch attempt$TORCHELASTIC_RESTART_COUNT; setsid sh -c 'trap \"\" TERM; touch left; exec sleep 600' & "
            "while [ ! -e left ]; do sleep 0.01; done; exit 3",
        )
        self.assertTrue(wait_until(lambda: (self.directory / "left").exists() and len(self.processes()) == 3))
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), 3)
        self.assertFalse((self.directory / "attempt1").exists())

    def test_sigterm_that_ends_the_ranks_is_the_exit_code(self):
        process = self.start_ranks("touch ready$RANK; while true; do sleep 0.02; done")
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), 128 + signal.SIGTERM)

    def test_sigint_twice_kills(self):
        process = self.start_ranks("trap '' INT; touch ready$RANK; while true; do sleep 0.02; done")
        process.send_signal(signal.SIGINT)
        self.assertIn("SIGINT received and passed on", process.stderr.readline())
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(TIMEOUT), 128 + signal.SIGINT)

    def test_sigusr1_reaches_the_ranks(self):
        process = self.start_ranks("trap 'touch usr$RANK; exit 0' USR1; touch ready$RANK; while true; do sleep 0.02; done")
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(TIMEOUT), 0)
        self.assertTrue((self.directory / "usr0").exists() and (self.directory / "usr1").exists())

    def test_nohup_is_respected(self):
        process = self.start(
            "--nproc-per-node",
            1,
            "sh",
            "-c",
            "touch ready; while [ ! -e go ]; do sleep 0.02; done",
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )
        self.wait_for_file("ready")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        (self.directory / "go").touch()
        self.assertEqual(process.wait(TIMEOUT), 0)

    def test_a_stopped_rank_is_reported(self):
        process = self.start_ranks("if [ $RANK = 1 ]; then echo $$ > pid; fi; touch ready$RANK; while [ ! -e go ]; do sleep 0.02; done")
        pid = int((self.directory / "pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        line = process.stderr.readline()
        self.assertIn(f"warning: rank 1 (pid {pid}) was stopped by SIGSTOP", line)
        os.kill(pid, signal.SIGCONT)
        (self.directory / "go").touch()
        self.assertEqual(process.wait(TIMEOUT), 0)

    def test_a_stopped_rank_can_be_ended(self):
        process = self.start_ranks("if [ $RANK = 1 ]; then echo $$ > pid; fi; touch ready$RANK; while true; do sleep 0.02; done")
        os.kill(int((self.directory / "pid").read_text()), signal.SIGSTOP)
        process.stderr.readline()
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), 128 + signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
