"""Python ranks are watched by lockrun as C++ ranks are, and hang reports show the lines of their script."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watch_rank.py")


class WatchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = pathlib.Path(folder.name)
        for case in "all_reduce", "ddp", "recv":
            (self.directory / f"late.{case}").touch()
        # The real one needs seconds for LibTorch's symbols.
        (self.directory / "eu-stack").write_text("#!/bin/sh\n")
        (self.directory / "eu-stack").chmod(0o755)

    def start(self, *arguments):
        environment = dict(os.environ, PATH=f"{self.directory}:{os.environ['PATH']}", OMP_NUM_THREADS="1", PYTHON_EXEC=sys.executable)
        job = subprocess.Popen(
            [LOCKRUN, "--nproc-per-node", "2", "--hang-timeout", "2", "--prefix", "off", RANK, *arguments],
            cwd=self.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(job.stdout.close)
        return job

    def read_until(self, job, text):
        output = ""
        while text not in output:
            self.assertTrue(line := job.stdout.readline(), output)
            output += line
        return output

    def check_hangs(self, backend, *cases):
        job = self.start(backend, "all", *cases)
        output = ""
        for case in cases:
            operation = rf"{'recv' if case == 'recv' else 'all_reduce'} of {400 if case == 'ddp' else 40} bytes"
            said = self.read_until(job, "rank 1 (pid")
            self.assertRegex(
                said,
                r"no collective was started for \d+ s: rank 0 waits in the \w+ operation \("
                rf"{operation}\) for rank 1, which has started \d \(the last: ",
            )
            said += self.read_until(job, "hold_all_up at")
            said += job.stdout.readline()
            # Where rank 0 waits, then where rank 1 is: in the script, not in torch.
            self.assertRegex(said, rf"rank 0 \(pid(.*\n)+?  Python, the current thread:\n(.*\n)*?    {case} at \S*watch_rank.py:\d+\n")
            line = next(number for number, text in enumerate(pathlib.Path(RANK).read_text().splitlines(), 1) if "time.sleep" in text)
            # It sleeps there, or looks for the file in the line before.
            self.assertRegex(said, rf"    hold_all_up at {re.escape(RANK)}:({line - 1}|{line})\n    {case} at {re.escape(RANK)}:")
            (self.directory / f"late.{case}").unlink()
            output += said
        output += job.communicate(timeout=60)[0]
        self.assertEqual((job.returncode, output.count("done")), (0, 2), output)
        self.assertEqual(output.count("no collective"), len(cases), output)

    def test_ranks_on_gloo(self):
        self.check_hangs("gloo", "all_reduce", "ddp", "recv")

    def test_ranks_on_lockstep(self):
        self.check_hangs("lockstep", "ddp")

    def test_ranks_that_do_not_import_our_package_give_no_false_alarm(self):
        begin = time.monotonic()
        job = self.start("gloo", "rank_0", "all_reduce")
        while time.monotonic() < begin + 8:  # the start, and more than the timeout
            time.sleep(0.1)
        (self.directory / "late.all_reduce").unlink()
        output = job.communicate(timeout=60)[0]
        self.assertEqual((job.returncode, output.count("done")), (0, 2), output)
        self.assertIsNone(re.search("warning|no collective|waits", output), output)


if __name__ == "__main__":
    unittest.main()
