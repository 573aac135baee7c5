"""scripts/nightly: one failure hides no other, and the exit code tells of it. What it starts is made up here."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])


class Nightly(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        (self.root / "scripts").mkdir()
        shutil.copy(SOURCE / "scripts/nightly", self.root / "scripts")

    def nightly(self, what, **programs):
        """Runs it with programs of these names, each a line of shell, and returns what ended and the calls of each program."""
        for name, line in {"setup": "true", "build": "true", **programs}.items():
            file = self.root / "scripts" / name
            file.write_text(f'#!/bin/sh\necho "$@" >> {self.root}/{name}.calls\n{line}\n')
            file.chmod(0o755)
        done = subprocess.run([self.root / "scripts/nightly", what], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        calls = {name: file.read_text().splitlines() for name in programs if (file := self.root / f"{name}.calls").exists()}
        return done, calls

    def test_all_kinds_of_soak_run_after_one_that_fails(self):
        kinds = re.search(r"for kind in (.*); do", (SOURCE / "scripts/nightly").read_text())[1].split()
        self.assertGreater(len(kinds), 5)
        done, calls = self.nightly("soaks", soak='[ "$1" != queue ] && [ "$1" != heal ]')
        self.assertEqual([call.split()[0] for call in calls["soak"]], kinds)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nightly: error: soaks failed: queue heal; ", done.stderr)

    def test_soaks_that_succeed(self):
        done, _ = self.nightly("soaks", soak="true")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_no_soak_without_a_build(self):
        done, calls = self.nightly("soaks", build="exit 3", soak="true")
        self.assertEqual(done.returncode, 3)
        self.assertNotIn("soak", calls)

    def test_each_version_of_torch_is_tried(self):
        done, calls = self.nightly("torch", test="false")
        self.assertGreater(len(calls["test"]), 1)
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main()
