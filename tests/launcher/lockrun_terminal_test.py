"""lockrun on a terminal: Ctrl-C, Ctrl-Z, questions and progress bars."""

import os
import pty
import select
import signal
import sys
import termios
import time
import unittest

from lockrun_support import LOCKRUN, TIMEOUT, LockrunTest, wait_until


class TerminalTest(LockrunTest):
    """Runs lockrun as the foreground job of a pseudo-terminal of 100 columns."""

    def start_on_terminal(self, *arguments):
        pid, self.terminal = pty.fork()
        if pid == 0:
            try:
                termios.tcsetwinsize(0, (40, 100))
                os.chdir(self.directory)
                os.execve(LOCKRUN, ["lockrun", *map(str, arguments)], self.environment)
            finally:
                os._exit(127)
        self.pid = pid
        self.screen = b""
        self.addCleanup(os.close, self.terminal)

    def read_until(self, wanted):
        deadline = time.monotonic() + TIMEOUT
        while wanted is None or wanted not in self.screen:
            ready, _, _ = select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))
            self.assertTrue(ready, f"{wanted} did not appear in {self.screen}")
            try:
                data = os.read(self.terminal, 65536)
            except OSError:  # the terminal's last process is gone
                data = b""
            if not data:
                self.assertIsNone(wanted, f"{wanted} did not appear in {self.screen}")
                return
            self.screen += data

    def end(self):
        """Exit code as the shell would show it."""
        self.read_until(None)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def type(self, text):
        os.write(self.terminal, text)

    def test_control_c_ends_the_job(self):
        self.start_on_terminal("--nproc-per-node", 2, "sh", "-c", "echo ready; while true; do sleep 0.02; done")
        self.read_until(b"ready")
        self.type(b"\x03")
        self.read_until(b"SIGINT received")
        self.assertEqual(self.end(), 128 + signal.SIGINT)

    def test_control_c_twice_kills(self):
        self.start_on_terminal("--nproc-per-node", 2, "sh", "-c", "trap '' INT; echo ready; while true; do sleep 0.02; done")
        self.read_until(b"ready")
        self.type(b"\x03")
        self.read_until(b"SIGINT received")
        self.type(b"\x03")
        self.assertEqual(self.end(), 128 + signal.SIGINT)

    def test_rank_0_asks_and_reads_the_answer(self):
        self.start_on_terminal("--nproc-per-node", 2, "sh", "-c", "[ $RANK = 1 ] && exit 0; printf 'your name? '; read name; echo hello $name")
        self.read_until(b"your name? ")
        self.type(b"Ada\n")
        self.read_until(b"hello Ada")
        self.assertEqual(self.end(), 0)

    def test_progress_bar_is_live_and_unprefixed(self):
        script = (
            "[ $RANK = 1 ] && { while [ ! -e bar ]; do sleep 0.02; done; echo from one; exit 0; };"
            "printf '\\r 10%%' >&2; touch bar; while [ ! -e seen ]; do sleep 0.02; done; printf '\\r100%%\\n' >&2"
        )
        self.start_on_terminal("--nproc-per-node", 2, "sh", "-c", script)
        self.read_until(b"from one\r\n 10%")
        (self.directory / "seen").touch()
        self.assertEqual(self.end(), 0)
        self.assertIn(b"\r\x1b[K", self.screen)  # the bar makes room for rank 1's line, and comes back
        self.assertRegex(self.screen, rb"from one\r\n 10%\r100%\r\n")

    def test_ranks_know_the_terminal(self):
        self.start_on_terminal(
            "--nproc-per-node",
            2,
            sys.executable,
            "-c",
            "import os, sys; print('columns', os.environ['LOCKSTEP_TERMINAL_COLUMNS'], sys.stderr.isatty());"
            "fd = os.open(os.environ['LOCKSTEP_TERMINAL'], os.O_RDONLY | os.O_NOCTTY); print('the same', os.get_terminal_size(fd).columns)",
        )
        self.assertEqual(self.end(), 0)
        self.assertEqual(self.screen.count(b"columns 100 False"), 2)
        self.assertEqual(self.screen.count(b"the same 100"), 2)

    def test_programs_write_line_by_line(self):
        # C's library keeps back what goes to a pipe; a rank's lines must appear when they are written.
        self.start_on_terminal("--nproc-per-node", 2, "sh", "-c", "{ echo a line; sleep 600; } | sed -n p")
        self.read_until(b"a line")
        self.type(b"\x03")
        self.end()

    def test_control_z_without_a_shell_stops_nothing_for_good(self):
        # As under `ssh -t` or `docker run -it`: nobody could type fg.
        self.start_on_terminal("--nproc-per-node", 2, "sh", "-c", "echo ready; while [ ! -e go ]; do sleep 0.02; done; echo d''one")
        self.read_until(b"ready")
        self.type(b"\x1a")
        self.read_until(b"^Z")
        time.sleep(0.2)
        (self.directory / "go").touch()
        self.read_until(b"done")
        self.assertEqual(self.end(), 0)

    def test_control_z_suspends_and_continues_the_ranks(self):
        # A shell with job control between the terminal and lockrun, so that the terminal has a job to suspend.
        self.environment["LOCKRUN"] = LOCKRUN
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(self.directory)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], self.environment)
        self.pid, self.screen = pid, b""
        self.addCleanup(os.close, self.terminal)
        self.type(b"$LOCKRUN --nproc-per-node 2 sh -c 'echo rank$((1+1))ready; while true; do date +%N > beat$RANK; sleep 0.02; done'\n")
        self.read_until(b"rank2ready")
        for rank in range(2):
            self.wait_for_file(f"beat{rank}")
        self.type(b"\x1a")
        self.read_until(b"Stopped")

        def beat():
            return [(self.directory / f"beat{rank}").read_text() for rank in range(2)]

        def rests():
            before = beat()
            time.sleep(0.5)
            return beat() == before

        self.assertTrue(wait_until(rests, 10), "the ranks did not stop")
        self.type(b"fg\n")
        self.assertTrue(wait_until(lambda: not rests(), 10), "the ranks did not go on")
        self.type(b"\x03")
        self.read_until(b"SIGINT received")
        self.type(b"exit\n")
        self.end()
        self.assertNotIn(b"was stopped by", self.screen)


if __name__ == "__main__":
    unittest.main()
