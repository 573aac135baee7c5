"""scripts/test that is told to end: its tests end first, and its folder for temporary files goes."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])

# A test as ctest would start it: it writes until it is interrupted, and then takes some time to clear away.
TEST = """
import os, pathlib, time
folder = pathlib.Path(os.environ["TMPDIR"])
try:
    for number in range(100000):
        (folder / str(number)).touch()
        (folder.parent / "folder").write_text(str(folder))
        time.sleep(0.01)
except KeyboardInterrupt:
    time.sleep(0.3)
    (folder.parent / "cleared").touch()
"""


class Interrupted(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        for folder in ("scripts", ".venv/bin", "bin", "tmp", "build"):
            (self.root / folder).mkdir(parents=True)
        for name in ("test", "test_summary.py"):
            shutil.copy(SOURCE / "scripts" / name, self.root / "scripts")
        os.symlink(sys.executable, self.root / ".venv/bin/python")
        (self.root / "test.py").write_text(TEST)
        for name, text in (("scripts/setup", ""), ("scripts/build", ""), ("bin/ctest", f"{sys.executable} test.py")):
            (self.root / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.root / name).chmod(0o755)

    def ended_by(self, which):
        ours = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        environment = dict(ours, PATH=f"{self.root}/bin:{os.environ['PATH']}", TMPDIR=str(self.root / "tmp"))
        run = subprocess.Popen(
            [self.root / "scripts/test"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # bash cannot catch what is ignored
        )
        self.addCleanup(run.wait)
        self.addCleanup(run.terminate)
        begun = self.root / "tmp/folder"
        deadline = time.monotonic() + 60
        while not begun.exists() and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertTrue(begun.exists(), "the test was not started")
        run.send_signal(which)
        self.assertEqual(128 + which, run.wait(timeout=60), run.stdout.read())
        run.stdout.close()
        self.assertTrue((self.root / "tmp/cleared").exists(), "the test was not interrupted, or not waited for")
        self.assertEqual(["cleared", "folder"], sorted(path.name for path in (self.root / "tmp").iterdir()))

    def test_by_sigterm(self):
        self.ended_by(signal.SIGTERM)

    def test_by_sigint(self):
        self.ended_by(signal.SIGINT)

    def test_by_sighup(self):
        self.ended_by(signal.SIGHUP)

    def test_by_sigquit(self):
        self.ended_by(signal.SIGQUIT)


if __name__ == "__main__":
    unittest.main()
