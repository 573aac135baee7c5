"""`lockstep checkpoint convert --to trainer`: transformers' Trainer resumes from our checkpoint as we do."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import tiny

LOCKSTEP = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockstep")
SAVED, COMPARED, STEPS = 24, 10, 57  # 75 samples, 4 a step, 3 epochs: in the middle of the second
ARGUMENTS = {"learning_rate": 1e-3, "warmup_steps": 0.2, "weight_decay": 0.01, "logging_steps": 1}


class ConvertTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_convert_"))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.model = tiny.make_model(cls.dir / "model")
        cls.train = tiny.write_csv(cls.dir / "train.csv", tiny.make_rows(75, seed=1))

    def flags(self, name, ranks, **more):
        flags = {
            "model_name_or_path": self.model,
            "train_file": self.train,
            "output_dir": self.dir / name,
            "label_names": "positive,negative",
            "per_device_train_batch_size": 4 // ranks,
            "hidden_dropout": 0,
            "attention_dropout": 0,
            "max_seq_length": 32,
            "save_steps": SAVED,
            **ARGUMENTS,
            **more,
        }
        return {"--" + name.replace("_", "-"): value for name, value in flags.items()}

    def our_run(self, name, ranks, **more):
        done = tiny.run(self.flags(name, ranks, **more), ranks if ranks > 1 else None)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return tiny.history(self.dir / name)

    def convert(self, *arguments):
        return subprocess.run([LOCKSTEP, "checkpoint", "convert", *map(str, arguments)], capture_output=True, text=True, timeout=120)

    def python_resumes(self, checkpoint, **more):
        import torch
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
        model = transformers.BertForSequenceClassification.from_pretrained(self.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        rows = tiny.make_rows(75, seed=1, labels=(0, 1))
        arguments = transformers.TrainingArguments(
            output_dir=str(self.dir / "python"),
            per_device_train_batch_size=4,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            **{"optim": "adamw_torch_fused", **ARGUMENTS, **more},
        )
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=[dict(tokenizer(text, truncation=True, max_length=32), label=label) for text, label in rows],
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
        )
        torch.set_num_threads(1)
        trainer.train(resume_from_checkpoint=str(checkpoint))
        return trainer

    def check(self, name, ranks=1, output=False, ours_only=None, **more):
        """A run is resumed by us and, converted, by transformers: losses and weights are the same."""
        import torch
        from safetensors.torch import load_file

        self.our_run(name, ranks, **more, **(ours_only or {}))
        checkpoint = self.dir / name / f"checkpoint-{SAVED}"
        converted = self.dir / f"{name}-converted" if output else checkpoint
        result = self.convert(checkpoint, "--to", "trainer", *(["--output", converted] if output else []))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f'trainer.train(resume_from_checkpoint="{converted}")', result.stdout)
        self.assertTrue(json.loads((converted / "training_args.json").read_text())["learning_rate"])
        if not output:
            verified = subprocess.run([LOCKSTEP, "checkpoint", "verify", checkpoint], capture_output=True, text=True, timeout=120)
            self.assertEqual(verified.returncode, 0, verified.stdout)

        ours = self.our_run(name, ranks, resume_from_checkpoint=checkpoint, **more, **(ours_only or {}))[:STEPS]
        trainer = self.python_resumes(converted, **more)
        theirs = [entry for entry in trainer.state.log_history if "loss" in entry][:STEPS]
        self.assertEqual([entry["step"] for entry in theirs], list(range(1, STEPS + 1)))
        for mine, peer in zip(ours[SAVED:], theirs[SAVED:]):
            self.assertEqual(mine["step"], peer["step"])
            self.assertAlmostEqual(mine["learning_rate"], peer["learning_rate"], delta=1e-12)
            if mine["step"] <= SAVED + COMPARED:
                for key in ("loss", "grad_norm"):
                    self.assertAlmostEqual(mine[key], peer[key], delta=1e-5 * max(1, abs(peer[key])), msg=(key, mine, peer))
        if "ema_decay" not in (ours_only or {}):
            weights = load_file(self.dir / name / "model.safetensors")
            for key, value in trainer.model.state_dict().items():
                if key in weights and not key.endswith("key.bias"):  # its gradient is zero but for rounding, which Adam magnifies
                    torch.testing.assert_close(weights[key], value, rtol=1e-3, atol=1e-4, msg=key)
        return trainer, converted

    def test_next_losses_are_the_same(self):
        import torch

        _, converted = self.check("adamw")
        # The state of each parameter is where transformers' own optimizer has it.
        state = torch.load(converted / "optimizer.pt", weights_only=True)
        self.assertEqual([len(group["params"]) for group in state["param_groups"]], [17, 24])
        self.assertEqual([group["weight_decay"] for group in state["param_groups"]], [0.01, 0.0])
        self.assertTrue(all(group["fused"] for group in state["param_groups"]))
        self.assertEqual(state["state"][0]["step"], torch.tensor(float(SAVED)))
        self.assertEqual(torch.load(converted / "scheduler.pt", weights_only=True)["last_epoch"], SAVED)

    def test_other_arguments(self):
        self.check("adam", optim="adamw_torch", lr_scheduler_type="cosine", weight_decay=0, adam_beta2=0.95)

    def test_state_that_two_ranks_have_divided(self):
        self.check("divided", ranks=2, output=True, ours_only={"zero_redundancy_optimizer": True})

    def test_averaged_weights_need_another_directory(self):
        self.our_run("averaged", 1, ema_decay=0.9)
        checkpoint = self.dir / "averaged" / f"checkpoint-{SAVED}"
        result = self.convert(checkpoint, "--to", "trainer")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(
            result.stderr,
            r"checkpoint-24: its model.safetensors holds averaged weights \(ema_decay\), not those of the training; "
            r"name another directory for the converted checkpoint, --output DIR\n$",
        )
        self.assertFalse((checkpoint / "optimizer.pt").exists())
        self.check("averaged2", output=True, ours_only={"ema_decay": 0.9})

    def test_what_cannot_be_converted(self):
        self.our_run("model_alone", 1, save_only_model=True, max_steps=SAVED)
        for path, expected, code in (
            (self.dir / "model_alone", r"checkpoint-24 holds the model alone \(save_only_model\)", 2),
            (self.dir / "nothing", r"nothing (is not a directory|holds no complete checkpoint)", 1),
            (self.model, r"model holds no complete checkpoint", 1),
        ):
            result = self.convert(path, "--to", "trainer")
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertRegex(result.stderr, r"^lockstep checkpoint convert: error: \S+" + expected)
        self.our_run("damaged", 1, max_steps=SAVED)
        (self.dir / "damaged" / f"checkpoint-{SAVED}" / "optimizer.safetensors").write_bytes(b"")
        result = self.convert(self.dir / "damaged" / f"checkpoint-{SAVED}", "--to", "trainer")
        self.assertEqual(result.returncode, 1)
        self.assertIn("optimizer.safetensors", result.stderr)


if __name__ == "__main__":
    unittest.main()
