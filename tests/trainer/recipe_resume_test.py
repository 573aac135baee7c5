"""What a resume does about each flag of a recipe, as its --show-resume-effects and the pages docs/recipes/resume*.md say."""

import json
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest

import tiny

PAGES = sorted((pathlib.Path(__file__).parents[2] / "docs/recipes").glob("resume*.md"))


def show_effects(recipe):
    done = subprocess.run([str(tiny.BIN / recipe), "--show-resume-effects"], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def rows_of(table):
    """{flag: (what a resume does, kind)}"""
    cells = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return {flag: (effect, kind) for flag, effect, kind, _ in cells}


def files_in(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


class Recipe:
    """A run that was stopped at its checkpoint 2 of 4, and resumes of copies of it."""

    def __init__(self, test, name, words):
        self.test, self.name, self.words = test, name, words
        self.rows = rows_of(show_effects(name))
        self.tested = set()
        self.first = self.begin(words)

    def run(self, folder, words):
        command = [tiny.BIN / self.name]
        for flag, value in words.items():
            command += [] if value is None else [flag] if value is True else [flag, value]
        command += ["--output-dir", folder, "--max-steps", 4, "--save-steps", 2, "--save-strategy", "steps", "--disable-tqdm"]
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)

    def begin(self, words):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.test.dir)) / "first"
        done = self.run(folder, words)
        self.test.assertEqual(done.returncode, 0, done.stderr)
        shutil.rmtree(folder / "checkpoint-4")
        (folder / "latest").write_text("checkpoint-2\n")
        return folder

    def resume(self, changes, first=None, **more):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.test.dir)) / "again"
        shutil.copytree(first or self.first, folder, symlinks=True)
        before = files_in(folder)
        words = {**self.words, "--resume-from-checkpoint": "auto", **changes, **more}
        return self.run(folder, words), before, files_in(folder)

    def refuses(self, changes, entries, first=None):
        """Every flag of `entries` is refused with that entry; nothing is written. All kinds named, the resume goes on."""
        done, before, after = self.resume(changes, first)
        self.test.assertNotEqual(done.returncode, 0, changes)
        self.test.assertEqual(before, after, changes)
        for flag, entry in entries.items():
            effect, kind = self.rows[flag]
            self.test.assertEqual(effect, "refused", flag)
            self.test.assertIn(f"{entry}: ", done.stderr, flag)
            self.test.assertRegex(done.stderr, rf"--resume-anyway \S*\b{kind}\b", flag)
        self.tested |= set(entries)

    def goes_on(self, changes, effect, flags):
        done, _, _ = self.resume(changes)
        self.test.assertEqual(done.returncode, 0, (changes, done.stderr))
        self.test.assertIn("checkpoint-2, step 2/4", done.stderr + done.stdout)
        for flag in flags:
            self.test.assertEqual(self.rows[flag][0], effect, flag)
        self.tested |= set(flags)
        return done

    def check_all_tested(self):
        self.test.assertEqual(set(self.rows), self.tested)


class RecipeResumeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_recipe_resume_"))
        cls.addClassCleanup(shutil.rmtree, cls.dir)

    def test_the_page_is_what_the_recipes_say(self):
        page = "\n".join(page.read_text() for page in PAGES)
        for recipe in ("bert_classify", "bert_ner", "bert_qa", "resnet_ddp", "translate"):
            self.assertIn(f"## {recipe}\n\n{show_effects(recipe)}", page)

    def test_bert_classify(self):
        draw = random.Random(3)

        def write(name, rows, more=""):
            path = self.dir / name
            path.write_text("text,label,other,label2\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows) + more)
            return path

        def make_rows(count):
            return [(" ".join(draw.choices(tiny.WORDS, k=6)), i % 3, " ".join(draw.choices(tiny.WORDS, k=5)), (i + 1) % 3) for i in range(count)]

        rows = make_rows(40)
        train, validation = write("train.csv", rows), write("validation.csv", make_rows(9))
        model = tiny.make_model(self.dir / "model")
        words = {
            "--model-name-or-path": model,
            "--ignore-mismatched-sizes": True,
            "--train-file": train,
            "--validation-file": validation,
            "--max-seq-length": 32,
        }
        recipe = Recipe(self, "bert_classify", words)

        recipe.refuses(
            {"--text-column": "other", "--text-pair-column": "text", "--label-column": "label2", "--max-seq-length": 16},
            {
                "--text-column": "text_column",
                "--text-pair-column": "text_pair_column",
                "--label-column": "label_column",
                "--max-seq-length": "max_seq_length",
            },
        )
        other_model = shutil.copytree(model, self.dir / "other_model")
        config = json.loads((model / "config.json").read_text())
        (other_model / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-9}))
        vocabulary = (model / "vocab.txt").read_text().split()
        (self.dir / "vocab.txt").write_text("\n".join(vocabulary[:5] + vocabulary[:4:-1]) + "\n")
        recipe.refuses(
            {
                "--train-file": write("edited.csv", [("good film", *rows[0][1:]), *rows[1:]]),
                "--validation-file": write("more.csv", make_rows(9)),
                "--label-names": "c,b,a",
                "--hidden-dropout": 0.3,
                "--attention-dropout": 0.3,
                "--tokenizer-name": self.dir / "vocab.txt",
                "--model-name-or-path": other_model,
            },
            {
                "--train-file": "train_data.hash",
                "--validation-file": "validation_data.hash",
                "--label-names": "labels",
                "--hidden-dropout": "model_config.hidden_dropout_prob",
                "--attention-dropout": "model_config.attention_probs_dropout_prob",
                "--tokenizer-name": "tokenizer.hash",
                "--model-name-or-path": "model_config.layer_norm_eps",
            },
        )
        (self.dir / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-9}))
        recipe.refuses(
            {"--model-name-or-path": None, "--model-config": self.dir / "config.json", "--tokenizer-name": model},
            {"--model-config": "model_config.layer_norm_eps"},
        )
        recipe.refuses({"--keep-labels": "0,1"}, {"--keep-labels": "train_data.rows"})
        recipe.refuses({"--validation-file": None, "--validation-split": 5}, {"--validation-split": "train_data.rows"})
        split = recipe.begin({**words, "--validation-file": None, "--validation-split": 5})
        recipe.refuses({"--validation-file": None, "--validation-split": 5, "--split-seed": 7}, {"--split-seed": "train_data.hash"}, split)
        bad = write("bad.csv", rows[1:], "too few\n")
        recipe.refuses({"--train-file": bad, "--skip-bad-rows": True}, {"--skip-bad-rows": "train_data.rows"})
        lone = self.dir / "lone.csv"
        lone.write_text(train.read_text().replace(rows[0][0], '"' + rows[0][0] + '"'))
        recipe.refuses({"--train-file": lone, "--no-quotes": True}, {"--no-quotes": "train_data.hash"})
        tabs = self.dir / "tabs.tsv"
        tabs.write_text("text\tlabel\n" + "".join(f'"{row[0]}"\t{row[1]}\n' for row in rows))
        recipe.refuses(
            {"--train-file": tabs, "--quotes": True},
            {"--quotes": "train_data.hash"},
            recipe.begin({**words, "--train-file": tabs, "--no-quotes": True}),
        )

        # The path does not count; a row that is left out does not either.
        done = recipe.goes_on(
            {
                "--train-file": write("padded.csv", rows, "too few\n"),
                "--skip-bad-rows": True,
                "--test-file": validation,
                "--do-predict": True,
                "--data-cache-dir": self.dir / "cache",
                "--pad-to-max-length": True,
                "--log-sample-ids": self.dir / "ids.jsonl",
                "--validation-file": None,
            },
            "new",
            ["--test-file", "--do-predict", "--data-cache-dir", "--pad-to-max-length", "--log-sample-ids"],
        )
        self.assertTrue((self.dir / "ids.jsonl").exists() and (self.dir / "cache").exists(), done.stdout)
        recipe.goes_on({"--ignore-mismatched-sizes": None}, "kept", ["--ignore-mismatched-sizes"])
        recipe.check_all_tested()

        # What may differ, and is recorded.
        done, _, after = recipe.resume({"--max-seq-length": 16, "--resume-anyway": "flags"})
        self.assertEqual(done.returncode, 0, done.stderr)
        records = [json.loads(text) for path, (_, text) in after.items() if path.parts[-2:] == ("checkpoint-4", "run_record.json")]
        self.assertIn("max_seq_length", json.dumps(records))
        self.assertIn("32", json.dumps(records))
        # A label that the head does not have stays an error.
        done, before, after = recipe.resume({"--train-file": write("odd.csv", [*rows[:-1], (*rows[-1][:1], 7, *rows[-1][2:])])})
        self.assertRegex(
            done.stderr,
            r'odd\.csv:41: label "7" in column label is unknown; expected one of LABEL_0, LABEL_1, LABEL_2 or a '
            r"number from 0 to 2.*A resume cannot add labels",
        )
        self.assertEqual(before, after)

    def other_bert(self, model, name):
        """The model with another configuration, that configuration alone, and a vocabulary in another order."""
        other = shutil.copytree(model, self.dir / f"other_{name}")
        config = json.loads((model / "config.json").read_text())
        for path in (other / "config.json", self.dir / f"{name}_config.json"):
            path.write_text(json.dumps({**config, "layer_norm_eps": 1e-9}))
        vocabulary = (model / "vocab.txt").read_text().split()
        (self.dir / f"{name}_vocab.txt").write_text("\n".join(vocabulary[:5] + vocabulary[:4:-1]) + "\n")
        return other, self.dir / f"{name}_config.json", self.dir / f"{name}_vocab.txt"

    BERT_ENTRIES = {
        "--hidden-dropout": "model_config.hidden_dropout_prob",
        "--attention-dropout": "model_config.attention_probs_dropout_prob",
        "--tokenizer-name": "tokenizer.hash",
        "--model-name-or-path": "model_config.layer_norm_eps",
    }

    def test_bert_ner(self):
        draw = random.Random(5)

        def write(name):
            rows = [{"tokens": draw.choices(tiny.WORDS, k=5), "ner_tags": [draw.choice(["O", "B-X"]) for _ in range(5)]} for _ in range(30)]
            rows[0]["ner_tags"] = ["B-X", "O"] * 2 + ["O"]
            rows = [{**row, "words": row["tokens"][::-1], "tags": row["ner_tags"][::-1]} for row in rows]
            (self.dir / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
            return self.dir / name

        model = tiny.make_model(self.dir / "ner_model")
        train, validation = write("ner.jsonl"), write("ner_validation.jsonl")
        words = {"--model-name-or-path": model, "--train-file": train, "--validation-file": validation, "--max-seq-length": 32}
        recipe = Recipe(self, "bert_ner", words)
        other, config, vocabulary = self.other_bert(model, "ner")
        recipe.refuses(
            {"--text-column-name": "words", "--label-column-name": "tags", "--max-seq-length": 16, "--label-all-tokens": True},
            {
                "--text-column-name": "text_column_name",
                "--label-column-name": "label_column_name",
                "--max-seq-length": "max_seq_length",
                "--label-all-tokens": "label_all_tokens",
            },
        )
        recipe.refuses(
            {
                "--train-file": write("ner_other.jsonl"),
                "--validation-file": write("ner_more.jsonl"),
                "--hidden-dropout": 0.3,
                "--attention-dropout": 0.3,
                "--tokenizer-name": vocabulary,
                "--model-name-or-path": other,
            },
            {"--train-file": "train_data.hash", "--validation-file": "validation_data.hash", **self.BERT_ENTRIES},
        )
        recipe.refuses(
            {"--model-name-or-path": None, "--model-config": config, "--tokenizer-name": model}, {"--model-config": "model_config.layer_norm_eps"}
        )
        bad = self.dir / "ner_bad.jsonl"
        bad.write_text(train.read_text().partition("\n")[2] + '{"tokens": 5}\n')
        recipe.refuses({"--train-file": bad, "--skip-bad-rows": True}, {"--skip-bad-rows": "train_data.rows"})
        recipe.goes_on(
            {
                "--test-file": validation,
                "--do-predict": True,
                "--pad-to-max-length": True,
                "--return-entity-level-metrics": True,
                "--log-sample-ids": self.dir / "ner_ids.jsonl",
                "--validation-file": None,
            },
            "new",
            ["--test-file", "--do-predict", "--pad-to-max-length", "--return-entity-level-metrics", "--log-sample-ids"],
        )
        recipe.goes_on({"--ignore-mismatched-sizes": True}, "kept", ["--ignore-mismatched-sizes"])
        recipe.check_all_tested()
        odd = self.dir / "ner_odd.jsonl"
        odd.write_text(train.read_text().replace("B-X", "B-Y", 1))
        done, before, after = recipe.resume({"--train-file": odd})
        self.assertRegex(done.stderr, r'ner_odd\.jsonl:1: label "B-Y" is unknown; expected one of B-X, O.*A resume cannot add labels')
        self.assertEqual(before, after)

    def test_bert_qa(self):
        draw = random.Random(6)

        def write(name, count=20, more=()):
            rows = [
                {
                    "id": str(row),
                    "question": "who is " + draw.choice(tiny.WORDS),
                    "context": " ".join(draw.choices(tiny.WORDS, k=30)),
                    "answers": {"text": [], "answer_start": []},
                }
                for row in range(count)
            ]
            for row in rows:
                row["answers"] = {"text": [row["context"].split()[0]], "answer_start": [0]}
            (self.dir / name).write_text(json.dumps({"data": [*rows, *more]}))
            return self.dir / name

        model = tiny.make_model(self.dir / "qa_model")
        train, validation = write("qa.json"), write("qa_validation.json")
        words = {"--model-name-or-path": model, "--train-file": train, "--validation-file": validation, "--max-seq-length": 32, "--doc-stride": 8}
        recipe = Recipe(self, "bert_qa", words)
        other, config, vocabulary = self.other_bert(model, "qa")
        recipe.refuses(
            {"--max-seq-length": 24, "--doc-stride": 4, "--no-pad-to-max-length": True, "--version-2-with-negative": True},
            {
                "--max-seq-length": "max_seq_length",
                "--doc-stride": "doc_stride",
                "--no-pad-to-max-length": "no_pad_to_max_length",
                "--version-2-with-negative": "version_2_with_negative",
            },
        )
        recipe.refuses(
            {
                "--train-file": write("qa_other.json"),
                "--validation-file": write("qa_more.json"),
                "--hidden-dropout": 0.3,
                "--attention-dropout": 0.3,
                "--tokenizer-name": vocabulary,
                "--model-name-or-path": other,
            },
            {"--train-file": "train_data.hash", "--validation-file": "validation_data.hash", **self.BERT_ENTRIES},
        )
        recipe.refuses(
            {"--model-name-or-path": None, "--model-config": config, "--tokenizer-name": model}, {"--model-config": "model_config.layer_norm_eps"}
        )
        recipe.refuses(
            {"--train-file": write("qa_bad.json", 19, [{"id": "bad", "context": "x"}]), "--skip-bad-rows": True},
            {"--skip-bad-rows": "train_data.rows"},
        )
        recipe.goes_on(
            {
                "--test-file": validation,
                "--do-predict": True,
                "--n-best-size": 3,
                "--max-answer-length": 4,
                "--log-sample-ids": self.dir / "qa_ids.jsonl",
                "--validation-file": None,
            },
            "new",
            ["--test-file", "--do-predict", "--n-best-size", "--max-answer-length", "--log-sample-ids"],
        )
        self.assertEqual(recipe.rows["--null-score-diff-threshold"][0], "new")  # of version 2 only
        recipe.tested.add("--null-score-diff-threshold")
        recipe.check_all_tested()

    def test_resnet_ddp(self):
        from PIL import Image

        draw = random.Random(4)

        def pictures(name, classes=("a", "b", "c"), count=6):
            for split in ("train", "test"):
                for label in classes:
                    folder = self.dir / name / split / label
                    folder.mkdir(parents=True)
                    for i in range(count):
                        Image.frombytes("RGB", (12, 12), draw.randbytes(3 * 144)).save(folder / f"{i}.png")
            return self.dir / name

        data = pictures("pictures")
        recipe = Recipe(self, "resnet_ddp", {"--data-dir": data, "--width": 4, "--batch-size": 4, "--crop-padding-mode": "constant"})
        own = {
            "--rotation": 5,
            "--brightness": 0.1,
            "--contrast": 0.1,
            "--saturation": 0.1,
            "--hue": 0.1,
            "--mixup-alpha": 0.5,
            "--cutmix-alpha": 0.5,
            "--crop-padding": 1,
            "--flip-probability": 0.3,
            "--crop-fill": 9,
            "--sync-bn": True,
        }
        sizes = {
            "--image-size": (16, "image_size"),
            "--width": (8, "width"),
            "--num-classes": (9, "num_classes"),
            "--depth": (34, "blocks"),
            "--stem": ("stride2", "stem"),
        }
        recipe.refuses(own, {flag: flag[2:].replace("-", "_") for flag in own})
        recipe.refuses(
            {**{flag: value for flag, (value, _) in sizes.items()}, "--random-seed": 5},
            {**{flag: f"model_config.{key}" for flag, (_, key) in sizes.items()}, "--random-seed": "seed"},
        )
        recipe.refuses({"--crop-padding-mode": "edge"}, {"--crop-padding-mode": "crop_padding_mode"})
        recipe.refuses({"--data-dir": pictures("fewer", count=5)}, {"--data-dir": "train_data.rows"})
        renamed = shutil.copytree(data, self.dir / "renamed")
        for split in ("train", "test"):
            (renamed / split / "a").rename(renamed / split / "z")
        done, before, after = recipe.resume({"--data-dir": renamed})
        self.assertIn('classes: ["a","b","c"] in the checkpoint, now ["b","c","z"]', done.stderr.replace('", "', '","'))
        self.assertEqual(before, after)
        done, before, after = recipe.resume({"--batch-size": 2})
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(before, after)
        self.assertEqual(recipe.rows["--batch-size"][0], "new")
        recipe.tested.add("--batch-size")
        recipe.goes_on(
            {"--model-filename": "x.pth", "--local-rank": 1, "--num-epochs": 99, "--log-sample-ids": self.dir / "ids.jsonl"},
            "new",
            ["--model-filename", "--local-rank", "--num-epochs", "--log-sample-ids", "--model-dir"],
        )
        recipe.goes_on({"--resume": True, "--resume-from-checkpoint": None}, "new", ["--resume"])
        recipe.goes_on({"--ignore-mismatched-sizes": True}, "kept", ["--ignore-mismatched-sizes"])
        recipe.check_all_tested()

    def test_translate(self):
        numbers = [("one two", "uno due"), ("three", "tre"), ("four one", "quattro uno"), ("two", "due"), ("three four", "tre quattro")] * 5

        def write(name, pairs, languages=("en", "it", "de", "fr")):
            (self.dir / name).mkdir()
            for split, lines in (("train", pairs), ("validation", pairs[:4])):
                for i, language in enumerate(languages):
                    (self.dir / name / f"{split}.{language}").write_text("".join(pair[i % 2] + "\n" for pair in lines))
            return self.dir / name

        data = write("sentences", numbers)
        words = {
            "--data-dir": data,
            "--d-model": 16,
            "--num-layers": 1,
            "--num-heads": 2,
            "--d-ff": 24,
            "--seq-len": 12,
            "--min-frequency": 1,
            "--tokens-per-batch": 40,
        }
        recipe = Recipe(self, "translate", words)
        own = {"--lang-src": "de", "--lang-tgt": "fr", "--drop-overlong": True, "--tokens-per-batch": 50, "--vocab-size": 20, "--min-frequency": 2}
        sizes = {"--seq-len": 14, "--d-model": 8, "--num-layers": 2, "--num-heads": 4, "--d-ff": 8, "--dropout": 0.3}
        recipe.refuses(
            {**own, **sizes},
            {**{flag: flag[2:].replace("-", "_") for flag in own}, **{flag: "model_config." + flag[2:].replace("-", "_") for flag in sizes}},
        )
        other = write("other", [("four four", "quattro quattro"), *numbers[1:]])
        recipe.refuses({"--data-dir": other}, {"--data-dir": "train_data.hash"})
        for split, first in (("", "train"), ("validation-", "validation")):
            for side, language in (("source", "en"), ("target", "it")):
                flag = f"--{split}{side}-file"
                recipe.refuses({flag: other / f"{first}.{language}"}, {flag: f"{first}_data.hash"})
        alone = self.dir / "alone"
        alone.mkdir()
        for language in ("en", "it"):
            shutil.copy(data / f"train.{language}", alone)
        split = recipe.begin({**words, "--data-dir": alone, "--validation-split": 0.2})
        recipe.refuses({"--data-dir": alone, "--validation-split": 0.4}, {"--validation-split": "train_data.rows"}, split)
        tokenizers = recipe.begin({**words, "--data-dir": other, "--vocab-size": 6})
        recipe.refuses({"--tokenizer-dir": tokenizers}, {"--tokenizer-dir": "source_tokenizer.hash"})
        (self.dir / "config.json").write_text('{"num_epochs": 50}')
        recipe.goes_on(
            {
                "--config": self.dir / "config.json",
                "--validation-examples": 1,
                "--num-beams": 2,
                "--length-penalty": 0.5,
                "--max-new-tokens": 4,
                "--translate-batch-size": 2,
                "--overlong": "cut",
                "--model-dir": self.dir,
                "--log-sample-ids": self.dir / "ids.jsonl",
            },
            "new",
            [
                "--config",
                "--validation-examples",
                "--num-beams",
                "--length-penalty",
                "--max-new-tokens",
                "--translate-batch-size",
                "--overlong",
                "--model-dir",
                "--log-sample-ids",
            ],
        )
        recipe.goes_on({"--preload": "latest", "--resume-from-checkpoint": None}, "new", ["--preload"])
        (self.dir / "input.txt").write_text("one two\n")
        for changes in ({"--input": self.dir / "input.txt"}, {"--interactive": True}):
            flag = next(iter(changes))
            done, before, after = recipe.resume(changes)
            self.assertEqual((done.returncode, before), (0, after), done.stderr)
            self.assertEqual(recipe.rows[flag][0], "new")
            recipe.tested.add(flag)
        recipe.check_all_tested()

    def test_a_checkpoint_of_another_recipe_is_refused(self):
        folder = self.dir / "of_another_recipe"
        train = tiny.write_csv(self.dir / "another.csv", tiny.make_rows(20, seed=1, labels=(0, 1)))
        done = tiny.run({"--model-name-or-path": tiny.prepared_model(), "--train-file": train, "--max-steps": 1, "--output-dir": folder})
        self.assertEqual(done.returncode, 0, done.stderr)
        (self.dir / "pairs.en").write_text("one two\n" * 9)
        (self.dir / "pairs.it").write_text("uno due\n" * 9)
        command = [
            tiny.BIN / "translate",
            "--source-file",
            self.dir / "pairs.en",
            "--target-file",
            self.dir / "pairs.it",
            "--lang-src",
            "en",
            "--lang-tgt",
            "it",
            "--output-dir",
            self.dir / "new",
            "--resume-from-checkpoint",
            folder / "checkpoint-1",
        ]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("checkpoint-1 has no translation.json: it is no model of translate", done.stderr)
        self.assertFalse((self.dir / "new").exists())

    def test_seeds_that_are_not_given_are_the_checkpoints(self):
        pairs = [("one two", "uno due"), ("two three", "due tre"), ("three", "tre"), ("four one", "quattro uno")] * 5
        data = self.dir / "seeds"
        data.mkdir()
        for i, language in enumerate(("en", "it")):
            (data / f"train.{language}").write_text("".join(f"{pair[i]} {number % 7}\n" for number, pair in enumerate(pairs)))
        words = {
            "--data-dir": data,
            "--lang-src": "en",
            "--lang-tgt": "it",
            "--d-model": 16,
            "--num-layers": 1,
            "--num-heads": 2,
            "--d-ff": 24,
            "--seq-len": 12,
            "--min-frequency": 1,
            "--validation-split": 0.2,
        }  # which --seed chooses
        recipe = Recipe(self, "translate", words)
        first = recipe.begin({**words, "--seed": 7})
        whole = self.dir / "whole"
        self.assertEqual(recipe.run(whole, {**words, "--seed": 7}).returncode, 0)
        done, _, after = recipe.resume({}, first)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("seed 7 as the checkpoint's run, since the flag is not given", done.stderr)
        (weights,) = (text for path, (_, text) in after.items() if path.name == "model.safetensors" and path.parent.name == "again")
        self.assertEqual(weights, (whole / "model.safetensors").read_bytes())
        done, before, after = recipe.resume({"--seed": 42}, first)
        self.assertIn("seed: 7 in the checkpoint, now 42", done.stderr)
        self.assertEqual(before, after)

    def test_an_unknown_metric_lists_the_known_ones(self):
        train = tiny.write_csv(self.dir / "metric.csv", tiny.make_rows(20, seed=1, labels=(0, 1)))
        done = tiny.run(
            {
                "--model-name-or-path": tiny.make_model(self.dir / "metric"),
                "--train-file": train,
                "--validation-file": train,
                "--max-steps": 2,
                "--eval-strategy": "steps",
                "--eval-steps": 1,
                "--save-steps": 1,
                "--output-dir": self.dir / "m",
                "--load-best-model-at-end": True,
                "--metric-for-best-model": "beauty",
            }
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(
            "--metric-for-best-model is eval_beauty, which the evaluation does not give; it gives eval_accuracy, eval_f1, eval_loss, "
            "eval_macro_f1, eval_precision, eval_recall",
            done.stderr,
        )
        self.assertFalse((self.dir / "m").exists())  # at the start, not after the first evaluation

    def test_a_vocabulary_is_the_checkpoints(self):
        """A run from scratch makes it of the training texts; a resume with more of them keeps the numbers of its words."""
        rows = tiny.make_rows(40, seed=1, labels=(0, 1))
        words = {"--model-config": "small", "--train-file": tiny.write_csv(self.dir / "scratch.csv", rows)}
        recipe = Recipe(self, "bert_classify", words)
        more = tiny.write_csv(self.dir / "more_rows.csv", [("zebra zebra zebra", 0), ("zebra zebra", 1), *rows])
        done, before, after = recipe.resume({"--train-file": more})
        self.assertIn("train_data.rows: 40", done.stderr)
        self.assertEqual(before, after)
        done, before, after = recipe.resume({"--train-file": more, "--resume-anyway": "data"})
        self.assertEqual(done.returncode, 0, done.stderr)
        vocabulary = [text for path, (_, text) in after.items() if path.name == "vocab.txt"]
        self.assertEqual(len(set(vocabulary)), 1)
        self.assertNotIn(b"zebra", vocabulary[0])


if __name__ == "__main__":
    unittest.main()
