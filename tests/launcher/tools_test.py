"""lockstep topo and lockstep env."""

import json
import os
import subprocess
import unittest
import xml.etree.ElementTree

from lockrun_support import LockrunTest

LOCKSTEP = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockstep")


class TopoTest(unittest.TestCase):
    def topo(self, *arguments):
        return subprocess.run([LOCKSTEP, "topo", *arguments], capture_output=True, text=True, timeout=120)

    def test_json_describes_the_machine_and_what_was_measured(self):
        report = json.loads(self.topo("--format", "json").stdout)
        ranks = report["ranks"]
        cpus = os.sched_getaffinity(0)
        self.assertEqual(len(ranks), min(len(cpus), 16))
        self.assertLessEqual({rank["cpu"] for rank in ranks}, cpus)
        for i, rank in enumerate(ranks):
            self.assertEqual(rank["links"][i], "X")
            for j, other in enumerate(ranks if len(ranks) > 1 else []):
                self.assertEqual(rank["links"][j], other["links"][i])
                if i != j:
                    self.assertGreater(rank["latency_us"][j], 0)
                    self.assertGreater(rank["gigabytes_per_s"][j], 0)
                else:
                    self.assertIsNone(rank["latency_us"][j])

    def test_text_fits_a_terminal(self):
        out = self.topo("--no-measure").stdout
        self.assertIn("How ranks are connected", out)
        self.assertNotIn("Latency", out)

    def test_svg_is_well_formed(self):
        root = xml.etree.ElementTree.fromstring(self.topo("--format", "svg", "--no-measure").stdout)
        self.assertTrue(root.tag.endswith("svg"))

    def test_too_many_ranks_are_refused(self):
        if len(os.sched_getaffinity(0)) < 256:
            for typed in ("--nproc-per-node", "--nproc_per_node"):
                result = self.topo(typed, "256")
                self.assertEqual(result.returncode, 2)
                self.assertIn(f"error: {typed} 256: there are", result.stderr)


class EnvTest(LockrunTest):
    def test_every_rank_shows_its_own(self):
        self.environment["LOCKSTEP_TEST_TOKEN"] = "hidden"
        code, out, err = self.run_lockrun("--nproc-per-node", 2, LOCKSTEP, "env")
        self.assertEqual(code, 0, err)
        self.assertEqual(out.count("libtorch headers"), 1)
        self.assertRegex(out, r"libtorch at run time +\d+\.\d+\.\d+, /.*libtorch_cpu\.so")
        self.assertRegex(out, r"git revision +([0-9a-f]{12}(-dirty)?|not built from a git checkout)\n")
        self.assertRegex(out, r"control group +memory (\S+ GiB|no limit), processor (\S+ cores|no limit), processes ")
        self.assertRegex(out, r"\[rank 0\]: RANK +0\n")
        self.assertRegex(out, r"\[rank 1\]: RANK +1\n")
        self.assertNotIn("hidden", out)

    def test_json(self):
        code, out, err = self.run_lockrun("--nproc-per-node", 1, LOCKSTEP, "env", "--json")
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["WORLD_SIZE"], "1")


if __name__ == "__main__":
    unittest.main()
