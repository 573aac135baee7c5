"""The Trainer against transformers' on a token-level loss in double precision: loss, learning rate and norm at every step, weights."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import recorded
import trainer_peer

RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "trainer_runner")
LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
COMMON = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 4,
    "learning_rate": 0.02,
    "logging_steps": 1,
    "weight_decay": 0.01,
    "warmup_steps": 0.2,
    "adam_epsilon": 1e-6,
}
SCHEDULES = {
    "linear": {},
    "cosine": {},
    "cosine_with_restarts": {"num_cycles": 2},
    "polynomial": {"power": 2, "lr_end": 1e-5},
    "constant": {},
    "constant_with_warmup": {},
    "inverse_sqrt": {},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 5},
}


class TrainerParityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from safetensors.torch import save_file

        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        save_file(trainer_peer.inputs(), cls.path / "inputs.safetensors")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def ours(self, name, arguments, ranks):
        arguments = {**arguments, "disable_tqdm": True}
        if isinstance(arguments.get("lr_scheduler_kwargs"), dict) and not arguments["lr_scheduler_kwargs"]:
            del arguments["lr_scheduler_kwargs"]
        (self.path / "arguments.json").write_text(json.dumps(arguments))
        command = [RUNNER, self.path / "inputs.safetensors", self.path / "arguments.json", self.path / name]
        if ranks > 1:
            command = [LOCKRUN, "--standalone", "--nproc-per-node", str(ranks), *command]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        from safetensors.torch import load_file

        return (json.loads((self.path / name / "trainer_state.json").read_text())["log_history"], load_file(self.path / name / "model.safetensors"))

    def check(self, name, momentum=None, ranks=1, **more):
        import torch

        arguments = {**COMMON, **more}
        theirs = trainer_peer.RECORD.value(name, recorded.hash_of(arguments, momentum or {}), lambda: trainer_peer.train(arguments, momentum))
        if momentum is not None:
            arguments.update(optim="sgd", optim_args=",".join(f"{key}={str(value).lower()}" for key, value in momentum.items()))
        if ranks > 1:
            arguments["per_device_train_batch_size"] //= ranks
        log, weights = self.ours(f"{name}-{ranks}", arguments, ranks)
        self.assertEqual(len(log), len(theirs["log"]))
        for mine, peer in zip(log, theirs["log"]):
            for key in {"loss", "grad_norm", "learning_rate", "epoch", "step", "train_loss"} & set(peer):
                # transformers keeps the norm and the train_loss of a run in float32.
                tolerance = 1e-6 if key in ("loss", "grad_norm", "train_loss") else 1e-12
                self.assertLessEqual(abs(mine[key] - peer[key]), tolerance * abs(peer[key]), (name, key, mine, peer))
        # Its label smoothing adds up in float32.
        rtol, atol = (1e-6, 1e-6) if "label_smoothing_factor" in more else (1e-9, 1e-12)
        for key, value in theirs["weights"].items():
            torch.testing.assert_close(weights[key], torch.tensor(value, dtype=torch.float64), rtol=rtol, atol=atol, msg=f"{name}: {key}")

    def test_accumulation(self):
        for ranks in (1, 2):
            self.check("accumulation", gradient_accumulation_steps=4, ranks=ranks)

    def test_each_schedule(self):
        for schedule, arguments in SCHEDULES.items():
            self.check(schedule, lr_scheduler_type=schedule, lr_scheduler_kwargs=arguments)

    def test_optimizers(self):
        self.check("sgd", optim="sgd", weight_decay=0)
        self.check("momentum", momentum={"momentum": 0.9, "nesterov": True}, weight_decay=0)
        self.check("adamw_torch", optim="adamw_torch", adam_beta1=0.8, adam_beta2=0.95)

    def test_clipping_and_decay(self):
        self.check("clipping", max_grad_norm=0.05)
        self.check("decay", weight_decay=0.5, max_steps=9)

    def test_label_smoothing(self):
        self.check("smoothing", label_smoothing_factor=0.1)


if __name__ == "__main__":
    unittest.main()
