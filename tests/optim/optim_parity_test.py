"""The optimizers, clipping, averages of weights and schedules against torch's and transformers'."""

import json
import os
import random
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import load_file, save_file
from transformers import get_scheduler

RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "optim_runner")
TIED_RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "tied_runner")
SHAPES = [(7,), (5, 3), (64, 33), (1,), ()]


class TiedNet(torch.nn.Module):
    """tests/optim/tied_net.h"""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 6, dtype=torch.float64)
        self.hidden = torch.nn.Linear(6, 6, dtype=torch.float64)
        self.decoder = torch.nn.Linear(6, 11, dtype=torch.float64)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens):
        return self.decoder(self.hidden(self.embedding(tokens)).tanh())


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
        optimizer = torch.optim.AdamW(
            [{"params": parameters[:1], "weight_decay": 0.0}, {"params": parameters[1:]}],
            lr=0.01,
            weight_decay=0.1,
            betas=(0.8, 0.95),
            eps=1e-6,
            amsgrad=amsgrad,
            fused=fused,
        )
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
        cases = [
            ("0", {}),
            ("0.9", {"momentum": 0.9}),
            ("0.9,0.3", {"momentum": 0.9, "dampening": 0.3}),
            ("0.8n", {"momentum": 0.8, "nesterov": True}),
        ]
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

    @staticmethod
    def train_tied(kind, by_groups, fused):
        """Inputs for tied_runner, and what it must give."""
        torch.manual_seed(3)
        net = TiedNet()
        inputs = {f"w.{name}": value.detach().clone() for name, value in net.named_parameters()}
        parameters = net.parameters()
        if by_groups:
            names = dict(net.named_parameters())
            parameters = [
                {"params": [p for n, p in names.items() if not n.endswith("bias")]},
                {"params": [p for n, p in names.items() if n.endswith("bias")], "weight_decay": 0.0},
            ]
        if kind == "adamw":
            optimizer = torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1, fused=fused)
        else:
            optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9, weight_decay=0.05, fused=fused)
        average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.7))
        expected = {}
        for step in range(10):
            tokens, labels = torch.randint(11, (16,)), torch.randint(11, (16,))
            inputs[f"x.{step}"], inputs[f"y.{step}"] = tokens, labels
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(tokens), labels).backward()
            expected[f"norm.{step}"] = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            average.update_parameters(net)
        expected |= {f"w.{name}": value.detach().clone() for name, value in net.state_dict().items()}
        expected |= {f"p.{i}": parameter.detach().clone() for i, parameter in enumerate(net.parameters())}
        expected |= {f"average.{name}": value.detach().clone() for name, value in average.module.named_parameters()}
        for number, state in optimizer.state_dict()["state"].items():
            expected |= {f"state.{number}.{name}": value for name, value in state.items() if name != "step"}
        return inputs, expected

    def run_tied(self, optimizer, inputs):
        save_file(inputs, self.inputs)
        subprocess.run([TIED_RUNNER, optimizer, self.inputs, self.outputs], check=True)
        return load_file(self.outputs)

    def test_tied_weights(self):
        for kind in ("adamw", "sgd"):
            for by_groups in (False, True):
                for fused in (False, True):
                    inputs, expected = self.train_tied(kind, by_groups, fused)
                    lists = [f"{kind}.groups", f"{kind}_torch.groups"] if by_groups else [f"{kind}.libtorch", f"{kind}.ours", f"{kind}_torch.ours"]
                    for optimizer in lists:
                        with self.subTest(optimizer, fused=fused):
                            ours = self.run_tied(optimizer, inputs)
                            self.assertEqual(set(ours), set(expected))
                            for name, value in expected.items():
                                torch.testing.assert_close(ours[name], value, rtol=1e-8, atol=1e-10, msg=lambda m: f"{name}: {m}")

    def test_libtorch_steps_tied_weights_twice(self):
        """What docs/optimizers.md warns of, and what the comparison above would notice."""
        for kind in ("adamw", "sgd"):
            inputs, expected = self.train_tied(kind, by_groups=False, fused=False)
            theirs = self.run_tied(f"{kind}_torch.libtorch", inputs)
            self.assertGreater((theirs["p.0"] - expected["p.0"]).abs().max().item(), 0.01)

    def test_clip_grad_norm(self):
        torch.manual_seed(0)
        grads = {f"g.{i}": torch.randn(shape) for i, shape in enumerate([*SHAPES, (300, 1000), (0,)])}
        grads["g.8"] = torch.randn(100).double()
        cases = [
            (1.0, grads),
            (1e6, grads),
            (0.5, {"g.0": torch.tensor([float("inf"), 1.0])}),
            (0.5, {"g.0": torch.tensor([float("nan"), 1.0])}),
            (0.5, {"g.0": torch.zeros(3)}),
        ]
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

    def rates_of_ours(self, mode, asked, count):
        """A line of learning rates for each line of `asked`: pairs, of two parameter groups."""
        done = subprocess.run([RUNNER, mode], input=asked, check=True, capture_output=True, text=True)
        lines = [[float(rate) for rate in line.split()] for line in done.stdout.splitlines()]
        self.assertEqual(len(lines), count)
        return [list(zip(rates[::2], rates[1::2])) for rates in lines]

    def check_rates(self, optimizer, ours, steps, step):
        self.assertEqual(len(ours), steps + 1)
        for index, rates in enumerate(ours):
            for rate, group in zip(rates, optimizer.param_groups):
                self.assertLessEqual(abs(rate - group["lr"]), 1e-12 * max(abs(group["lr"]), 1e-12), f"at {index}")
            if index < steps:
                optimizer.step()
                step(index)

    @staticmethod
    def two_groups(lr):
        return torch.optim.SGD(
            [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr}, {"params": [torch.zeros(1, requires_grad=True)], "lr": lr / 10}], lr=lr
        )

    def test_average_of_weights(self):
        for decay in (0.0, 0.9, 0.9999, 1.0):
            torch.manual_seed(0)
            module = torch.nn.ParameterList(torch.zeros(shape, dtype=torch.float64) for shape in SHAPES)
            peer = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
            tensors, expected = {}, {}
            for step in range(9):
                for i, parameter in enumerate(module):
                    tensors[f"v.{step}.{i}"] = parameter.data = torch.randn(SHAPES[i], dtype=torch.float64)
                peer.update_parameters(module)
                expected.update({f"a.{step}.{i}": average.detach().clone() for i, average in enumerate(peer.module)})
            ours = self.run_ours("ema", tensors, str(decay))
            self.assertEqual(set(ours), set(expected))
            for name, average in expected.items():
                torch.testing.assert_close(ours[name], average, rtol=1e-12, atol=0)

    def test_schedules(self):
        lengths = ((0, 10), (5, 20), (20, 20), (0, 0), (1, 1), (7, 3))
        plain = [
            (name, warmup, steps, {})
            for name in ("linear", "cosine", "constant", "constant_with_warmup", "cosine_with_restarts", "inverse_sqrt")
            for warmup, steps in lengths
        ]
        more = [
            ("cosine", 3, 30, {"num_cycles": 1.25}),
            ("cosine_with_restarts", 4, 40, {"num_cycles": 3}),
            ("polynomial", 0, 25, {}),
            ("polynomial", 5, 25, {"power": 2.5, "lr_end": 1e-4}),
            ("inverse_sqrt", 5, 50, {"timescale": 12}),
            ("cosine_with_min_lr", 4, 30, {"min_lr": 1e-3}),
            ("cosine_with_min_lr", 0, 30, {"min_lr_rate": 0.2}),
            ("cosine_warmup_with_min_lr", 4, 30, {"min_lr_rate": 0.1}),
            ("cosine_warmup_with_min_lr", 4, 30, {"min_lr": 1e-3, "warmup_lr_rate": 0.3}),
            ("warmup_stable_decay", 5, 40, {"num_decay_steps": 10}),
            (
                "warmup_stable_decay",
                5,
                40,
                {"num_decay_steps": 10, "num_stable_steps": 20, "warmup_type": "cosine", "decay_type": "linear", "min_lr_ratio": 0.05},
            ),
            ("warmup_stable_decay", 5, 40, {"num_decay_steps": 12, "warmup_type": "1-sqrt", "decay_type": "1-sqrt"}),
            ("step", 0, 30, {"step_size": 7}),
            ("step", 0, 300, {"step_size": 10, "gamma": 0.9}),
            ("multi_step", 0, 30, {"milestones": [3, 10, 10, 21], "gamma": 0.5}),
        ]
        for lr in (1.0, 0.05):
            cases = plain + more
            asked = "".join(f"{name} {warmup} {steps} {lr} {json.dumps(kwargs)}\n" for name, warmup, steps, kwargs in cases)
            for (name, warmup, steps, kwargs), ours in zip(cases, self.rates_of_ours("schedule", asked, len(cases))):
                with self.subTest(name, warmup=warmup, steps=steps, lr=lr, **kwargs):
                    optimizer = self.two_groups(lr)
                    if name == "step":
                        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, **kwargs)
                    elif name == "multi_step":
                        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, **kwargs)
                    else:
                        scheduler = get_scheduler(
                            name, optimizer, num_warmup_steps=warmup, num_training_steps=steps, scheduler_specific_kwargs=kwargs
                        )
                    self.check_rates(optimizer, ours, steps + 2, lambda _: scheduler.step())

    def test_reduce_lr_on_plateau(self):
        generator = random.Random(5)
        cases, asked = [], ""
        for case in range(40):
            options = {
                "mode": generator.choice(["min", "max"]),
                "factor": generator.choice([0.1, 0.5, 0.9]),
                "patience": generator.randrange(4),
                "threshold": generator.choice([0, 1e-4, 0.05]),
                "threshold_mode": generator.choice(["rel", "abs"]),
                "cooldown": generator.randrange(3),
                "min_lr": generator.choice([0, 1e-3]),
            }
            metrics = [round(generator.uniform(-1, 1) / (1 + i / 10), 3) for i in range(30)]
            cases.append((options, metrics))
            asked += " ".join(map(str, [0.05, *options.values(), *metrics])) + "\n"
        for (options, metrics), ours in zip(cases, self.rates_of_ours("plateau", asked, len(cases))):
            with self.subTest(**options):
                optimizer = self.two_groups(0.05)
                scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
                self.check_rates(optimizer, ours, len(metrics), lambda i: scheduler.step(metrics[i]))

    def test_wrong_arguments_of_a_schedule(self):
        for line, expected in (
            ("step 0 10 1", "step_size"),
            ("multi_step 0 10 1", "milestones"),
            ("cosine_with_min_lr 0 10 1", "min_lr"),
            ("polynomial 0 10 1e-8", "lr_end"),
            ('warmup_stable_decay 0 10 1 {"num_decay_steps": 11}', "num_training_steps"),
            ('cosine 0 10 1 {"cycles": 2}', "cycles"),
            ("cosine 0 10 1 [2]", "JSON object"),
            ('step 0 10 1 {"step_size": 1.5}', "whole number"),
            ("reduce_lr_on_plateau 0 1 1", "ReduceLROnPlateau"),
        ):
            with self.subTest(line):
                done = subprocess.run([RUNNER, "schedule"], input=line + "\n", capture_output=True, text=True)
                self.assertEqual(done.returncode, 2)
                self.assertIn(expected, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_unknown_schedule(self):
        done = subprocess.run([RUNNER, "schedule"], input="square 0 1 1\n", capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("square", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
