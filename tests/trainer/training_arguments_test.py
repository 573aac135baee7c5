"""TrainingArguments against transformers' dataclass, their files, and docs/training_arguments.md against the table.

training_arguments_test.py --write TOOL    writes the page's tables; TOOL: the built training_arguments_tool
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/training_arguments.md"


def tool(*arguments, program=None):
    program = program or pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "training_arguments_tool"
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def tables(program=None):
    return json.loads(tool("tables", program=program).stdout)


def default_of(row, defaults):
    value = defaults[row["name"]]
    return row["preset_text"] or ("-" if value is None else json.dumps(value).strip('"'))


def table(head, lines):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def parts_of_page(all_tables):
    """Marker -> the text that stands after it."""
    supported = []
    for group in dict.fromkeys(row["group"] for row in all_tables["rows"]):
        rows = [row for row in all_tables["rows"] if row["group"] == group]
        supported.append(
            f"### {group}\n\n"
            + table(
                ["argument", "default", "allowed", "meaning"],
                [[f"`{row['name']}`", default_of(row, all_tables["defaults"]), row["expected"] or "-", row["help"]] for row in rows],
            )
        )
    different = table(
        ["argument", "transformers' default", "why"],
        [[f"`{row['name']}`", json.dumps(row["theirs"]), row["reason"]] for row in all_tables["different"]],
    )
    refused = table(["argument", "why not"], [[f"`{row['name']}`", row["reason"]] for row in all_tables["refused"]])
    resume = table(["argument", "its new value", "note"], [[f"`{row['name']}`", row["effect"], row["note"] or "-"] for row in all_tables["resume"]])
    return {"supported": "\n\n".join(supported), "resume": resume, "different": different, "refused": refused}


def rewritten(page, parts):
    for name, text in parts.items():
        page, count = re.subn(f"(<!-- {name} -->\n).*?(\n<!-- end -->)", lambda found: found[1] + text + found[2], page, flags=re.DOTALL)
        assert count == 1, name
    return page


def as_ours(name, value):
    """transformers makes a list of "none"."""
    return "none" if name == "report_to" and value == [] else value


class TrainingArgumentsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tables = tables()
        cls.supported = {row["name"]: row for row in cls.tables["rows"]}
        cls.refused = {row["name"]: row for row in cls.tables["refused"]}
        cls.different = {row["name"]: row for row in cls.tables["different"]}

    def read(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(text)
            file.flush()
            return tool("read", file.name)

    def read_fields(self, text):
        done = self.read(text)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_every_field_of_transformers_is_supported_or_refused(self):
        import transformers

        fields = dataclasses.fields(transformers.TrainingArguments)
        self.assertEqual({field.name for field in fields} - set(self.supported) - set(self.refused), set())
        self.assertEqual(set(self.refused) - {field.name for field in fields}, set())
        self.assertEqual(set(self.refused) & set(self.supported), set())
        for field in fields:
            default = field.default_factory() if field.default is dataclasses.MISSING else field.default
            default = getattr(default, "value", default)
            if field.name in self.refused:
                self.assertEqual(self.refused[field.name]["harmless"][0], default, field.name)
            elif field.name in self.different:
                self.assertEqual(self.different[field.name]["theirs"], default, field.name)
                self.assertNotEqual(self.tables["defaults"][field.name], default, field.name)
            else:
                self.assertEqual(self.tables["defaults"][field.name], default, field.name)

    def test_files_of_transformers_are_read(self):
        import transformers

        for changes in (
            {},
            {"learning_rate": 3e-4, "num_train_epochs": 2.5, "warmup_steps": 0.1, "seed": 7},
            {"eval_strategy": "steps", "eval_steps": 0.25, "lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2}, "data_seed": 3},
            {
                "eval_strategy": "epoch",
                "lr_scheduler_type": "reduce_lr_on_plateau",
                "optim": "sgd",
                "optim_args": "momentum=0.9,nesterov=true",
                "do_train": True,
                "use_cpu": True,
                "save_strategy": "no",
                "report_to": "none",
            },
        ):
            theirs = transformers.TrainingArguments(output_dir="somewhere", **changes)
            ours = self.read_fields(theirs.to_json_string())
            for name, value in theirs.to_dict().items():
                if name in self.supported and not (value is None and name in self.different):
                    self.assertEqual(ours[name], as_ours(name, value), name)

    def test_transformers_reads_our_files(self):
        import transformers

        given = {
            "output_dir": "somewhere",
            "learning_rate": 3e-4,
            "max_steps": 7,
            "logging_steps": 10,
            "bf16": False,
            "lr_scheduler_type": "cosine",
            "lr_scheduler_kwargs": {"num_cycles": 2},
            "limit_train_batches": 0.5,
            "train_sampling_strategy": "group_by_length",
            "ddp_timeout": 60,
            "save_strategy": "best",
            "save_total_limit": 3,
            "load_best_model_at_end": True,
            "eval_strategy": "steps",
            "eval_steps": 10,
            "metric_for_best_model": "f1",
            "greater_is_better": True,
        }
        ours = self.read_fields(json.dumps(given))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(json.dumps(ours))
            file.flush()
            (theirs,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_json_file(file.name, allow_extra_keys=True)
        for name, value in theirs.to_dict().items():
            if name in self.supported:
                self.assertEqual(ours[name], as_ours(name, value), name)

    def test_what_is_written_reads_as_itself(self):
        given = dict(
            self.tables["defaults"],
            max_time="01:02:03:04",
            greater_is_better=True,
            data_seed=2**63 + 1,
            optim="sgd",
            optim_args="momentum=0.9",
            metric_for_best_model="f1",
            ddp_backend="gloo",
            lr_scheduler_kwargs={"num_cycles": 2},
            ddp_broadcast_buffers=False,
            val_check_interval=0.25,
            fast_dev_run=1,
            save_strategy="epoch",
            save_total_limit=2,
            load_best_model_at_end=True,
            eval_strategy="epoch",
            save_failure="retry",
            resume_from_checkpoint="auto",
            save_only_model=True,
            save_steps=0.5,
            train_sampling_strategy="sequential",
            logging_strategy="epoch",
            adam_epsilon=1e-9,
            report_to=["tensorboard", "csv"],
            run_name="a run",
            run_id="my-run_1",
            report_ranks="all",
            project="mine",
        )
        self.assertEqual(self.read_fields(json.dumps(given)), given)
        self.assertEqual(self.read_fields(json.dumps(self.tables["defaults"])), self.tables["defaults"])
        self.assertEqual(self.read_fields("{}"), self.tables["defaults"])
        self.assertEqual(list(self.read_fields("{}")), list(self.supported))

    def test_mistakes_name_the_file_and_the_argument(self):
        for text, expected in (
            ('{"fp16": true}', "fp16 is true, which is not supported: there is no gradient scaler; use bf16"),
            ('{"save_on_each_node": true}', "save_on_each_node is true, which is not supported: all ranks write into one directory"),
            ('{"save_steps": 0}', "save_steps is 0; it must be above 0"),
            ('{"save_total_limit": 0}', "save_total_limit is 0; it must be 1 or more"),
            ('{"save_strategy": "always"}', "save_strategy is always; it must be no, steps, epoch or best"),
            ('{"load_best_model_at_end": true}', "load_best_model_at_end needs evaluations during training"),
            (
                '{"load_best_model_at_end": true, "eval_strategy": "epoch", "save_strategy": "no"}',
                "load_best_model_at_end loads a checkpoint, but save_strategy is no",
            ),
            ('{"report_to": ["mlflow"]}', "report_to is mlflow; it must be none, all, or some of tensorboard, wandb, jsonl and csv"),
            ('{"report_to": [1]}', r"report_to is \[1\]; expected a list of texts"),
            ('{"run_id": "a/b"}', "run_id is a/b; it must be 1 to 128 letters"),
            ('{"report_ranks": "1"}', "report_ranks is 1; it must be 0 or all"),
            ('{"learning_rat": 1}', r"unknown argument learning_rat; did you mean learning_rate\?"),
            ('{"warmup_ratio": 0.1}', r"unknown argument warmup_ratio; did you mean warmup_steps\?"),
            ('{"save_step": 1}', r"unknown argument save_step; did you mean save_steps\?"),
            ('{"qqqqqqqqqqqq": 1}', r"unknown argument qqqqqqqqqqqq$"),
            ('{"max_steps": "many"}', 'max_steps is "many"; expected a whole number'),
            ('{"max_steps": 1.5}', "max_steps is 1.5; expected a whole number"),
            ('{"seed": -1}', "seed is -1; expected 0 or more"),
            ('{"dataloader_num_workers": 3000000000}', "dataloader_num_workers is 3000000000; expected a smaller number"),
            ('{"bf16": 1}', "bf16 is 1; expected true or false"),
            ('{"optim": 1}', "optim is 1; expected a text"),
            ('{"eval_strategy": "always"}', "eval_strategy is always; it must be no, steps or epoch"),
            ('{"learning_rate": -1}', "learning_rate is -1; it must be 0 or more"),
            ('{"max_steps": 1', "byte 16 is not JSON"),
            ("[]", "expected a JSON object"),
        ):
            done = self.read(text)
            self.assertNotEqual(done.returncode, 0, text)
            self.assertRegex(done.stderr.strip(), r"^training_arguments_tool: error: /.*\.json: " + expected)

    def test_the_page_is_the_table(self):
        page = PAGE.read_text()
        self.assertEqual(page, rewritten(page, parts_of_page(self.tables)), "docs/training_arguments.md is out of date; see this test's first lines")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        PAGE.write_text(rewritten(PAGE.read_text(), parts_of_page(tables(sys.argv[2]))))
    else:
        unittest.main()
