"""FusedAdamW, clipping and schedules against torch's and transformers'."""
import os
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import load_file, save_file
from transformers import get_scheduler

RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "optim_runner")
SHAPES = [(7,), (5, 3), (64, 33), (1,), ()]


class OptimParity(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.inputs = os.path.join(directory.name, "inputs")
        self.outputs = os.path.join(directory.name, "outputs")

    def run_ours(self, mode, tensors, argument):
        save_file(tensors, self.inputs)
        subprocess.run([RUNNER, mode, self.inputs, self.outputs, argument], check=True)
        return load_file(self.outputs)

    def test_adamw(self):
        for amsgrad in (False, True):
            for fused in (False, True):
                with self.subTest(amsgrad=amsgrad, fused=fused):
                    self.compare_adamw(amsgrad, fused)

    def compare_adamw(self, amsgrad, fused):
        torch.manual_seed(0)
        steps = 12
        tensors = {f"p.{i}": torch.randn(shape) for i, shape in enumerate(SHAPES)}
        for step in range(steps):
            for i, shape in enumerate(SHAPES):
                if i != 2 or step % 3 != 1:  # one parameter has no gradient now and then
                    tensors[f"g.{step}.{i}"] = torch.randn(shape)
        parameters = [tensors[f"p.{i}"].clone().requires_grad_() for i in range(len(SHAPES))]
        optimizer = torch.optim.AdamW([{"params": parameters[:1], "weight_decay": 0.0}, {"params": parameters[1:]}],
                                      lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6, amsgrad=amsgrad,
                                      fused=fused)
        for step in range(steps):
            for i, parameter in enumerate(parameters):
                parameter.grad = tensors.get(f"g.{step}.{i}")
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (step + 1)
            optimizer.step()
        ours = self.run_ours("adamw", tensors, str(int(amsgrad)))
        for i, parameter in enumerate(parameters):
            state = optimizer.state[parameter]
            torch.testing.assert_close(ours[f"p.{i}"], parameter.detach(), rtol=2e-6, atol=2e-7)
            torch.testing.assert_close(ours[f"exp_avg.{i}"], state["exp_avg"], rtol=2e-6, atol=2e-7)
            torch.testing.assert_close(ours[f"exp_avg_sq.{i}"], state["exp_avg_sq"], rtol=2e-6, atol=2e-7)
            self.assertEqual(ours[f"step.{i}"].item(), int(state["step"].item()))

    def test_sgd(self):
        cases = [("0", {}), ("0.9", {"momentum": 0.9}), ("0.9,0.3", {"momentum": 0.9, "dampening": 0.3}),
                 ("0.8n", {"momentum": 0.8, "nesterov": True})]
        for argument, options in cases:
            for fused in (False, True):
                with self.subTest(argument, fused=fused):
                    self.compare_sgd(argument, fused=fused, **options)

    def compare_sgd(self, argument, **options):
        torch.manual_seed(0)
        tensors = {f"p.{i}": torch.randn(shape) for i, shape in enumerate(SHAPES)}
        for step in range(8):
            for i, shape in enumerate(SHAPES):
                # One parameter gets its first gradient later, and not always; Python's fused kernel fails on that.
                if i != 2 or step % 3 == (0 if options["fused"] else 1):
                    tensors[f"g.{step}.{i}"] = torch.randn(shape)
        parameters = [tensors[f"p.{i}"].clone().requires_grad_() for i in range(len(SHAPES))]
        optimizer = torch.optim.SGD(parameters, lr=0.1, weight_decay=0.05, **options)
        for step in range(8):
            for i, parameter in enumerate(parameters):
                parameter.grad = tensors.get(f"g.{step}.{i}")
            optimizer.step()
        ours = self.run_ours("sgd", tensors, argument)
        for i, parameter in enumerate(parameters):
            torch.testing.assert_close(ours[f"p.{i}"], parameter.detach(), rtol=2e-6, atol=2e-7)
            buffer = optimizer.state[parameter].get("momentum_buffer")
            self.assertEqual(buffer is not None, f"momentum_buffer.{i}" in ours)
            if buffer is not None:
                torch.testing.assert_close(ours[f"momentum_buffer.{i}"], buffer, rtol=2e-6, atol=2e-7)

    def test_clip_grad_norm(self):
        torch.manual_seed(0)
        grads = {f"g.{i}": torch.randn(shape) for i, shape in enumerate([*SHAPES, (300, 1000), (0,)])}
        grads["g.8"] = torch.randn(100).double()
        cases = [(1.0, grads), (1e6, grads), (0.5, {"g.0": torch.tensor([float("inf"), 1.0])}),
                 (0.5, {"g.0": torch.tensor([float("nan"), 1.0])}), (0.5, {"g.0": torch.zeros(3)})]
        for max_norm, tensors in cases:
            parameters = []
            for grad in tensors.values():
                parameters.append(torch.zeros_like(grad).requires_grad_())
                parameters[-1].grad = grad.clone()
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            ours = self.run_ours("clip", tensors, str(max_norm))
            torch.testing.assert_close(ours["norm"], norm.double(), rtol=1e-5, atol=1e-7, equal_nan=True)
            for name, parameter in zip(tensors, parameters):
                torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-5, atol=1e-7, equal_nan=True)

    def test_norm_of_a_large_gradient_is_exact(self):
        torch.manual_seed(0)
        grad = torch.full((3_000_001,), 0.1) + 0.01 * torch.randn(3_000_001)
        ours = self.run_ours("clip", {"g.0": grad}, "1e9")
        torch.testing.assert_close(ours["norm"], grad.double().norm(), rtol=1e-6, atol=0)

    def test_schedules(self):
        cases = [(name, warmup, steps) for name in ("linear", "cosine", "constant", "constant_with_warmup")
                 for warmup, steps in ((0, 10), (5, 20), (20, 20), (0, 0), (1, 1), (7, 3))]
        asked = "".join(f"{name} {warmup} {steps}\n" for name, warmup, steps in cases)
        done = subprocess.run([RUNNER, "schedule"], input=asked, check=True, capture_output=True, text=True)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), len(cases))
        for (name, warmup, steps), line in zip(cases, lines):
            with self.subTest(name, warmup=warmup, steps=steps):
                optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
                scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
                factors = [float(factor) for factor in line.split()]
                self.assertEqual(len(factors), steps + 3)
                for factor in factors:
                    self.assertAlmostEqual(factor, scheduler.get_last_lr()[0], places=14)
                    optimizer.step()
                    scheduler.step()

    def test_unknown_schedule(self):
        done = subprocess.run([RUNNER, "schedule"], input="square 0 1\n", capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("square", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
