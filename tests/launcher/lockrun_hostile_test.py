"""lockrun under parents that ignore or block signals, close descriptors, or start it as the first process of a container."""

import os
import signal
import subprocess
import unittest

from lockrun_support import LOCKRUN, TIMEOUT, LockrunTest, wait_until
from namespaces import in_namespaces

# A rank that ends when it is told to.
UNTIL_TOLD = "trap 'exit 0' TERM; touch ready$RANK; while true; do sleep 0.02; done"
PATIENT = "touch ready$RANK; exec sleep 600"
ONE_FAILS = "[ $RANK = 1 ] && exit 7; exec sleep 600"


def ignore(*signals):
    def prepare():
        for number in signals:
            signal.signal(number, signal.SIG_IGN)

    return prepare


def block_all():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def close_descriptors():
    for fd in range(3):
        os.close(fd)


# That the first three are ignored, as by nohup and shells, lockrun respects; the others nobody can ignore.
NOT_IGNORED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGSTOP}


class HostileParentTest(LockrunTest):
    """The same stories under each parent."""

    # A rank that cannot be asked to end is to be noticed, not to be killed.
    FLAGS = ["--nproc-per-node", "2", "--shutdown-timeout", "600"]

    def begin(self, script, *flags, prepare=None, wrapper=()):
        for path in self.directory.glob("ready*"):
            path.unlink()
        process = subprocess.Popen(
            [*wrapper, LOCKRUN, *self.FLAGS, *flags, "sh", "-c", script],
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=prepare,
        )
        self.addCleanup(process.kill)
        return process

    def check_stories(self, pid_of=lambda process: process.pid, **parent):
        def ends_with(code, process):
            self.assertEqual(process.wait(TIMEOUT), code)

        def is_sent(number, script):
            process = self.begin(script, **parent)
            for rank in range(2):
                self.wait_for_file(f"ready{rank}")
            os.kill(pid_of(process), number)
            return process

        with self.subTest("success"):
            ends_with(0, self.begin("exit 0", **parent))
        with self.subTest("failure"):
            ends_with(7, self.begin(ONE_FAILS, **parent))
        with self.subTest("restart"):
            ends_with(0, self.begin("[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { " + ONE_FAILS + "; }", "--max-restarts", "1", **parent))
        with self.subTest("told to end"):
            ends_with(0, is_sent(signal.SIGTERM, UNTIL_TOLD))
        with self.subTest("Ctrl-C"):
            ends_with(128 + signal.SIGINT, is_sent(signal.SIGINT, PATIENT))

    def test_one_ignored_signal(self):
        for number in (signal.SIGCHLD, signal.SIGTERM):
            with self.subTest(number.name):
                self.check_stories(prepare=ignore(number))

    def test_ignored_signals(self):
        self.check_stories(prepare=ignore(*(signal.valid_signals() - NOT_IGNORED)))

    def test_blocked_signals(self):
        self.check_stories(prepare=block_all)

    def test_closed_descriptors(self):
        self.check_stories(prepare=close_descriptors)

    def test_the_first_process_of_a_pid_namespace(self):
        first = in_namespaces("-p", "-m", "--fork", "--mount-proc")
        self.check_stories(wrapper=first, pid_of=first_of)
        self.check_stories(wrapper=[*first, "env", "--ignore-signal=CHLD", "--block-signal"], pid_of=first_of)

    def test_a_parent_that_ignores_ctrl_c_is_respected(self):
        process = self.begin(PATIENT, prepare=ignore(signal.SIGINT))
        for rank in range(2):
            self.wait_for_file(f"ready{rank}")
        process.send_signal(signal.SIGINT)
        process.terminate()
        self.assertEqual(process.wait(TIMEOUT), 128 + signal.SIGTERM)


def first_of(process):
    """The first process of the namespace that unshare has made, by its pid out here."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return int(file.read().split()[0])


class FirstProcessTest(LockrunTest):
    """What else process 1 of a PID namespace has to do, as in a container whose entry point is lockrun."""

    def start_as_first(self, script, *flags):
        command = [*in_namespaces("-p", "-m", "--fork", "--mount-proc"), LOCKRUN, "--nproc-per-node", "2", *flags, "sh", "-c", script]
        process = subprocess.Popen(command, env=self.environment, cwd=self.directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (process.kill(), process.stdout.close(), process.stderr.close()))
        return process

    def test_orphans_of_others_are_reaped(self):
        process = self.start_as_first("touch ready$RANK; while [ ! -e go ]; do sleep 0.02; done")
        for rank in range(2):
            self.wait_for_file(f"ready{rank}")
        first = first_of(process)
        # As `docker exec` would: a process from outside, whose child is left to process 1.
        subprocess.run(
            ["nsenter", "-t", str(first), "-U", "--preserve-credentials", "-p", "-m", "sh", "-c", "sleep 0.1 & exit 0"]
            if os.geteuid() != 0
            else ["nsenter", "-t", str(first), "-p", "-m", "sh", "-c", "sleep 0.1 & exit 0"],
            check=True,
            timeout=TIMEOUT,
        )

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
