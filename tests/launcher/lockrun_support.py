"""What the tests of lockrun share: starting it and looking for what it left behind."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
TIMEOUT = 60  # seconds; generous, since the machine may be busy
# A --hang-timeout for jobs that it ends: ranks that start together may come so many seconds apart, and are not hung.
UNHURRIED = 15


def processes_with(marker):
    """Pids of living processes whose environment holds `marker`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if marker.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def wait_until(condition, seconds=TIMEOUT):
    """Polls `condition` until it is true or the time is over; returns its last value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


def make_directory():
    """Not in /dev/shm, of which two_hosts.py's hosts have one each."""
    return pathlib.Path(tempfile.mkdtemp(dir="/tmp" if tempfile.gettempdir().startswith("/dev/shm") else None))


class LockrunTest(unittest.TestCase):
    """Gives each test a directory; afterwards checks that no process and no temporary file is left."""

    def setUp(self):
        self.directory = make_directory()
        self.scratch = self.directory / "scratch"
        self.scratch.mkdir()
        self.marker = f"LOCKRUN_TEST_MARKER={self.directory.name}"
        self.environment = dict(os.environ, TMPDIR=str(self.scratch), LOCKRUN_TEST_MARKER=self.directory.name)
        self.environment.pop("PET_NPROC_PER_NODE", None)
        self.environment["OMP_NUM_THREADS"] = "1"
        self.addCleanup(shutil.rmtree, self.directory)

    def tearDown(self):
        left = wait_until(lambda: not self.processes())
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.assertTrue(left, "processes were left behind")
        self.assertEqual(list(self.scratch.iterdir()), [], "temporary files were left behind")

    def processes(self):
        return processes_with(self.marker)

    def start(self, *arguments, **options):
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen([LOCKRUN, *map(str, arguments)], env=self.environment, text=True, cwd=self.directory, **options)
        self.addCleanup(lambda: (process.stdout and process.stdout.close(), process.stderr and process.stderr.close()))
        return process

    def run_lockrun(self, *arguments, **options):
        """Runs lockrun to its end: (exit code, stdout, stderr)."""
        process = self.start(*arguments, stdin=options.pop("stdin", subprocess.DEVNULL), **options)
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out, err

    def shell(self, nproc, script, *flags):
        """Runs a shell script as `nproc` ranks."""
        return self.run_lockrun("--nproc-per-node", nproc, *flags, "sh", "-c", script)

    def wait_for_file(self, name):
        self.assertTrue(wait_until((self.directory / name).exists), f"{name} did not appear")
