"""zoo/recipes/translate as its users meet it: training, checkpoints of epochs, translating, and what it says to mistakes."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
TINY = ["--d-model", 32, "--num-layers", 1, "--num-heads", 2, "--d-ff", 48, "--seq-len", 12, "--min-frequency", 1]
NUMBERS = "one two three four five six seven eight nine ten".split()
NUMERI = "uno due tre quattro cinque sei sette otto nove dieci".split()


def pairs(count, seed):
    """A language of which each word is another one's: 3 words at most, so that a tiny model learns it."""
    lines = []
    for i in range(count):
        words = [(seed + 7 * i + 3 * k * k + i // 10 * k) % 10 for k in range(1 + (i + seed) % 3)]
        lines.append((" ".join(NUMBERS[w] for w in words) + ".", " ".join(NUMERI[w] for w in words) + "."))
    return lines


class RecipeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_translate_"))
        cls.addClassCleanup(shutil.rmtree, cls.path)
        cls.data = cls.path / "data"
        cls.data.mkdir()
        cls.write("train", pairs(240, 0))
        cls.write("validation", pairs(20, 5))

    @classmethod
    def write(cls, name, lines, folder=None):
        for i, language in enumerate(("en", "it")):
            ((folder or cls.data) / f"{name}.{language}").write_text("".join(line[i] + "\n" for line in lines), encoding="utf-8")

    def run_recipe(self, *words, ranks=0, stdin="", code=0):
        command = [BIN / "translate", *words]
        if ranks:
            command = [BIN / "lockrun", "--standalone", "--nproc-per-node", ranks, *command]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, input=stdin)
        if code is not None:
            self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done

    def train(self, output, *words, **more):
        if "--data-dir" not in words:
            words = ("--data-dir", self.data, *words)
        return self.run_recipe(*TINY, "--output-dir", output, "--disable-tqdm", "--learning-rate", 0.01, *words, **more)

    def test_learns_saves_translates_and_goes_on(self):
        output = self.path / "weights"
        first = self.train(output, "--num-train-epochs", 8, "--tokens-per-batch", 100, "--dropout", 0, "--save-total-limit", 4)
        for word in ("   source: ", "   target: ", "predicted: ", "240 pairs to train on, 20 to validate on", "bleu", "cer", "wer"):
            self.assertIn(word, first.stdout)
        results = json.loads((output / "eval_results.json").read_text())
        self.assertGreater(results["eval_bleu"], 60)
        self.assertLess(results["eval_wer"], 0.3)
        links = sorted(path.name for path in output.glob("tmodel_*"))
        self.assertEqual(links, [f"tmodel_{epoch:02}" for epoch in range(4, 8)])  # the others' checkpoints are gone
        self.assertTrue(all((output / name / "model.safetensors").exists() for name in links))

        (self.path / "new.txt").write_text("two nine.\n\nfour.\n")
        done = self.run_recipe("--model-dir", output, "--input", self.path / "new.txt")
        self.assertEqual(len(done.stdout.splitlines()), 3)
        self.assertEqual(done.stdout.splitlines()[1], "")
        self.assertTrue(done.stdout.splitlines()[0].endswith("."))
        by_hand = self.run_recipe("--model-dir", output / "tmodel_07", "--interactive", stdin="two nine.\n" + "one " * 40 + "\nfour.\n")
        self.assertEqual(by_hand.stdout.splitlines(), [done.stdout.splitlines()[0], done.stdout.splitlines()[2]])
        self.assertIn("has 40 words; the model takes 10", by_hand.stderr)
        beams = self.run_recipe("--model-dir", output, "--input", "-", "--num-beams", 3, stdin="two nine.\n")
        self.assertEqual(len(beams.stdout.splitlines()), 1)

        again = self.train(output, "--num-train-epochs", 9, "--tokens-per-batch", 100, "--dropout", 0, "--preload", "latest")
        self.assertIn("resuming from", again.stderr)
        self.assertTrue((output / "tmodel_08").exists())
        missing = self.train(output, "--preload", 31, code=2)
        self.assertIn("has no tmodel_31; there are tmodel_04", missing.stderr)

    def test_two_ranks_resume_with_the_same_bits(self):
        common = ("--per-device-train-batch-size", 12, "--seed", 3)
        whole, parts = self.path / "whole", self.path / "parts"
        self.train(whole, "--num-train-epochs", 3, *common, ranks=2)
        self.train(parts, "--num-train-epochs", 2, *common, ranks=2)
        self.train(parts, "--num-train-epochs", 3, *common, "--preload", 1, ranks=2)
        self.assertEqual((whole / "model.safetensors").read_bytes(), (parts / "model.safetensors").read_bytes())
        losses = [json.loads((folder / "eval_results.json").read_text())["eval_loss"] for folder in (whole, parts)]
        self.assertEqual(*losses)

    def test_configuration_of_the_original_program(self):
        config = self.path / "config.json"
        output = self.path / "configured"
        config.write_text(
            json.dumps(
                {
                    "batch_size": 40,
                    "num_epochs": 1,
                    "lr": 1e-3,
                    "seq_len": 12,
                    "d_model": 32,
                    "num_layers": 1,
                    "num_heads": 2,
                    "d_ff": 48,
                    "data_dir": str(self.data),
                    "lang_src": "en",
                    "lang_tgt": "it",
                    "model_folder": str(output),
                    "model_basename": "tmodel_{0:02d}.pt",
                    "preload": "latest",
                    "tokenizer_file": "tokenizer_{0}.json",
                }
            )
        )
        done = self.run_recipe("--config", config, "--disable-tqdm", "--d-ff", 64)
        self.assertIn("240 samples, 6 steps of 40 samples", done.stdout)
        self.assertEqual(json.loads((output / "config.json").read_text())["d_ff"], 64)  # flags win
        self.assertTrue((output / "tmodel_00").exists())
        self.assertEqual(json.loads((output / "training_args.json").read_text())["adam_epsilon"], 1e-9)
        config.write_text('{"batch_sise": 4}')
        self.assertIn("config.json: unknown key batch_sise; there are batch_size,", self.run_recipe("--config", config, code=1).stderr)
        config.write_text('{"lr": "fast"}')
        self.assertIn('config.json: lr is "fast"; expected a number', self.run_recipe("--config", config, code=1).stderr)

    def refused(self, expected, *words, ranks=0, code=None, output="refused", **more):
        """One line that says what is wrong, and no output directory."""
        sizes = TINY if "--d-model" not in words else TINY[2:]
        done = self.run_recipe(*words, *sizes, "--output-dir", self.path / output, ranks=ranks, code=None, **more)
        self.assertNotEqual(done.returncode, 0)
        lines = [line for line in done.stderr.splitlines() if "error: " in line and not line.startswith((" ", "lockrun"))]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertIn(expected, lines[0])
        self.assertFalse((self.path / output).exists())

    def folder(self, name, train):
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        self.write("train", train, folder)
        return folder

    def test_preload_without_a_validation_set_and_before_the_first_epoch_ended(self):
        output = self.path / "unvalidated"
        words = ("--tokens-per-batch", 100, "--validation-split", 0, "--data-dir", self.without_validation(), "--preload", "latest")
        self.train(output, *words, "--max-steps", 3, "--save-strategy", "steps", "--save-steps", 2)
        self.assertEqual(list(output.glob("tmodel_*")), [])
        second = self.train(output, *words, "--num-train-epochs", 1)  # the first one was stopped in its epoch
        self.assertIn("resuming from", second.stderr)
        self.assertTrue((output / "tmodel_00" / "model.safetensors").exists())
        logical = self.train(self.path / "logical", *words, "--max-steps", 3, "--deterministic-world", 2)
        self.assertIn("3 steps of 2 samples", logical.stdout)  # of the logical ranks

        # What it translates to and from.
        self.assertIn("cannot read", self.run_recipe("--model-dir", output, "--input", self.path, code=1).stderr)
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [str(BIN / "translate"), "--model-dir", str(output), "--input", "-"],
                input="one.\n",
                text=True,
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=120,
            )
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write the translations: No space left on device", done.stderr)

    def without_validation(self):
        folder = self.path / "train-only"
        if not folder.exists():
            folder.mkdir()
            self.write("train", pairs(240, 0), folder)
        return folder

    def test_a_byte_order_mark_is_no_word(self):
        marked = self.folder("marked", pairs(240, 0))
        for file in marked.iterdir():
            file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
        outputs = [self.path / name for name in ("with-mark", "without-mark")]
        for output, folder in zip(outputs, (marked, self.without_validation())):
            self.train(output, "--data-dir", folder, "--validation-split", 0, "--max-steps", 2)
        for name in ("tokenizer_en.json", "tokenizer_it.json", "model.safetensors"):
            self.assertEqual(*((output / name).read_bytes() for output in outputs), name)
        # What is translated: the first line is the same sentence with a mark, a second mark is an unknown word.
        sentences = "two nine.\ntwo nine.\n"
        (self.path / "marked.txt").write_text("\ufeff" + sentences, encoding="utf-8")
        for words, stdin in (
            (("--input", self.path / "marked.txt"), ""),
            (("--input", "-"), "\ufeff" + sentences),
            (("--interactive",), "\ufeff" + sentences),
        ):
            lines = self.run_recipe("--model-dir", outputs[0], *words, stdin=stdin).stdout.splitlines()
            self.assertEqual(len(lines), 2)
            self.assertEqual(lines[0], lines[1], words)
        too_long = "one " * 10 + "\n"  # as many words as the model takes
        self.assertEqual(len(self.run_recipe("--model-dir", outputs[0], "--input", "-", stdin="\ufeff" + too_long).stdout.splitlines()), 1)

    def test_a_line_that_is_too_long_leaves_the_others(self):
        output = self.path / "short"
        self.train(output, "--max-steps", 2)
        ten = "one " * 10  # as many as the model takes
        lines = ["two nine.", "one " * 11, "", ten, "two " * 300]
        path = self.path / "lines.txt"
        path.write_text("\n".join(lines) + "\n")
        wanted = [self.run_recipe("--model-dir", output, "--input", "-", stdin=line + "\n").stdout[:-1] for line in (lines[0], ten, "two " * 10)]
        told = f"translate: 2 of 5 lines of {path} "
        for words, second, last, said in (
            ((), "", "", "are too long, and their translations empty"),
            (("--overlong", "cut"), wanted[1], wanted[2], "were cut"),
        ):
            done = self.run_recipe("--model-dir", output, "--input", path, *words)
            self.assertEqual(done.stdout.split("\n"), [wanted[0], second, "", wanted[1], last, ""])
            self.assertIn(told + said + "; the first: text 2 has 11 words; the model takes 10.", done.stderr)
        done = self.run_recipe("--model-dir", output, "--input", path, "--overlong", "error", code=None)
        self.assertEqual((done.returncode != 0, done.stdout), (True, ""))
        self.assertIn(f"{path}: text 2 has 11 words; the model takes 10. Cut it into sentences", done.stderr)

    def test_a_finished_run_that_is_started_again_is_scored_with_its_own_weights(self):
        output = self.path / "finished"
        words = ("--num-train-epochs", 8, "--tokens-per-batch", 100, "--dropout", 0, "--eval-strategy", "no")
        scores = []
        for preload in ((), ("--preload", "latest")):
            self.train(output, *words, *preload)
            scores.append(json.loads((output / "eval_results.json").read_text())["eval_bleu"])
        self.assertGreater(scores[0], 60)
        self.assertAlmostEqual(*scores, places=6)

    def test_an_evaluation_before_the_first_step_of_a_resume_has_the_checkpoints_weights(self):
        output = self.path / "end_of_epoch"
        words = ("--per-device-train-batch-size", 24, "--dropout", 0, "--lr-scheduler-type", "constant", "--eval-strategy", "epoch")
        words += ("--save-strategy", "steps", "--save-steps", 70)  # the last step of an epoch, before its evaluation
        scores = []
        for epochs, preload in ((7, ()), (8, ("--preload", "latest"))):
            self.train(output, "--num-train-epochs", epochs, *words, *preload)
            log = json.loads((output / "trainer_state.json").read_text())["log_history"]
            scores.append([entry["eval_bleu"] for entry in log if entry["step"] == 70 and "eval_bleu" in entry][0])
        self.assertGreater(scores[0], 20)
        self.assertEqual(*scores)

    def test_mistakes_are_named(self):
        good = pairs(30, 1)
        folder = self.folder("bad", good)
        with open(folder / "train.it", "a") as file:
            file.write("una riga in più\n")
        for ranks in (0, 2):
            self.refused("train.en has 30 lines and", "--data-dir", folder, ranks=ranks)
        self.refused(f"line 31 of {folder}/train.it has no translation", "--data-dir", folder)
        folder = self.folder("bad", [*good[:7], ("seven", " "), *good[7:]])
        self.refused("train.it:8: the line is empty", "--data-dir", folder)
        folder = self.folder("bad", [*good[:4], ("one", "uno " * 11), *good[4:], ("two " * 12, "due")])
        self.refused("train.it:5: the sentence has 11 words, the model takes 10 (seq_len 12", "--data-dir", folder, "--validation-split", 0)
        done = self.train(self.path / "dropped", "--data-dir", folder, "--drop-overlong", "--max-steps", 1, "--validation-split", 0)
        self.assertIn(
            f"30 pairs to train on, 0 to validate on, 2 too long and left out (the first: {folder}/train.it:5: the sentence has 11 words)",
            done.stdout,
        )
        (folder / "train.en").write_bytes(b"one\ntw\xffo\n")
        self.refused("train.en:2: byte 3 is not UTF-8", "--data-dir", folder)
        (folder / "train.en").write_bytes(b"")
        self.refused("train.en is empty", "--data-dir", folder)
        self.refused("no data: give --data-dir")
        self.refused(
            "--tokens-per-batch and --per-device-train-batch-size exclude each other",
            "--data-dir",
            self.data,
            "--tokens-per-batch",
            100,
            "--per-device-train-batch-size",
            4,
        )
        self.refused("are both en", "--data-dir", self.data, "--lang-tgt", "en")
        self.refused("--preload is first; expected latest or the number of an epoch", "--data-dir", self.data, "--preload", "first")
        self.refused("--d-model of the transformer is 33; it must be even and a multiple of --num-heads", "--data-dir", self.data, "--d-model", 33)

    def test_a_tokenizer_that_does_not_fit(self):
        output = self.path / "small"
        self.train(output, "--max-steps", 1)
        tokenizer = json.loads((output / "tokenizer_it.json").read_text())
        tokenizer["model"]["vocab"]["troppo"] = len(tokenizer["model"]["vocab"])
        (output / "tokenizer_it.json").write_text(json.dumps(tokenizer))
        done = self.run_recipe("--model-dir", output, "--input", "-", stdin="one.\n", code=1)
        self.assertIn("tokenizer_it.json has 16 tokens, the model's target_vocab_size is 15: it is not this model's tokenizer", done.stderr)
        tokens = json.loads((output / "tokenizer_en.json").read_text())
        del tokens["model"]["vocab"]["[SOS]"]
        tokens["added_tokens"] = [token for token in tokens["added_tokens"] if token["content"] != "[SOS]"]
        (output / "tokenizer_en.json").write_text(json.dumps(tokens))
        self.assertIn(
            "tokenizer_en.json has no token [SOS]",
            self.run_recipe("--data-dir", self.data, "--tokenizer-dir", output, *TINY, "--output-dir", self.path / "x", code=1).stderr,
        )
        self.assertIn("config.json", self.run_recipe("--model-dir", self.data, "--input", "-", code=1).stderr)


if __name__ == "__main__":
    unittest.main()
