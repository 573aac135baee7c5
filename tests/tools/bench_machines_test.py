"""`lockstep bench all-reduce --machines` and `bench ddp --machines`: what they print, the bytes on the cables, and what they refuse. No
time is judged but a delay."""

import json
import os
import subprocess
import unittest

from namespaces import in_namespaces

BIN = os.environ["LOCKSTEP_BIN_DIR"]


def bench(*arguments):
    return subprocess.run([f"{BIN}/lockstep", "bench", *arguments], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)


class BenchMachines(unittest.TestCase):
    def rows(self, *arguments, what="all-reduce"):
        in_namespaces("-n")
        run = bench(what, "--rounds", "1", "--json", *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return [json.loads(line) for line in run.stdout.splitlines()]

    def test_cables_carry_what_the_plan_says(self):
        rows = self.rows("--machines", "2x2,2+3,3x1", "--sizes", "1M,8M", "--against", "gloo")
        self.assertEqual(
            [(row["machines"], row["bytes"], row["backend"], row["uplink"]) for row in rows],
            [
                (machines, size << 20, backend, uplink)
                for machines in ("2x2", "2+3", "3x1")
                for size in (1, 8)
                for backend, uplink in (("lockstep", "gloo"), ("gloo", ""))
            ],
        )
        for row in rows:
            with self.subTest(row=row):
                self.assertGreater(row["p50_us"], 0)
                self.assertGreater(row["cpu_us"], 0)
                machines = 3 if row["machines"] == "3x1" else 2
                self.assertAlmostEqual(row["bound_bytes"], 2 * (machines - 1) / machines * row["bytes"], delta=1)
                if row["backend"] == "lockstep":
                    self.assertLess(abs(row["cable_bytes"] / row["planned_bytes"] - 1), 0.03)
                    if row["machines"] != "2+3":  # which has two sums to send
                        self.assertLess(row["cable_bytes"] / row["bound_bytes"], 1.03)

    def test_a_delay_is_one(self):
        (row,) = self.rows("--machines", "2x1", "--sizes", "4K", "--rtt", "20", "--rate", "1gbit")
        self.assertEqual((row["rtt_ms"], row["rate"]), (20, "1gbit"))
        self.assertGreater(row["p50_us"], 10000)

    def test_steps_of_ddp(self):
        rows = self.rows("--machines", "2x1,1+2", "--model", "toy", "--steps", "40", "--against", "gloo", what="ddp")
        self.assertEqual(
            [(row["machines"], row["backend"], row["uplink"]) for row in rows],
            [(machines, backend, uplink) for machines in ("2x1", "1+2") for backend, uplink in (("", ""), ("lockstep", "gloo"), ("gloo", ""))],
        )
        for row in rows:
            with self.subTest(row=row):
                self.assertEqual((row["model"], row["steps"], row["rounds"]), ("toy", 40, 1))
                self.assertGreater(row["step_seconds"]["median"], 0)
                self.assertEqual("exposed_seconds" in row, row["backend"] != "")
                self.assertEqual("times_as_fast_as_flat_gloo" in row, row["backend"] != "")

    def test_what_cannot_be_measured_is_one_error(self):
        for arguments, error in (
            (("all-reduce", "--machines", "2"), "--machines 2: give machines times ranks of each, such as 2x2"),
            (("all-reduce", "--machines", "2x"), "--machines 2x: give machines times ranks of each, such as 2x2"),
            (("all-reduce", "--machines", "2x64"), "--machines 2x64: give machines times ranks of each, such as 2x2"),
            (("all-reduce", "--machines", "2x2", "--rate", "fast"), "--rate fast: give a number and kbit, mbit or gbit"),
            (("all-reduce", "--machines", "2x2", "--rtt", "-1"), "--rtt -1: give 0 to 10000 milliseconds there and back"),
            (("all-reduce", "--machines", "2x2", "--uplink", "mpi"), "--uplink mpi: choose gloo, ucx or both"),
            (("all-reduce", "--machines", "2x2", "--against", "mpi"), "--against mpi: with --machines choose gloo"),
            (("broadcast", "--machines", "2x2"), "--machines times all-reduce, not broadcast"),
            (("all-reduce", "--machines", "2x2", "--dtype", "float64"), "--machines goes with --sizes, --rate, --rtt"),
            (("all-reduce", "--rate", "1gbit"), "--rate is for --machines"),
            (("ddp", "--machines", "1x2"), "--machines 1x2: give machines times ranks of each, such as 2x2"),
            (("ddp", "--machines", "2x2", "--rtt", "soon"), "--rtt soon: give 0 to 10000 milliseconds there and back"),
            (("ddp", "--machines", "2x2", "--uplink", "tcp"), "--uplink tcp: choose gloo, ucx or both"),
            (("ddp", "--machines", "2x2", "--against", "mpi"), "--against mpi: with --machines choose gloo"),
            (("ddp", "--machines", "2x2", "--hook", "noop"), "--machines goes with --model, --steps, --rounds, --bucket-cap-mb"),
            (("ddp", "--machines", "2x2", "--nproc-per-node", "4"), "--machines goes with --model, --steps, --rounds, --bucket-cap-mb"),
            (("ddp", "--rate", "1gbit"), "--rate and --against are for --machines"),
            (("ddp", "--against", "gloo"), "--rate and --against are for --machines"),
        ):
            with self.subTest(arguments=arguments):
                run = bench(*arguments)
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertIn(error, run.stderr)


if __name__ == "__main__":
    unittest.main()
