"""Every mistake is one line that names the thing, a non-zero exit, and nothing written: alone and on two ranks."""

import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import unittest

import tiny


# Flags with values that any text suits at first. Errors name the file, the column or the label.
FREE = {
    "model-name-or-path",
    "tokenizer-name",
    "train-file",
    "validation-file",
    "text-column",
    "text-pair-column",
    "label-column",
    "label-names",
    "data-cache-dir",
    "log-sample-ids",
    "run-name",
    "project",
}
# A value that cannot work, where "-7x" would, and the flags without which nobody would notice.
BAD = {
    "model-config": {"": "small"},
    "keep-labels": {"": "positive"},
    "run-id": {"": "a/b"},
    "output-dir": {"": "{dir}/another_run"},
    "metric-for-best-model": {
        "": "-7x",
        "--load_best_model_at_end": True,
        "--eval_strategy": "epoch",
        "--save_strategy": "epoch",
        "--validation_file": "{dir}/train.csv",
    },
}


class ManyRuns:
    """bert_classify in copies of one process (classify_many.cpp)."""

    def __init__(self):
        self.process = subprocess.Popen(
            [pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "classify_many"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder, arguments, ranks):
        """([exit code of each rank], [its standard error])"""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = [ranks or 0, port, folder, *tiny.command(arguments)[1:]]
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        codes = [int(code) for code in self.process.stdout.readline().split()]
        return codes, [(folder / f"{rank}.err").read_text() for rank in range(len(codes))]

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


class BadInputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_bad_input_"))
        cls.model = tiny.make_model(cls.dir / "model")
        config = json.loads((cls.model / "config.json").read_text())
        names = {"id2label": {"0": "positive", "1": "negative"}, "label2id": {"positive": 0, "negative": 1}}
        (cls.model / "config.json").write_text(json.dumps({**config, **names}))
        cls.train = tiny.write_csv(cls.dir / "train.csv", tiny.make_rows(20, seed=1))
        cls.many = ManyRuns()
        cls.addClassCleanup(cls.many.end)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)

    def setUp(self):
        self.launched = set()

    def file(self, name, text):
        (self.dir / name).write_text(text)
        return self.dir / name

    def check(self, expected, ranks=(None, 2), **changes):
        """bert_classify with a good command line but for `changes` fails with one line that matches `expected`. The first in
        each test is started as a user does."""
        flags = {"--model-name-or-path": self.model, "--train-file": self.train, "--max-steps": 2}
        for key, value in changes.items():
            flag = "--" + key.replace("_", "-")
            flags.pop(flag, None)
            if value is not None:
                flags[flag] = value
        for count in ranks:
            folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
            arguments = {"--output-dir": folder / "out", **flags}
            if count in self.launched:
                self.check_copies(expected, folder, arguments, count)
            else:
                self.check_launched(expected, arguments, count)
            self.launched.add(count)
            written = [path.name for path in (folder / "out").rglob("*")] if (folder / "out").exists() else []
            self.assertEqual(written, [])

    def check_launched(self, expected, arguments, count):
        done = tiny.run(arguments, count)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        said = [line for line in (done.stdout + done.stderr).splitlines() if re.match(r"(\[rank \d+\]: )?bert_classify: error: ", line)]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertRegex(said[0], expected)
        if count is None:
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        else:
            self.assertIn("[rank 0]", said[0])

    def check_copies(self, expected, folder, arguments, count):
        codes, errors = self.many.run(folder, arguments, count)
        self.assertEqual(len(codes), count or 1)
        self.assertNotIn(0, codes, errors)
        self.assertRegex(errors[0], r"^bert_classify: error: .*\n$")
        self.assertRegex(errors[0], expected)
        self.assertEqual(errors[1:], [""] * (len(codes) - 1))

    def test_flags(self):
        self.check("--learning-rate is -1; it must be 0 or more", learning_rate=-1)
        self.check("--ddp-backend nccl: expected lockstep or gloo", ddp_backend="nccl")
        self.check("--save-failure nothing: expected stop, continue or retry", save_failure="nothing", ddp_backend="")
        self.check('--save-failure "": expected stop, continue or retry', save_failure="")
        self.check("unknown flag --no-such-flag; see bert_classify --help", no_such_flag=True)
        self.check("--fp16 is not supported: there is no gradient scaler; use bf16", fp16=True)
        self.check("--save-on-each-node is not supported: all ranks write into one directory", save_on_each_node=True)
        self.check("--save-steps is 1.5; it must be above 0, and a whole number if it is above 1", save_steps=1.5)
        self.check("--load-best-model-at-end needs evaluations during training; set --eval-strategy", load_best_model_at_end=True)
        self.check("unknown flag --lr; did you mean --learning-rate\\?", lr=0.1)
        self.check("--ddp-broadcast-buffers is perhaps; it must be true or false", ddp_broadcast_buffers="perhaps")
        self.check("--max-steps many: expected a whole number", max_steps="many")
        self.check(
            "--lr-scheduler-type square: expected linear, cosine, cosine_with_restarts, .* or reduce_lr_on_plateau", lr_scheduler_type="square"
        )
        self.check("--train-sampling-strategy shuffled: expected random, sequential or group_by_length", train_sampling_strategy="shuffled")
        self.check(
            "--lr-scheduler-type is step: the learning-rate schedule step needs a step_size of 1 or more; see --lr-scheduler-kwargs",
            lr_scheduler_type="step",
        )
        self.check("--eval-strategy needs a --validation-file or a --validation-split", eval_strategy="epoch")
        self.check("--validation-split is 1.5; expected a share between 0 and 1 or a number of rows", validation_split=1.5)
        self.check("--validation-split is half; expected", validation_split="half")
        self.check("--validation-split divides the --train-file and takes the place of", validation_split=0.1, validation_file=self.train)
        self.check("--split-seed is for --validation-split", split_seed=1)
        self.check("--text-column and --label-column are both label; give each its own", text_column="label")
        self.check("--text-column and --text-pair-column are both text; give each its own", text_pair_column="text")
        self.check("--keep-labels keeps positive only", keep_labels="positive")
        self.check("--keep-labels and --label-names both name the labels", keep_labels="a,b", label_names="a,b")
        self.check("--eval-strategy sometimes: expected no, steps or epoch", eval_strategy="sometimes")
        self.check("--do-predict and --test-file belong together", do_predict=True)
        self.check("nothing to do", train_file=None)
        self.check("no model: give --model-name-or-path", model_name_or_path=None)
        self.check("--hidden-dropout is 1.5", hidden_dropout=1.5)

    def test_every_flag_is_named_as_it_was_typed(self):
        (self.dir / "another_run").mkdir()
        (self.dir / "another_run/log.jsonl").write_text("kept")
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        self.many.run(folder, {"--help": True}, None)
        flags = re.findall(r"^  --([a-z0-9-]+) \S", (folder / "0.out").read_text(), re.MULTILINE)
        self.assertGreater(len(flags), 60)
        for flag in flags:
            if flag in FREE:
                continue
            typed = "--" + flag.replace("-", "_")
            good = {"--model_name_or_path": self.model, "--train_file": self.train, "--max_steps": 2, "--output_dir": folder / "out"}
            bad = {
                name or typed: str(value).format(dir=self.dir) if value is not True else True for name, value in BAD.get(flag, {"": "-7x"}).items()
            }
            with self.subTest(flag):
                codes, (error,) = self.many.run(folder, {**good, **bad}, None)
                self.assertNotIn(0, codes)
                self.assertRegex(error, rf"\Abert_classify: error: (.* )?{typed}\b")
                if "-" in flag:
                    self.assertNotIn(f"--{flag}", error)
                self.assertEqual(error.count("\n"), 1, error)

    def test_files(self):
        self.check(r"absent\.csv", train_file=self.dir / "absent.csv")
        self.check(r"empty\.csv", train_file=self.file("empty.csv", ""))
        self.check(r"header\.csv", train_file=self.file("header.csv", "text,label\n"))
        self.check(r"train\.csv: there is no column 'review'; its columns are 'text', 'label'", text_column="review")
        self.check(r"train\.csv: there is no column 'stars'", label_column="stars")
        self.check(r"absent\.csv", validation_file=self.dir / "absent.csv")
        self.check(r"cannot create .*train\.csv/out", output_dir=self.train / "out")

    def test_labels(self):
        text = 'text,label\n"a good\nfilm",1\n\ngreat,0\nbad,x\n'
        self.check(r'mixed\.csv:6: label "x" in column label', train_file=self.file("mixed.csv", text))
        names = "text,label\ngood,positive\nbad,negative\nso,neutral\n"
        self.check(
            r'names\.csv:4: label "neutral" in column label is unknown; expected one of positive, negative',
            train_file=self.file("names.csv", names),
            label_names="positive,negative",
        )
        self.check(r'validation\.csv:3: label "2"', validation_file=self.file("validation.csv", "text,label\na,0\nb,2\n"))
        self.check("one label", train_file=self.file("one.csv", "text,label\na,0\nb,0\n"))
        self.check("named twice", label_names="positive,positive")

    def test_kept_labels_and_splits(self):
        names = self.file("kept.csv", "text,label\ngood,positive\nbad,negative\nso,neutral\n")
        self.check(
            r"kept\.csv: no row has the label postive in column label; there are negative, neutral, positive",
            train_file=names,
            keep_labels="postive,negative",
        )
        self.check(
            r"validation\.csv: no row has the label positive or negative in column label; there are 0, 1",
            train_file=names,
            keep_labels="positive,negative",
            validation_file=self.file("validation.csv", "text,label\na,0\nb,1\n"),
        )
        self.check(r"--validation-split of .*train\.csv: test_size=20; expected a whole number from 1 to 19", validation_split=20)
        self.check(
            r"--validation-split of .*kept\.csv: test_size=0.9 of 2 samples leaves none to train on",
            train_file=names,
            keep_labels="positive,negative",
            validation_split=0.9,
        )

    def test_sizes(self):
        few = self.file("few.csv", "text,label\na,0\nb,1\n")
        self.check("the training set has 2 samples, fewer than the 3 ranks; start at most 2 processes", ranks=(3,), train_file=few)
        self.check("--dataloader-drop-last leaves nothing", train_file=few, dataloader_drop_last=True)
        self.check("--max-seq-length is 0; expected a number of tokens", max_seq_length=0)
        self.check("--max-seq-length is 65; the model has 64 positions", max_seq_length=65)

    def test_another_run_is_kept(self):
        flags = {"--model-name-or-path": self.model, "--train-file": self.train, "--max-steps": 1}
        for found in ("log.jsonl", "trainer_state.json", "model.safetensors"):
            output = self.dir / found.replace(".", "_")
            output.mkdir()
            (output / found).write_text("kept")
            (output / "all_results.json").write_text("{}")
            done = tiny.run({**flags, "--output-dir": output}, 2)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr.count("error"), 1)
            self.assertIn(
                f"--output-dir {output} holds another run ({found}); choose another directory, or give --overwrite-output-dir to replace that run",
                done.stderr,
            )
            self.assertEqual((output / found).read_text(), "kept")

        # A later attempt of the same job is no other run.
        done = tiny.run({**flags, "--output-dir": output}, env={"TORCHELASTIC_RESTART_COUNT": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        done = tiny.run({**flags, "--output-dir": output, "--overwrite-output-dir": True}, 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(tiny.history(output)), 2)
        self.assertIn("train_loss", json.loads((output / "all_results.json").read_text()))

    def test_models(self):
        self.check(r"there is no directory .*nowhere; expected", model_name_or_path=self.dir / "nowhere")
        self.check(r"train\.csv is a file; expected a directory", ranks=(None,), model_name_or_path=self.train)
        self.check(
            r"bert-base-uncased.*models are not downloaded here.*hf download bert-base-uncased --local-dir ", model_name_or_path="bert-base-uncased"
        )
        extra = tiny.make_model(self.dir / "extra", vocab_extra=7)
        self.check(r"extra: the vocabulary has 41 entries, the model's embeddings have 34", model_name_or_path=extra, label_names="positive,negative")

        def broken(name, change):
            copy = shutil.copytree(self.model, self.dir / name)
            path = copy / "model.safetensors"
            path.write_bytes(change(path.read_bytes()))
            return copy

        self.check(r"model\.safetensors", model_name_or_path=broken("truncated", lambda data: data[: len(data) // 2]))
        self.check(r"model\.safetensors", model_name_or_path=broken("huge", lambda data: b"\xff" * 8 + data[8:]))
        self.check(r"model\.safetensors", model_name_or_path=broken("nothing", lambda data: b""))
        wrong = shutil.copytree(self.model, self.dir / "wrong")
        config = json.loads((wrong / "config.json").read_text())
        (wrong / "config.json").write_text(json.dumps({**config, "intermediate_size": 65}))
        self.check(r"model\.safetensors.*intermediate", model_name_or_path=wrong)

    def test_diverged_loss(self):
        # The embedding of a word that only the last row has is NaN, so only rank 1 of two meets it.
        bad = shutil.copytree(self.model, self.dir / "nan")
        data = bytearray((bad / "model.safetensors").read_bytes())
        (header,) = struct.unpack("<Q", data[:8])
        words = json.loads(data[8 : 8 + header])["bert.embeddings.word_embeddings.weight"]
        row = 4 * words["shape"][1]
        at = 8 + header + words["data_offsets"][0] + row * (bad / "vocab.txt").read_text().split().index("quite")
        data[at : at + row] = struct.pack("<f", float("nan")) * words["shape"][1]
        (bad / "model.safetensors").write_bytes(data)
        train = self.file("nan.csv", "text,label\n" + "good film,0\nbad film,1\n" * 2 + "good film,0\nquite bad,1\n")
        done = tiny.run(
            {
                "--model-name-or-path": bad,
                "--train-file": train,
                "--output-dir": self.dir / "nan_out",
                "--per-device-train-batch-size": 1,
                "--train-sampling-strategy": "sequential",
            },
            ranks=2,
        )
        self.assertNotEqual(done.returncode, 0)
        said = [line for line in done.stderr.splitlines() if "error" in line]
        self.assertEqual(
            said,
            [
                "[rank 1]: bert_classify: error: the loss is nan at step 3 on rank 1; the weights are not "
                "finite already: bert.embeddings.word_embeddings.weight holds nan or infinity; load "
                "another model, or lower learning_rate"
            ],
        )
        self.assertNotIn("failed first", done.stderr)
        self.assertFalse((self.dir / "nan_out/model.safetensors").exists())

        # At the first step no learning rate has done anything.
        done = tiny.run(
            {
                "--model-name-or-path": bad,
                "--train-file": self.file("nan1.csv", "text,label\nquite,0\nbad,1\n"),
                "--output-dir": self.dir / "nan_out1",
            }
        )
        self.assertRegex(done.stderr, "^bert_classify: error: the loss is nan at step 1 on rank 0; the weights are not .*; load another model\n$")


if __name__ == "__main__":
    unittest.main()
