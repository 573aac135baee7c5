"""A divided optimizer's training on one machine goes on over several, with the bits that one machine with as many ranks gives."""

import os
import subprocess
import tempfile
import unittest

from ports import free_port

LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
CASES = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "resume_cases")


class Resume(unittest.TestCase):
    def run_on(self, machines, case, folder, result="none"):
        port = free_port()
        environment = {**os.environ, "LOCKSTEP_BACKEND": "lockstep", "TEST_FOLDER": folder, "TEST_RESULT": result}
        processes = [
            subprocess.Popen(
                [
                    LOCKRUN,
                    "--nnodes",
                    str(len(machines)),
                    "--node-rank",
                    str(node),
                    "--master-addr",
                    "127.0.0.1",
                    "--master-port",
                    str(port),
                    "--nproc-per-node",
                    str(ranks),
                    CASES,
                    f"--gtest_filter=Resume.{case}",
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for node, ranks in enumerate(machines)
        ]
        try:
            outputs = [process.communicate(timeout=100)[0] for process in processes]
        finally:
            for process in processes:
                process.terminate()
                process.wait()
        for process in processes:
            self.assertEqual(process.returncode, 0, "\n".join(outputs))

    def test_a_training_goes_on_over_several_machines(self):
        for before, after in ((2, (2, 1)), (4, (2, 2))):
            with self.subTest(before=before, after=after), tempfile.TemporaryDirectory() as folder:
                self.run_on((before,), "Saves", folder)
                self.run_on((sum(after),), "GoesOn", folder, "alone")
                self.run_on(after, "GoesOn", folder, "several")
                self.run_on(after, "ComesToTheSame", folder)


if __name__ == "__main__":
    unittest.main()
