"""`lockstep bench --against mpi`: Open MPI's ranks run under its own mpirun."""

import json
import os
import subprocess
import unittest


class BenchMpi(unittest.TestCase):
    def test_measures_beside_open_mpi(self):
        run = subprocess.run(
            [
                os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockstep"),
                "bench",
                "all-reduce",
                "--nproc-per-node",
                "2",
                "--sizes",
                "1K",
                "--rounds",
                "2",
                "--against",
                "mpi",
                "--json",
            ],
            capture_output=True,
            text=True,
            timeout=100,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = [json.loads(line) for line in run.stdout.splitlines()]
        self.assertEqual([(row["backend"], row["bytes"], row["ranks"]) for row in rows], [("lockstep", 1024, 2), ("mpi", 1024, 2)])


if __name__ == "__main__":
    unittest.main()
