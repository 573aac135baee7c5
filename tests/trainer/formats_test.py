"""bert_classify on the same rows in every format: the same training, on one rank and on two, in memory and mapped."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc  # noqa: F401  # pa.ipc
import pyarrow.parquet  # noqa: F401  # pa.parquet
import tiny


class Formats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_formats_"))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.model = tiny.make_model(cls.dir / "model")
        cls.rows = tiny.make_rows(60, seed=1)

    def put(self, name, rows, numbers=False):
        """The rows as a file of the format that the name says; labels 0 and 1, as numbers where the format has them."""
        path = self.dir / name
        labels = [["positive", "negative"].index(label) if numbers else label for _, label in rows]
        table = pa.table({"id": list(range(len(rows))), "text": [text for text, _ in rows], "label": labels, "more": [[1, 2]] * len(rows)})
        flat = table.drop_columns(["more"])
        if name.endswith(".csv") or name.endswith(".csv.gz"):
            pa.csv.write_csv(flat, path) if name.endswith("csv") else self.packed(path, lambda out: pa.csv.write_csv(flat, out))
        elif name.endswith(".tsv"):
            pa.csv.write_csv(flat, path, pa.csv.WriteOptions(delimiter="\t"))
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        elif name.endswith(".parquet"):
            pa.parquet.write_table(table, path, row_group_size=17)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=13)
        return path

    def packed(self, path, write):
        with pa.CompressedOutputStream(str(path), "gzip") as out:
            write(out)

    def run_on(self, train, ranks=None, **more):
        output = self.dir / "out"
        flags = {
            "--model-name-or-path": self.model,
            "--train-file": train,
            "--output-dir": output,
            "--overwrite-output-dir": True,
            "--per-device-train-batch-size": 8,
            "--num-train-epochs": 1,
            "--logging-steps": 1,
            "--save-strategy": "no",
            "--learning-rate": 1e-3,
            "--hidden-dropout": 0,
            "--attention-dropout": 0,
        }
        flags.update({"--" + key.replace("_", "-"): value for key, value in more.items()})
        done = tiny.run(flags, ranks)
        return done, output

    def losses(self, train, ranks=None, **more):
        more.setdefault("label_names", "positive,negative")
        done, output = self.run_on(train, ranks, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [entry["loss"] for entry in tiny.history(output) if "loss" in entry], done.stdout

    def test_all_formats_train_alike(self):
        by_name, _ = self.losses(self.put("names.csv", self.rows))
        by_number, _ = self.losses(self.put("numbers.csv", self.rows, numbers=True))
        self.assertEqual(len(by_name), 8)
        for end in ("tsv", "csv.gz", "jsonl", "parquet", "arrow"):
            numbers = end in ("jsonl", "arrow")
            train = self.put("train." + end, self.rows, numbers)
            self.assertEqual(self.losses(train)[0], by_number if numbers else by_name, end)

    def test_fields_of_objects_and_class_names(self):
        flags = dict(label_names="positive,negative")
        by_name, _ = self.losses(self.put("plain.csv", self.rows), **flags)
        nested = self.dir / "nested.jsonl"
        nested.write_text("".join(json.dumps({"pair": {"en": text, "kind": {"label": label}}}) + "\n" for text, label in self.rows))
        self.assertEqual(self.losses(nested, text_column="pair.en", label_column="pair.kind.label", **flags)[0], by_name)
        label = {"names": ["negative", "positive"], "_type": "ClassLabel"}
        numbers = [label["names"].index(name) for _, name in self.rows]
        table = pa.table({"text": [text for text, _ in self.rows], "label": numbers})
        table = table.replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": {"label": label}}}).encode()})
        named, unnamed = self.dir / "named.parquet", self.dir / "unnamed.parquet"
        pa.parquet.write_table(table, named)
        pa.parquet.write_table(table.replace_schema_metadata(None), unnamed)
        for train, wanted, more in (
            (named, label["names"], {}),
            (named, label["names"], {"data_cache_dir": self.dir / "named"}),
            (unnamed, ["LABEL_0", "LABEL_1"], {}),
        ):
            done, output = self.run_on(train, **more)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            names = json.loads((output / "config.json").read_text())["id2label"]
            self.assertEqual([names[str(i)] for i in range(len(names))], wanted)

    def test_quotes_as_text(self):
        rows = [('"good', "1"), ("film", "0"), ('great"', "1"), ('a "bad" film', "0"), ("good", "1"), ("bad", "0")]
        train = self.dir / "quotes.tsv"
        train.write_text("text\tlabel\n" + "".join("\t".join(row) + "\n" for row in rows))
        done, _ = self.run_on(train)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"{train}:2: a quote that opens in this row closes on a later line, behind a tab", done.stdout + done.stderr)
        _, said = self.losses(train, no_quotes=True)
        self.assertIn("6 samples", said)
        _, said = self.losses(train, quotes=True)
        self.assertIn("4 samples", said)
        done, _ = self.run_on(train, quotes=True, no_quotes=True)
        self.assertIn("--quotes and --no-quotes exclude each other", done.stdout + done.stderr)

    def test_two_ranks_map_one_table(self):
        cache = self.dir / "cache"
        for end in ("csv", "parquet"):
            train = self.put("pair." + end, self.rows)
            flags = dict(ranks=2, validation_split=0.2, eval_strategy="epoch")
            memory, _ = self.losses(train, **flags)
            mapped, _ = self.losses(train, data_cache_dir=cache, **flags)
            self.assertEqual(memory, mapped)
        self.assertEqual(len(os.listdir(cache)), 2)

    def test_predictions_without_labels(self):
        table = pa.table({"text": [text for text, _ in self.rows]})
        pa.parquet.write_table(table, self.dir / "new.parquet")
        lines = [json.dumps({"text": text}) + "\n" for text, _ in self.rows]
        (self.dir / "new.jsonl").write_text("".join(lines))
        (self.dir / "holed.jsonl").write_text("".join([lines[0], '{"text": 5}\n', *lines[1:]]))
        found = []
        for name in ("new.parquet", "new.jsonl", "holed.jsonl"):
            done = tiny.run(
                {
                    "--model-name-or-path": self.model,
                    "--do-predict": True,
                    "--test-file": self.dir / name,
                    "--output-dir": self.dir / "predicted",
                    "--overwrite-output-dir": True,
                    "--label-names": "positive,negative",
                    "--skip-bad-rows": True,
                }
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            found.append(tiny.json_lines(self.dir / "predicted/predictions.jsonl"))
        self.assertEqual(len(found[0]), 60)
        self.assertEqual(found[0], found[1])
        self.assertEqual([row["index"] for row in found[0]], list(range(60)))
        # A row that is left out leaves the others their numbers.
        self.assertEqual([row["index"] for row in found[2]], [0, *range(2, 61)])
        self.assertEqual([row["logits"] for row in found[2]], [row["logits"] for row in found[0]])

    def test_bad_rows(self):
        good = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in self.rows)
        bad = self.dir / "bad.jsonl"
        bad.write_text('{"text": "a film", "label": "positive"}\n{"text": "a film"}\n' + good + '{"text": 5, "label": "positive"}\n')
        for ranks in (None, 2):
            done, _ = self.run_on(bad, ranks)
            self.assertNotEqual(done.returncode, 0)
            message = f"{bad}:2: record 2, column 'label': no such key"
            self.assertEqual((done.stdout + done.stderr).count(message), 1, done.stdout + done.stderr)
            whole, _ = self.losses(self.put("whole.csv", [("a film", "positive"), *self.rows]), ranks)
            losses, said = self.losses(bad, ranks, skip_bad_rows=True)
            self.assertEqual(losses, whole)
            self.assertIn(f"left out 2 bad rows of {bad}; the first: {message}\n", said)


if __name__ == "__main__":
    unittest.main()
