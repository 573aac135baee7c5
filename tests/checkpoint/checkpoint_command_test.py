"""`lockstep checkpoint` as users call it, and Python's own readers on what was saved."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import safetensors.torch
import torch

LOCKSTEP = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockstep")
SAVE = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "save_checkpoints")


class CheckpointCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_folder = pathlib.Path(folder.name) / "run"

    def save(self, count, *arguments):
        subprocess.run([SAVE, self.run_folder, str(count), *arguments], check=True, timeout=300)

    def command(self, *arguments):
        return subprocess.run([LOCKSTEP, "checkpoint", *map(str, arguments)], capture_output=True, text=True, timeout=300)

    def flip(self, file):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)

    def test_list_shows_the_newest_first_and_what_is_damaged(self):
        self.save(3)
        (self.run_folder / "checkpoint-2" / "counters.safetensors").unlink()
        (self.run_folder / "checkpoint-1" / "manifest.json").unlink()
        result = self.command("list", self.run_folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertRegex(lines[0], r"^checkpoint +step +size +files +ranks +saved +state$")
        self.assertRegex(lines[1], r"^checkpoint-3 +3 +[\d.]+ (B|KiB) +3 +1 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  complete$")
        self.assertRegex(lines[2], r"damaged: counters.safetensors: No such file or directory$")
        self.assertRegex(lines[3], r"has no manifest.json: it is no checkpoint, or was never complete$")

    def test_verify_compares_hashes_and_says_so_with_its_exit_code(self):
        self.save(2)
        result = self.command("verify", self.run_folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("as they were written"), 2)
        damaged = self.run_folder / "checkpoint-1" / "model.safetensors"
        self.flip(damaged)
        result = self.command("verify", self.run_folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"checkpoint-1: refused: {damaged} is damaged: its hash is ", result.stdout)
        self.assertIn("checkpoint-2: 3 files, ", result.stdout)
        self.assertEqual(self.command("verify", self.run_folder / "checkpoint-2").returncode, 0)

    def test_inspect_shows_files_tensors_and_scalars_of_the_newest_complete_one(self):
        self.save(2)
        self.flip(self.run_folder / "checkpoint-2" / "model.safetensors")
        result = self.command("inspect", self.run_folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("checkpoint-2 is not used: ", result.stderr)
        self.assertRegex(result.stdout, r"checkpoint-1: step 1, saved by 1 rank at ")
        self.assertRegex(result.stdout, r"\nmodel.safetensors +\d+  [0-9a-f]{16}\n")
        self.assertRegex(result.stdout, r"\nmodel.safetensors: 2 tensors\n")
        self.assertRegex(result.stdout, r"\n  weight +F32 +\[3, 4\]\n")
        self.assertRegex(result.stdout, r"\n  state\.0\.exp_avg +F32 +\[3, 4\]\n")
        self.assertRegex(result.stdout, r"\n  step += 1\n")
        self.assertRegex(result.stdout, r"\n  param_groups\.0\.lr += 0\.0\n")

    def test_mistakes_are_errors(self):
        self.run_folder.mkdir()
        for action in ("list", "verify", "inspect"):
            result = self.command(action, self.run_folder)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, r"holds no checkpoint-<step> directory")
            result = self.command(action, self.run_folder / "nothing")
            self.assertRegex(result.stderr, r"nothing is not a directory; expected a checkpoint")
        self.assertEqual(self.command().returncode, 2)
        self.assertIn("verify", self.command("--help").stdout)

    def test_python_reads_what_was_saved(self):
        self.save(1)
        checkpoint = self.run_folder / "checkpoint-1"
        model = safetensors.torch.load_file(checkpoint / "model.safetensors")
        self.assertTrue(torch.equal(model["weight"], torch.arange(12.0).view(3, 4)))
        optimizer = safetensors.torch.load_file(checkpoint / "optimizer.safetensors")
        self.assertEqual(sorted(optimizer), [f"state.{i}.{name}" for i in (0, 1) for name in ("exp_avg", "exp_avg_sq")])
        torch.testing.assert_close(optimizer["state.1.exp_avg"], torch.full((3,), 0.1))
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        self.assertEqual(manifest["step"], 1)
        self.assertEqual(manifest["files"]["model.safetensors"]["bytes"], (checkpoint / "model.safetensors").stat().st_size)

    def test_transformers_reads_the_shards(self):
        from transformers.trainer_utils import load_sharded_checkpoint

        self.save(1, "20")
        checkpoint = self.run_folder / "checkpoint-1"
        self.assertTrue((checkpoint / "model-00001-of-00002.safetensors").exists())
        linear = torch.nn.Linear(4, 3)
        load_sharded_checkpoint(linear, str(checkpoint), strict=True)
        self.assertTrue(torch.equal(linear.weight, torch.arange(12.0).view(3, 4)))
        self.assertTrue(torch.equal(linear.bias, torch.arange(3.0)))


if __name__ == "__main__":
    unittest.main()
