"""lockrun's exit code, and whom it blames."""

import os
import pathlib
import signal
import time
import unittest

from lockrun_support import TIMEOUT, LockrunTest, wait_until

ALL_REDUCE_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "all_reduce_rank")
LATE_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "late_rank")
SAVES = "trap 'touch asked$RANK; {}' {}; touch ready$RANK; while true; do sleep 0.02; done"


class ExitCodeTest(LockrunTest):
    def start_ranks(self, script, *flags, ranks=2):
        process = self.start("--nproc-per-node", ranks, *flags, "sh", "-c", script)
        for rank in range(ranks):
            self.wait_for_file(f"ready{rank}")
        return process

    def end(self, process):
        """(exit code, standard error) of a job that ends by itself now."""
        _, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, err

    def test_a_code_of_the_ranks_own_after_a_signal(self):
        process = self.start_ranks(SAVES.format("exit 9", "TERM"))
        process.terminate()
        code, err = self.end(process)
        self.assertEqual(code, 9, err)
        self.assertNotIn("failed", err)

    def test_resume_after_a_signal(self):
        process = self.start_ranks(SAVES.format("exit 75", "TERM"), "--max-restarts", 3, "--torchrun-exit-code")
        process.terminate()
        code, err = self.end(process)
        self.assertEqual(code, 75, err)

    def test_resume_after_a_signal_before_the_first_collective(self):
        # Rank 0 waits in init(), where it has no handler yet.
        script = f"[ $RANK = 1 ] && exec sleep 600; exec {ALL_REDUCE_RANK}"
        process = self.start("--nproc-per-node", 2, "--hang-timeout", 1, "sh", "-c", script)
        said = ""
        while "rank 0 waits in init() for rank 1" not in said:
            self.assertTrue(line := process.stderr.readline(), said)
            said += line
        process.terminate()
        code, err = self.end(process)
        self.assertEqual(code, 75, said + err)

    def test_130_after_one_sigint_even_if_all_ranks_end_well(self):
        process = self.start_ranks(SAVES.format("exit 0", "INT"))
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.end(process)[0], 130)

    def test_the_report_repeats_no_line_that_is_shown(self):
        script = "echo the reason >&2; exit 3"
        code, _, err = self.shell(1, script)
        self.assertEqual((code, err.count("the reason")), (3, 1), err)
        self.assertIn("what it wrote to standard error stands above", err)
        code, _, err = self.shell(1, script, "--redirects", 2, "--log-dir", "logs")
        self.assertEqual((code, err.count("the reason")), (3, 1), err)
        self.assertIn("its last lines on standard error:\n    the reason\n", err)

    def test_resume_without_a_signal(self):
        process = self.start(
            "--nproc-per-node",
            2,
            "--max-restarts",
            3,
            "sh",
            "-c",
            "touch started$RANK.$TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] && exit 75; exec sleep 60",
        )
        code, err = self.end(process)
        self.assertEqual(code, 75, err)
        self.assertIn("rank 0 ended with exit code 75, so the job is to be resumed later", err)
        self.assertNotIn("failed", err)
        self.assertFalse((self.directory / "started0.1").exists())

    def test_no_restart_after_a_checkpoint_that_could_not_be_saved(self):
        process = self.start(
            "--nproc-per-node",
            2,
            "--max-restarts",
            3,
            "sh",
            "-c",
            "touch started$RANK.$TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] && exit 74; exec sleep 60",
        )
        code, err = self.end(process)
        self.assertEqual(code, 74, err)
        self.assertIn("rank 0 failed first: it ended with exit code 74", err)
        self.assertFalse((self.directory / "started0.1").exists())

    def test_ranks_that_do_not_end_in_time_are_named(self):
        process = self.start(
            "--nproc-per-node",
            2,
            "--shutdown-timeout",
            "0.3",
            "sh",
            "-c",
            "if [ $RANK = 0 ]; then while [ ! -e deaf ]; do sleep 0.02; done; exit 75; fi;trap '' TERM; touch deaf; while true; do sleep 0.02; done",
        )
        code, err = self.end(process)
        self.assertEqual(code, 75, err)
        self.assertIn("not ended within 0.3 s, so killed: rank 1", err)
        self.assertNotIn("failed", err)

    def test_a_rank_that_fails_meanwhile_is_a_failure(self):
        script = (
            "if [ $RANK = 0 ]; then while [ ! -e ready1 ]; do sleep 0.02; done; exit 75; fi;"
            "trap 'exit 4' TERM; touch ready1; while true; do sleep 0.02; done"
        )
        process = self.start("--nproc-per-node", 2, "sh", "-c", script)
        code, err = self.end(process)
        self.assertEqual(code, 4, err)
        self.assertIn("rank 1 failed first: it ended with exit code 4", err)

    def test_only_a_second_sigint_kills_ranks_that_are_saving(self):
        # systemd sends SIGTERM and SIGHUP, Kubernetes may send SIGTERM twice.
        script = (
            "trap 'touch asked$RANK; while [ ! -e go ]; do sleep 0.02; done; touch saved$RANK; exit 0' TERM;"
            "touch ready$RANK; while true; do sleep 0.02; done"
        )
        said = self.directory / "said"
        with open(said, "w") as file:
            process = self.start("--nproc-per-node", 2, "sh", "-c", script, stderr=file)
        for name in ("ready0", "ready1"):
            self.wait_for_file(name)
        process.terminate()
        self.wait_for_file("asked0")
        self.wait_for_file("asked1")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            time.sleep(0.05)
        for name in "SIGHUP", "SIGINT":  # which would be the reason of the end if they were seen after it
            self.assertTrue(wait_until(lambda: f"{name} received; the ranks are ending" in said.read_text()), said.read_text())
        (self.directory / "go").touch()
        code, err = process.wait(TIMEOUT), said.read_text()
        self.assertEqual(code, 0, err)
        self.assertTrue((self.directory / "saved0").exists() and (self.directory / "saved1").exists())
        self.assertEqual(err.count("SIGHUP received; the ranks are ending"), 1, err)

    def test_sigusr1_without_a_handler_blames_no_rank(self):
        process = self.start_ranks("touch ready$RANK; while true; do sleep 0.02; done")
        process.send_signal(signal.SIGUSR1)
        code, err = self.end(process)
        self.assertEqual(code, 128 + signal.SIGUSR1, err)
        self.assertIn("which lockrun received and passed on; the program has no handler for it", err)
        self.assertNotIn("consequence", err)

    def test_a_rank_that_sigusr1_has_stopped_is_not_started_again(self):
        loop = "while true; do sleep 0.02; done"
        ends = f"trap 'exit 138' USR1; trap 'touch term$RANK; exit 75' TERM; touch ready$RANK; {loop}"
        stays = f"trap '' USR1; trap 'touch term$RANK; exit 143' TERM; touch ready$RANK; {loop}"
        for flags in ((), ("--max-replacements", "2")):
            with self.subTest(flags=flags):
                process = self.start_ranks(
                    f"[ $TORCHELASTIC_RESTART_COUNT = 0 ] || touch again; if [ $RANK = 0 ]; then {ends}; else {stays}; fi",
                    "--max-restarts",
                    "3",
                    *flags,
                )
                process.send_signal(signal.SIGUSR1)
                code, err = self.end(process)
                self.assertEqual(code, 138, err)
                self.assertRegex(err, r"rank 0 ended with exit code 138 after SIGUSR1; the other ranks have [\d.]+ s to end")
                self.assertTrue((self.directory / "term1").exists())
                self.assertFalse((self.directory / "again").exists() or (self.directory / "term0").exists(), err)
                for name in ("ready0", "ready1", "term1"):
                    (self.directory / name).unlink()

    def test_a_stopped_guardian_hides_no_exit(self):
        process = self.start_ranks("touch ready$RANK; while [ ! -e go ]; do sleep 0.02; done; exit 6")
        (guardian,) = [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        os.kill(guardian, signal.SIGSTOP)
        (self.directory / "go").touch()
        code, err = self.end(process)
        self.assertEqual(code, 6, err)
        self.assertIn("it ended with exit code 6", err)

    def test_the_first_to_die_is_blamed_however_late_that_is_seen(self):
        script = (
            "touch ready$RANK; while [ ! -e go ]; do sleep 0.02; done; [ $RANK = 1 ] && kill -9 $$;"
            "until grep -q '^State:.Z' /proc/$(cat pid1)/status; do sleep 0.02; done; exit 1"
        )
        process = self.start_ranks("echo $$ > pid$RANK;" + script, ranks=3)
        ranks = [int((self.directory / f"pid{rank}").read_text()) for rank in range(3)]
        (guardian,) = [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        for pid in (process.pid, guardian):  # as if no core were left for them
            os.kill(pid, signal.SIGSTOP)
        (self.directory / "go").touch()
        wait_until(lambda: all("\nState:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text() for pid in ranks))
        for pid in (guardian, process.pid):
            os.kill(pid, signal.SIGCONT)
        code, err = self.end(process)
        self.assertEqual(code, 137, err)
        self.assertIn("rank 1 failed first: it was killed by SIGKILL", err)

    def test_a_hang_that_ends_the_job_is_its_reason(self):
        code, _, err = self.run_lockrun("--nproc-per-node", 2, "--hang-timeout", 4, "--hang-action", "end", "--max-restarts", 1, LATE_RANK, "600")
        self.assertEqual(code, 1, err)
        self.assertRegex(
            err,
            r"lockrun: 1 restart:\n  after \d+\.\d s: no collective was started for \d+ s: rank 0 waits in the "
            r"3rd operation \(barrier of 0 bytes\) for rank 1, which has started 2",
        )

    def test_restarts_in_quick_succession_wait(self):
        code, _, err = self.run_lockrun("--max-restarts", 2, "--restart-delay", "0.2", "sh", "-c", "exit 3")
        self.assertEqual(code, 3, err)
        self.assertIn("starting all ranks again (restart 1 of 2)", err)
        self.assertIn("starting all ranks again in 0.2 s (restart 2 of 2)", err)

    def test_a_signal_ends_the_wait_for_a_restart(self):
        process = self.start("--max-restarts", 5, "--restart-delay", "1h", "sh", "-c", "touch attempt$TORCHELASTIC_RESTART_COUNT; exit 3")
        self.wait_for_file("attempt1")
        while "again in 3600 s" not in process.stderr.readline():
            pass
        process.terminate()
        code, err = self.end(process)
        self.assertEqual(code, 3, err)
        self.assertIn("SIGTERM received; the ranks are not started again", err)


if __name__ == "__main__":
    unittest.main()
