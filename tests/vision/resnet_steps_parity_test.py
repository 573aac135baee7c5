"""20 steps of ResNet-18 from the same weights and batches, on two ranks, beside torchvision's model and torch's SGD."""

import json
import os
import subprocess
import tempfile
import unittest

from torchvision_peer import torchvision

import torch
from safetensors.torch import save_file

BATCH, STEPS, RANKS = 16, 20, 2


class ResNetSteps(unittest.TestCase):
    def test_losses_are_equal_in_double_precision(self):
        torch.manual_seed(0)
        model = torchvision.models.resnet18(num_classes=10).double()
        n = BATCH * RANKS * STEPS
        images, labels = torch.randn(n, 3, 32, 32, dtype=torch.double), torch.randint(0, 10, (n,))
        with tempfile.TemporaryDirectory() as directory:
            weights, output = os.path.join(directory, "weights.safetensors"), os.path.join(directory, "out")
            save_file(model.state_dict() | {"images": images, "labels": labels}, weights)
            run = subprocess.run(
                [
                    os.environ["LOCKSTEP_BIN_DIR"] + "/lockrun",
                    "--nproc-per-node",
                    str(RANKS),
                    os.environ["LOCKSTEP_TEST_BIN_DIR"] + "/resnet_steps",
                    weights,
                    str(BATCH),
                    str(STEPS),
                    output,
                ],
                capture_output=True,
                text=True,
                timeout=600,
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            with open(os.path.join(output, "log.jsonl")) as lines:
                entries = [json.loads(line) for line in lines]
        losses = [entry["loss"] for entry in entries if "loss" in entry]
        self.assertEqual(len(losses), STEPS)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
        for step, own in enumerate(losses):
            optimizer.zero_grad()
            first = step * BATCH * RANKS
            parts = []  # each rank normalizes its own batch
            for rank in range(RANKS):
                of_rank = slice(first + rank, first + BATCH * RANKS, RANKS)
                parts.append(torch.nn.functional.cross_entropy(model(images[of_rank]), labels[of_rank]))
            loss = sum(parts) / RANKS
            loss.backward()
            optimizer.step()
            self.assertLess(abs(loss.item() - own), 1e-5, f"step {step}: {loss.item()} and {own}")
        self.assertNotAlmostEqual(losses[0], losses[-1], places=2)


if __name__ == "__main__":
    unittest.main()
