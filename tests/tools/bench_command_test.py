"""`lockstep bench` as users call it: what it starts, prints and refuses. No time is judged."""

import json
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

BIN = os.environ["LOCKSTEP_BIN_DIR"]


def bench(*arguments):
    return subprocess.run([f"{BIN}/lockstep", "bench", *arguments], capture_output=True, text=True, timeout=100)


class BenchCommand(unittest.TestCase):
    def test_measures_beside_gloo(self):
        with tempfile.TemporaryDirectory() as folder:
            plot = os.path.join(folder, "plot.svg")
            run = bench(
                "all-reduce",
                "--nproc-per-node",
                "3",
                "--sizes",
                "64,1M",
                "--rounds",
                "2",
                "--against",
                "gloo",
                "--json",
                "--plot",
                plot,
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            ElementTree.parse(plot)
        rows = [json.loads(line) for line in run.stdout.splitlines()]
        self.assertEqual(
            [(row["backend"], row["bytes"]) for row in rows],
            [("lockstep", 64), ("gloo", 64), ("lockstep", 1 << 20), ("gloo", 1 << 20)],
        )
        for row in rows:
            self.assertEqual(row["collective"], "all_reduce")
            self.assertEqual(row["ranks"], 3)
            self.assertLessEqual(row["p50_us"], row["p99_us"])
            self.assertGreater(row["limit_us"], 0)

    def test_measures_every_collective(self):
        for collective in (
            "reduce",
            "broadcast",
            "all-gather",
            "reduce-scatter",
            "all-to-all",
            "gather",
            "scatter",
            "barrier",
            "send-recv",
        ):
            with self.subTest(collective):
                run = bench(collective, "--sizes", "1000", "--rounds", "1", "--unregistered")
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertIn("lockstep", run.stdout.splitlines()[-1])

    def test_the_table_names_the_peer(self):
        run = bench("all-reduce", "--sizes", "64", "--rounds", "1", "--against", "gloo")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("of limit  speedup over Gloo: median (min to max)\n", run.stdout)

    def test_measures_lost_peers(self):
        run = bench("peer-lost", "--nproc-per-node", "3", "--sizes", "64", "--trials", "2")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, r"64 B  median [\d.]+ \(min [\d.]+, max [\d.]+\), 4 measurements\n")

    def test_measures_optimizers(self):
        run = bench("optimizer", "--nproc-per-node", "1,2", "--parameters", "1.1", "--rounds", "2", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = [json.loads(line) for line in run.stdout.splitlines()]
        self.assertEqual(
            [(row["ranks"], row["way"], row["clipping"]) for row in rows],
            [(ranks, way, clipping) for ranks in (1, 2) for way in ("all-reduce", "fused-zero", "shared-parameters") for clipping in (False, True)],
        )
        for row in rows:
            self.assertTrue(0 < row["seconds_min"] <= row["seconds"] <= row["seconds_max"], row)

    def test_examples_are_of_their_subcommand(self):
        for words in ([], ["ddp"], ["optimizer"], ["peer-lost"]):
            example = bench(*words, "--help").stdout.split("\n\n")[2].splitlines()[1].strip()
            self.assertTrue(example.startswith(" ".join(["lockstep", "bench", *(words or ["all-reduce"])])), example)

    def test_measures_algorithms(self):
        names = "auto,direct,reduce_broadcast,all_to_all,ring,tree,halving_doubling,hierarchical"
        run = bench("all-reduce", "--sizes", "4K", "--rounds", "1", "--algorithm", names, "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = [json.loads(line) for line in run.stdout.splitlines()]
        self.assertEqual([row["algorithm"] for row in rows], ["auto: direct", *names.split(",")[1:]])

    def test_refuses_what_cannot_be_measured(self):
        for arguments, message in (
            (("all-reduse",), 'there is no collective "all-reduse"; choose one of all-reduce,'),
            (("all-reduce", "--sizes", "12Q"), "--sizes 12Q: expected bytes, or a number with K, M or G"),
            (("all-gather", "--sizes", "4"), "--sizes 4: at least 8 bytes"),
            (("all-reduce", "--dtype", "float33"), "--dtype float33: expected float32, float64,"),
            (("all-reduce", "--algorithm", "star"), "--algorithm star: expected auto, direct,"),
            (("broadcast", "--algorithm", "ring"), "only all-reduce has algorithms"),
            (("all-reduce", "--against", "nccl"), "--against nccl: expected gloo or mpi"),
        ):
            run = bench(*arguments)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(message, run.stderr)
            self.assertEqual(len(run.stderr.strip().splitlines()), 1, run.stderr)


if __name__ == "__main__":
    unittest.main()
