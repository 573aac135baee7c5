"""LOCKSTEP_TIMELINE in whole jobs: one file, whatever starts the ranks and however they end."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from ports import free_port

BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
RANK = str(pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "timeline_rank")


def spans(trace, category, rank):
    return [e for e in trace["traceEvents"] if e.get("cat") == category and e["pid"] == rank]


class TimelineJobs(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        self.port = free_port()
        self.file = self.directory / "t.json"

    def run_job(self, *command, code=0, **variables):
        environment = dict(os.environ, LOCKSTEP_TIMELINE="t.json", OMP_NUM_THREADS="1", **variables)
        done = subprocess.run([str(c) for c in command], env=environment, cwd=self.directory, timeout=100, capture_output=True, text=True)
        if code is not None:
            self.assertEqual(done.returncode, code, done.stderr)
        return done

    def trace(self):
        """The file; nothing else may be left."""
        self.assertEqual(os.listdir(self.directory), ["t.json"])
        return json.loads(self.file.read_text())

    def check_training(self, trace, ranks, steps):
        for rank in range(ranks):
            forward, backward = spans(trace, "forward", rank), spans(trace, "backward", rank)
            optimizer = spans(trace, "optimizer", rank)
            self.assertEqual((len(forward), len(backward), len(optimizer)), (steps, steps, steps))
            self.assertEqual([e["name"] for e in spans(trace, "user", rank)], ['augment "x"'] * steps)
            ready = [e["args"]["bucket"] for e in spans(trace, "ready", rank)]
            self.assertEqual(len(ready), 4 * steps)
            reduced = [e for e in spans(trace, "reduce", rank) if "bucket" in e.get("args", {})]
            self.assertEqual([sorted(e["args"]["bucket"] for e in reduced[i::4]) for i in range(4)], [[b] * steps for b in range(4)])
            for f, b, o in zip(forward, backward, optimizer):
                self.assertLessEqual(f["ts"] + f["dur"], b["ts"])
                self.assertLessEqual(b["ts"] + b["dur"], o["ts"] + 1e-3)
            for r, step in zip(reduced, [s for s in range(steps) for _ in range(4)]):
                b = backward[step]
                self.assertLessEqual(b["ts"], r["ts"])
                self.assertLessEqual(r["ts"] + r["dur"], b["ts"] + b["dur"] + 1e-3)
            self.assertIn("broadcast", {e["name"] for e in spans(trace, "collective", rank)})
            names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name" and e["pid"] == rank}
            self.assertEqual(names, {f"rank {rank}"})

    def test_lockrun_and_what_the_tool_makes_of_it(self):
        self.run_job(BIN / "lockrun", "--standalone", "--nproc-per-node", 2, RANK, 6)
        trace = self.trace()
        self.check_training(trace, 2, 6)
        # One clock: a step's reductions on both ranks meet.
        for a, b in zip(spans(trace, "backward", 0), spans(trace, "backward", 1)):
            self.assertLess(a["ts"], b["ts"] + b["dur"])
            self.assertLess(b["ts"], a["ts"] + a["dur"])
        done = self.run_job(BIN / "lockstep", "timeline", "t.json", "--svg", "t.svg")
        lines = done.stdout.splitlines()
        self.assertRegex(lines[1], r"^rank 0 +6 ")
        self.assertRegex(lines[2], r"^rank 1 +6 .*%")
        root = xml.etree.ElementTree.parse(self.directory / "t.svg").getroot()
        self.assertTrue(root.tag.endswith("svg"))
        done = self.run_job(BIN / "lockstep", "timeline", "t.json", "--svg", "t.svg", "--from", 5, "--to", 4, code=2)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("--to (4 ms) must be later than --from (5 ms)", done.stderr)

    def test_gloo_spawn_and_torchrun(self):
        self.run_job(BIN / "lockrun", "--standalone", "--nproc-per-node", 2, RANK, 4, LOCKSTEP_BACKEND="gloo")
        self.check_training(self.trace(), 2, 4)
        self.run_job(BIN / "toy_ddp", 3)
        trace = self.trace()
        self.assertEqual([len(spans(trace, "backward", r)) for r in range(3)], [10, 10, 10])
        self.run_job(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--no-python", RANK, 4)
        self.check_training(self.trace(), 2, 4)
        self.run_job(RANK, 3)
        self.check_training(self.trace(), 1, 3)

    def test_a_killed_rank(self):
        for launcher in ((BIN / "lockrun",), (sys.executable, "-m", "torch.distributed.run", "--no-python")):
            self.run_job(*launcher, "--standalone", "--nproc-per-node", 2, RANK, 8, 1, code=None)
            if not self.file.exists():  # torchrun ended the other one before it could write
                done = self.run_job(BIN / "lockstep", "timeline", "t.json")
                self.assertIn("ended by force", done.stderr)
            trace = self.trace()
            finished = {p["rank"]: p["finished"] for p in trace["otherData"]["processes"]}
            self.assertFalse(finished[1])
            for rank in (0, 1):
                self.assertGreaterEqual(len(spans(trace, "backward", rank)), 4)
            self.file.unlink()

    def test_restarts_are_in_one_file(self):
        script = f'test "$TORCHELASTIC_RESTART_COUNT" = 1 && exec {RANK} 2; exec {RANK} 4 0'
        self.run_job(BIN / "lockrun", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "sh", "-c", script)
        trace = self.trace()
        self.assertEqual(len(trace["otherData"]["processes"]), 4)
        self.assertEqual(len(spans(trace, "backward", 0)), 2 + 2)

    def test_two_machines_with_clocks_of_their_own(self):
        """Played on one, so the true difference of the clocks is 0: the measured one must say so."""
        ends = [
            subprocess.Popen(
                [
                    BIN / "lockrun",
                    "--nnodes",
                    "2",
                    "--node-rank",
                    str(node),
                    "--nproc-per-node",
                    "1",
                    "--rdzv-endpoint",
                    f"127.0.0.1:{self.port}",
                    RANK,
                    "3",
                ],
                cwd=self.directory,
                env=dict(os.environ, LOCKSTEP_TIMELINE=f"node{node}.json", LOCKSTEP_BACKEND="gloo"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for node in (0, 1)
        ]
        for end in ends:
            output = end.communicate(timeout=100)[0]
            self.assertEqual(end.returncode, 0, output)
        self.assertEqual(sorted(os.listdir(self.directory)), ["node0.json", "node1.json"])
        parts = [json.loads((self.directory / f"node{node}.json").read_text()) for node in (0, 1)]
        error = [p["otherData"]["processes"][0]["clock_error_us"] for p in parts]
        self.assertEqual(min(error), 0)
        self.assertGreater(max(error), 0)
        self.run_job(BIN / "lockstep", "timeline", "node0.json", "node1.json", "--output", "t.json")
        trace = json.loads(self.file.read_text())
        self.check_training(trace, 2, 3)
        for a, b in zip(spans(trace, "backward", 0), spans(trace, "backward", 1)):
            self.assertLess(a["ts"], b["ts"] + b["dur"] + 2 * max(error))
            self.assertLess(b["ts"], a["ts"] + a["dur"] + 2 * max(error))

    def test_what_cannot_be_written_is_named_before_the_ranks_start(self):
        environment = dict(os.environ, LOCKSTEP_TIMELINE="no/such/t.json", OMP_NUM_THREADS="1")
        done = subprocess.run(
            [BIN / "lockrun", "--standalone", "--nproc-per-node", "2", RANK, "2"],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no/such/t.json: cannot write there", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertEqual(os.listdir(self.directory), [])

    def test_off_leaves_nothing(self):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        environment.pop("LOCKSTEP_TIMELINE", None)
        subprocess.run(
            [BIN / "lockrun", "--standalone", "--nproc-per-node", "2", RANK, "2"],
            cwd=self.directory,
            env=environment,
            check=True,
            timeout=60,
            capture_output=True,
        )
        self.assertEqual(os.listdir(self.directory), [])


if __name__ == "__main__":
    unittest.main()
