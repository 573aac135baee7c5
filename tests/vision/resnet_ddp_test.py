"""resnet_ddp on small pictures: what it writes, resumes from and repeats."""

import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest

from torchvision_peer import torchvision

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from resnet_runs import log_of, run, run_and_kill
from vision_probe import write_icons

MEAN, STD = torch.tensor([[0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]]).view(2, 3, 1, 1)


class ResNetDdp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.data = pathlib.Path(temporary.name) / "data"
        cls.paths = write_icons(cls.data, classes=("apps", "devices", "places"), each=9, size=12)

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)

    def train(self, name, *flags, data=None, **options):
        output = self.directory / name
        done = run(data or self.data, output, *flags, **options)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        return output, done.stdout

    def assert_same_weights(self, a, b):
        first, second = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
        self.assertEqual(first.keys(), second.keys())
        for name in first:
            self.assertTrue(torch.equal(first[name], second[name]), name)

    def test_the_labs_flags(self):
        output, text = self.train(
            "out",
            "--num_epochs",
            2,
            "--learning_rate",
            0.05,
            "--random_seed",
            3,
            "--local_rank",
            0,
            "--model_filename",
            "resnet.pth",
            "--batch_size",
            5,
        )
        self.assertIn("27 + 27 pictures of 12x12 pixels in 3 classes", text)
        self.assertIn("6 steps of 10 samples", text)  # 27 samples: 3 steps an epoch
        for epoch in (1, 2):
            self.assertRegex(text, rf"epoch {epoch}: [0-9.]+ s on rank 0, [0-9.]+ s on rank 1, [0-9]+ images/s")
        self.assertRegex(text, r"loss +accuracy +f1 +macro_f1 +precision +recall +samples/s")
        self.assertRegex(text, r"eval +\d+\.\d+ +0\.\d+ +\d+")
        self.assertEqual({path.name for path in output.glob("checkpoint-*")}, {"checkpoint-3", "checkpoint-6"})
        self.assertEqual(len([entry for entry in log_of(output) if "eval_accuracy" in entry]), 2)  # each epoch
        # Python's DistributedDataParallel reads what was written: a gradient-free check of names and values.
        saved = torch.load(output / "resnet.pth", weights_only=True)
        own = load_file(output / "model.safetensors")
        wanted = {"module." + name for name in torchvision.models.resnet18().state_dict()}
        self.assertEqual(set(saved), {name for name in wanted if not name.endswith("num_batches_tracked")})
        for name, tensor in saved.items():
            self.assertTrue(torch.equal(tensor, own[name.removeprefix("module.")]), name)

    def test_a_resumed_run_is_the_undisturbed_one_whatever_the_workers(self):
        flags = ["--num-epochs", 4, "--rotation", 10, "--hue", 0.1]
        whole, _ = self.train("whole", *flags)
        resumed = self.directory / "resumed"
        shutil.copytree(whole, resumed, ignore=shutil.ignore_patterns("checkpoint-16"))
        (resumed / "model.safetensors").unlink()
        (resumed / "latest").write_text("checkpoint-12")
        _, text = self.train("resumed", *flags, "--resume", "--dataloader-num-workers", 2)
        self.assertNotIn("epoch 3:", text)
        self.assertIn("epoch 4:", text)
        self.assert_same_weights(whole, resumed)
        other, _ = self.train("other", *flags, "--seed", 1)
        self.assertNotEqual(*(log_of(output)[0] for output in (whole, other)))

    def peer_loss(self, model):
        """Of the test pictures, by torchvision's model."""
        images = torch.stack([torch.from_numpy(np.asarray(Image.open(path)).copy()).permute(2, 0, 1) for path in self.paths["test"]])
        labels = torch.arange(27) // 9
        model.eval()
        with torch.no_grad():
            outputs = model((images / 255 - MEAN) / STD)
        return torch.nn.functional.cross_entropy(outputs, labels).item(), (outputs.argmax(1) == labels).float().mean().item()

    def test_a_rank_replaced_within_an_epoch_goes_on_with_its_transforms(self):
        # Without the average, whose statistics are each rank's own, ranks are replaced.
        flags = ["--num-epochs", 10, "--batch-size", 2, "--learning-rate", 0.01, "--ema-decay", 0, "--logging-steps", 1]
        whole, _ = self.train("whole", *flags)
        for attempt in range(5):
            healed = self.directory / f"healed{attempt}"
            text = run_and_kill(self.data, healed, *flags, line="step 23/")
            self.assert_same_weights(whole, healed)
            found = re.search(r"killed by SIGKILL at step (\d+); replaced", text)
            if found and int(found[1]) % 7 not in (0, 6):  # 27 samples: 7 steps an epoch
                return
        self.fail("the rank died at the edge of an epoch, or at the job's end, each time")

    def test_resume_takes_weights_of_other_libraries(self):
        torch.manual_seed(1)
        model = torchvision.models.resnet18()  # 1000 outputs, as the lab's script leaves it
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if "running" in name:
                    buffer.uniform_(0.5, 1.5)
        state = model.state_dict()
        wanted, accuracy = self.peer_loss(model)
        flags = ["--resume", "--eval-on-start", "--max-steps", 1, "--batch-size", 2, "--num-classes", 1000]
        for name, save in (
            ("resnet_distributed.pth", lambda path: torch.save({"module." + k: v for k, v in state.items()}, path)),
            ("bare.pth", lambda path: torch.save(state, path)),
            ("bare.safetensors", lambda path: save_file(state, path)),
        ):
            with self.subTest(name):
                output = self.directory / ("out-" + name)
                output.mkdir()
                save(output / name)
                more = [] if name == "resnet_distributed.pth" else ["--model-filename", name]
                _, text = self.train("out-" + name, *flags, *more, small=False)
                self.assertIn(f"weights of {output / name}", text)
                first = next(entry for entry in log_of(output) if "eval_loss" in entry)
                self.assertAlmostEqual(first["eval_loss"], wanted, delta=2e-4 * wanted)
                self.assertAlmostEqual(first["eval_accuracy"], accuracy, delta=1e-6)
        # The pictures have 3 classes: 997 outputs of that head are for others.
        output = self.directory / "other"
        output.mkdir()
        torch.save(state, output / "bare.pth")
        words = ["--resume", "--model-filename", "bare.pth", "--max-steps", 1, "--batch-size", 2]
        done = run(self.data, output, *words, ranks=1, small=False)
        self.assertRegex(
            done.stderr,
            r"fc\.weight has shape \[1000, 512\]; the 3 classes of the pictures in \S+ need \[3, 512\]; "
            r"--ignore-mismatched-sizes makes a new head, --num-classes 1000 keeps this one",
        )
        done = run(self.data, output, *words, "--ignore-mismatched-sizes", ranks=1, small=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("its head of 1000 outputs is not used: newly initialized", done.stderr)
        self.assertEqual(load_file(output / "model.safetensors")["fc.weight"].shape, (3, 512))

    def test_the_weights_of_an_averaged_model_and_a_run_that_begins_with_them(self):
        data = self.directory / "pictures"
        shutil.copytree(self.data, data)
        for split in ("train", "test"):  # a name that is no UTF-8
            os.rename(data / split / "apps", os.fsencode(data / split) + b"/\xff")
        flags = ["--save-strategy", "no", "--ema-decay", 0.9, "--max-steps", 2]
        for more in (["--stem", "stride2"], ["--resume"], ["--overwrite-output-dir", "--stem", "stride2", "--model-filename", "deep/own.pth"]):
            output, text = self.train("out", *flags, *more, data=data, ranks=1)
            name = more[-1] if "--model-filename" in more else "resnet_distributed.pth"
            saved, own = torch.load(output / name, weights_only=True), load_file(output / "model.safetensors")
            for tensor, value in saved.items():
                self.assertTrue(torch.equal(value, own[tensor.removeprefix("module.")]), tensor)
            self.assertIn("\ufffd", json.loads((output / "config.json").read_text())["classes"])
            self.assertEqual(more == ["--resume"], "weights of" in text)
            self.assertIn("stride2 stem", text)
        config = json.loads((output / "config.json").read_text())
        self.assertEqual(config["stem"], "stride2")
        # Weights tell the size of the first layer, and config.json its stride.
        for stem in ("cifar", None):
            (output / "config.json").write_text(json.dumps(config | {"stem": stem}))
            _, text = self.train("out", *flags, "--resume", "--model-filename", "deep/own.pth", "--eval-on-start", data=data, ranks=1)
            self.assertIn("cifar stem", text)

    def test_what_two_ranks_evaluate_is_what_is_saved(self):
        # Without --sync-bn each rank's last forward pass has left statistics of its own.
        output, _ = self.train("out", "--num-epochs", 2, "--ema-decay", 0.5, "--load-best-model-at-end")
        best = min(entry["eval_loss"] for entry in log_of(output) if "eval_loss" in entry)
        again, _ = self.train(
            "again",
            "--resume",
            "--model-filename",
            output / "resnet_distributed.pth",
            "--eval-on-start",
            "--max-steps",
            1,
            "--save-strategy",
            "no",
            ranks=1,
        )
        saved = next(entry["eval_loss"] for entry in log_of(again) if "eval_loss" in entry)
        self.assertAlmostEqual(saved, best, delta=1e-5 * best)

    def test_a_resumed_checkpoint_keeps_its_stem(self):
        # The stem's stride is no part of the weights: of pictures of this size it would be another one.
        flags = ["--stem", "stride2", "--max-steps", 2, "--save-steps", 1, "--save-strategy", "steps"]
        output, _ = self.train("out", *flags, ranks=1)
        whole = self.directory / "whole"
        shutil.copytree(output, whole)
        for path in (output / "checkpoint-2").iterdir():
            path.unlink()
        (output / "checkpoint-2").rmdir()
        (output / "latest").write_text("checkpoint-1\n")
        for resume in (["--resume"], ["--resume-from-checkpoint", "auto"], ["--resume-from-checkpoint", output / "checkpoint-1"]):
            _, text = self.train("out", *flags[2:], *resume, ranks=1)
            self.assertIn("stride2 stem", text)
            self.assert_same_weights(whole, output)
        done = run(self.data, output, "--stem", "cifar", "--max-steps", 3, "--resume", ranks=1)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn('model_config.stem: "stride2" in the checkpoint, now "cifar"', done.stderr)

    def test_a_directory_whose_name_is_no_utf8(self):
        for more in ([], ["--resume"]):
            output, _ = self.train(
                "\udcff",
                "--max-steps",
                2 + len(more),
                "--eval-strategy",
                "steps",
                "--eval-steps",
                1,
                "--load-best-model-at-end",
                "--save-strategy",
                "steps",
                "--save-steps",
                1,
                *more,
            )
            state = json.loads((output / "trainer_state.json").read_text())
            self.assertIn("\ufffd/checkpoint-", state["best_model_checkpoint"])
            self.assertEqual(json.loads((output / "training_args.json").read_text())["output_dir"][-1], "\ufffd")

    def test_a_last_batch_of_few_pictures_is_told(self):
        for batch, more, told in (
            (11, [], "the last batch of each epoch has 5 pictures for 2 ranks"),
            (13, [], "the last batch of each epoch has 1 picture for 2 ranks"),
            (11, ["--dataloader-drop-last"], None),
            (11, ["--sync-bn"], None),
            (8, [], None),
        ):
            with self.subTest(batch=batch, more=more):
                done = run(self.data, self.directory / "out", "--fast-dev-run", 1, "--batch-size", batch, *more)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stderr.count("harms training"), int(told is not None), done.stderr)
                self.assertIn(told or "", done.stderr)

    def test_synchronized_batch_norm_makes_two_ranks_as_one(self):
        losses = []
        for ranks, batch, more in ((1, 8, []), (2, 4, ["--sync-bn"]), (2, 4, [])):
            output, _ = self.train(
                f"out{len(losses)}",
                "--batch-size",
                batch,
                "--num-epochs",
                1,
                "--logging-steps",
                1,
                "--learning-rate",
                0.01,
                "--mixup-alpha",
                0,
                "--cutmix-alpha",
                0,
                *more,
                ranks=ranks,
            )
            losses.append([entry["loss"] for entry in log_of(output) if "loss" in entry][:3])
        # The pictures and their transforms are the same: they depend on seed, epoch and sample alone.
        np.testing.assert_allclose(losses[0], losses[1], rtol=2e-4)
        self.assertGreater(np.abs(np.subtract(losses[0], losses[2])).max(), 1e-3)

    def test_bf16_and_stems(self):
        for flags in (["--bf16"], ["--stem", "imagenet", "--depth", 34, "--image-size", 40], ["--image-size", 20, "--num-classes", 7]):
            with self.subTest(flags):
                _, text = self.train("out" + flags[0], "--num-epochs", 1, *flags)
                self.assertRegex(text, r"eval +\d+\.\d+ +[01]\.\d+")


if __name__ == "__main__":
    unittest.main()
