"""Metrics against scikit-learn's, SciPy's and torchmetrics'."""

import math
import os
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import save_file

import recorded
from metrics.metrics_peer import RECORD, answer, questions

RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "metrics_runner")


class MetricsParity(unittest.TestCase):
    def test_all(self):
        cases = questions()
        asked = [(number, metric, argument) for number, (_, _, asks) in enumerate(cases) for metric, argument in asks]
        expected = RECORD.value(
            "answers", recorded.hash_of(cases), lambda: [answer(*cases[number][:2], metric, argument) for number, metric, argument in asked]
        )
        self.assertEqual(len(expected), len(asked))
        tensors = {}
        for number, (outputs, labels, _) in enumerate(cases):
            tensors[f"{number}.outputs"] = torch.tensor(outputs, dtype=torch.float64)
            tensors[f"{number}.labels"] = torch.tensor(labels, dtype=torch.int64 if isinstance(labels[0], int) else torch.float64)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "inputs")
            save_file(tensors, path)
            done = subprocess.run([RUNNER, path], input="".join(f"{n} {m} {a}\n" for n, m, a in asked), check=True, capture_output=True, text=True)
        ours = [float(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(ours), len(asked))
        self.assertIn("nan", expected)

        def is_right(question, found, right):
            if right == "nan":
                return math.isnan(found)
            return math.isclose(found, right, rel_tol=1e-6 if question[1] == "perplexity" else 1e-11, abs_tol=1e-12)

        different = [case for case in zip(asked, ours, expected) if not is_right(*case)]
        self.assertEqual(different[:5], [], f"and {max(0, len(different) - 5)} more")


if __name__ == "__main__":
    unittest.main()
