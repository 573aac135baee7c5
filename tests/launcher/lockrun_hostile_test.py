"""lockrun under parents that ignore or block signals, close descriptors, or start it as the first process of a container."""

import os
import signal
import subprocess
import unittest

from lockrun_support import LOCKRUN, TIMEOUT, LockrunTest, wait_until
from namespaces import in_namespaces

UNTIL_TOLD = "trap 'exit 0' TERM; touch ready$RANK; while true; do sleep 0.02; done"


class HostileParentTest(LockrunTest):
    def start_under(self, prepare, script):
        process = self.start("--nproc-per-node", 2, "--shutdown-timeout", 30, "sh", "-c", script, preexec_fn=prepare)
        self.addCleanup(process.kill)
        return process

    def check_both_ways(self, prepare):
        """Ranks that end by themselves, and ranks that end when they are told to."""
        process = self.start_under(prepare, "exit 0")
        self.assertEqual(process.wait(TIMEOUT), 0)
        process = self.start_under(prepare, UNTIL_TOLD)
        for rank in range(2):
            self.wait_for_file(f"ready{rank}")
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), 0)

    def test_ignored_signals(self):
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGPIPE, signal.SIGTSTP):
            with self.subTest(number.name):
                self.check_both_ways(lambda: signal.signal(number, signal.SIG_IGN))
                for rank in range(2):
                    (self.directory / f"ready{rank}").unlink()

    def test_blocked_signals(self):
        self.check_both_ways(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()))

    def test_closed_descriptors(self):
        def close_all():
            for fd in range(3):
                os.close(fd)
        process = subprocess.Popen([LOCKRUN, "--nproc-per-node", "2", "sh", "-c", "touch ran$RANK"], env=self.environment,
                                   cwd=self.directory, preexec_fn=close_all)
        self.assertEqual(process.wait(TIMEOUT), 0)
        self.assertTrue((self.directory / "ran0").exists() and (self.directory / "ran1").exists())


class FirstProcessTest(LockrunTest):
    """Process 1 of a PID namespace, as in a container whose entry point is lockrun."""

    def start_as_first(self, script, *flags):
        command = [*in_namespaces("-p", "-m", "--fork", "--mount-proc"), LOCKRUN, "--nproc-per-node", "2", *flags, "sh", "-c", script]
        process = subprocess.Popen(command, env=self.environment, cwd=self.directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (process.kill(), process.stdout.close(), process.stderr.close()))
        return process

    def first_of(self, process):
        """Its pid out here."""
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            return int(file.read().split()[0])

    def test_exit_code(self):
        process = self.start_as_first("exit 7")
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 7, err)

    def test_signals_reach_it(self):
        process = self.start_as_first(UNTIL_TOLD)
        for rank in range(2):
            self.wait_for_file(f"ready{rank}")
        os.kill(self.first_of(process), signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)

    def test_orphans_of_others_are_reaped(self):
        process = self.start_as_first("touch ready$RANK; while [ ! -e go ]; do sleep 0.02; done")
        for rank in range(2):
            self.wait_for_file(f"ready{rank}")
        first = self.first_of(process)
        # As `docker exec` would: a process from outside, whose child is left to process 1.
        subprocess.run(["nsenter", "-t", str(first), "-U", "--preserve-credentials", "-p", "-m", "sh", "-c", "sleep 0.1 & exit 0"] if os.geteuid() != 0
                       else ["nsenter", "-t", str(first), "-p", "-m", "sh", "-c", "sleep 0.1 & exit 0"], check=True, timeout=TIMEOUT)

        def zombies():
            found = []
            with open(f"/proc/{first}/task/{first}/children") as file:
                for child in file.read().split():
                    with open(f"/proc/{child}/stat") as stat:
                        text = stat.read()
                    found += [text] if text.rpartition(")")[2].split()[0] == "Z" else []
            return found

        def children():
            with open(f"/proc/{first}/task/{first}/children") as file:
                return file.read().split()
        self.assertTrue(wait_until(lambda: len(children()) == 1, 10), children())
        self.assertEqual(zombies(), [])
        (self.directory / "go").touch()
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)


if __name__ == "__main__":
    unittest.main()
