"""bert_ner as real processes: equal to transformers' Trainer and run_ner.py, whatever the file format and the number of ranks."""

import json
import random
import unittest

import tiny_tasks
from tiny_tasks import RecipeCase, history, json_lines

LABELS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]


def make_sentences(count, seed):
    """(words, labels) of 3 to 14 words; names have one to three tokens."""
    draw = random.Random(seed)
    sentences = []
    for _ in range(count):
        words, labels = [], []
        while len(words) < draw.randrange(3, 14):
            words.append(draw.choice(["met", "saw", "in", "of", "the", "and"]))
            labels.append("O")
            kind = draw.randrange(3)
            if kind == 0:
                continue
            starts, type_ = (["anna", "otto"], "PER") if kind == 1 else (["rome", "oslo"], "LOC")
            for place in range(draw.randrange(1, 3)):
                words.append((draw.choice(starts) + draw.choice(["", "s", "ville", "tons"])).capitalize())
                labels.append(f"{'IB'[place == 0]}-{type_}")
        sentences.append((words, labels))
    return sentences


def write_conll(path, sentences, columns=4):
    """As CoNLL-2003's files are: a part of speech and a chunk between word and label, and a line -DOCSTART-."""
    between = ["NNP", "I-NP"][: columns - 2]
    lines = ["-DOCSTART- " + "-X- " * (columns - 2) + "O", ""] if columns > 1 else []
    for words, labels in sentences:
        lines += [" ".join([word, *between, label] if columns > 1 else [word]) for word, label in zip(words, labels)] + [""]
    path.write_text("\n".join(lines) + "\n")
    return path


def entities(labels):
    """{(type, first, last)}, as conlleval and seqeval find them."""
    found, first = set(), None
    for at, (label, before) in enumerate(zip([*labels, "O"], ["O", *labels])):
        new = label[0] == "B" or label[2:] != before[2:]
        if first is not None and (label == "O" or new):
            found.add((before[2:], first, at - 1))
            first = None
        if label != "O" and (new or before == "O"):
            first = at
    return found


class NerTest(RecipeCase):
    recipe = "bert_ner"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = tiny_tasks.write_model(cls.dir / "model", "BertModel")
        cls.sentences, cls.others = make_sentences(60, 1), make_sentences(31, 2)
        cls.train, cls.validation = (
            write_conll(cls.dir / name, sentences) for name, sentences in (("train.conll", cls.sentences), ("valid.txt", cls.others))
        )

    def flags(self, name, **more):
        """Three epochs of 4 steps; exact, as nothing is dropped out."""
        return {
            "model_name_or_path": self.model,
            "train_file": self.train,
            "validation_file": self.validation,
            "output_dir": self.dir / name,
            "per_device_train_batch_size": 16,
            "learning_rate": 1e-3,
            "weight_decay": 0.01,
            "logging_steps": 1,
            "eval_strategy": "epoch",
            "hidden_dropout": 0,
            "attention_dropout": 0,
            "save_strategy": "no",
            **more,
        }

    def peer_samples(self, tokenizer, sentences, label_all=False):
        """As run_ner.py makes them."""
        encoded = tokenizer([words for words, _ in sentences], is_split_into_words=True)
        inside = {label: label.replace("B-", "I-") if label.replace("B-", "I-") in LABELS else label for label in LABELS}
        samples = []
        for row, (_, labels) in enumerate(sentences):
            ids, before = [], None
            for word in encoded.word_ids(row):
                first = word != before
                ids.append(-100 if word is None or not (first or label_all) else LABELS.index(labels[word] if first else inside[labels[word]]))
                before = word
            samples.append({"input_ids": encoded["input_ids"][row], "labels": ids})
        return samples

    def scores(self, logits, labels):
        right = guessed = true = 0
        hits = []
        for predicted, wanted in zip(logits.argmax(-1), labels):
            pairs = [(LABELS[p], LABELS[t]) for p, t in zip(predicted, wanted) if t != -100]
            a, b = entities([p for p, _ in pairs]), entities([t for _, t in pairs])
            right, guessed, true = right + len(a & b), guessed + len(a), true + len(b)
            hits += [p == t for p, t in pairs]
        return {
            "precision": right / guessed if guessed else 0.0,
            "recall": right / true,
            "f1": 2 * right / (guessed + true),
            "accuracy": sum(hits) / len(hits),
        }

    def history_and_predictions_equal_those_of_transformers(self):
        """Run by transformers_test.py."""
        import torch
        import transformers

        torch.set_num_threads(1)
        first = self.dir / "first"
        # A head of theirs, so that both begin alike.
        self.run_it(self.flags("first", max_steps=1, learning_rate=0, eval_strategy="no"))
        self.run_it(self.flags("ours", model_name_or_path=first, num_train_epochs=8))
        ours = history(self.dir / "ours")
        tokenizer = transformers.AutoTokenizer.from_pretrained(first)
        model = transformers.AutoModelForTokenClassification.from_pretrained(first, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        self.assertEqual(model.config.id2label, dict(enumerate(LABELS)))
        arguments = transformers.TrainingArguments(
            output_dir=str(self.dir / "theirs"),
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            weight_decay=0.01,
            logging_steps=1,
            num_train_epochs=8,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            optim="adamw_torch_fused",
        )
        peer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=self.peer_samples(tokenizer, self.sentences),
            eval_dataset=self.peer_samples(tokenizer, self.others),
            data_collator=transformers.DataCollatorForTokenClassification(tokenizer),
            compute_metrics=lambda found: self.scores(found.predictions, found.label_ids),
        )
        peer.train()
        # Ours is the mean over labeled words; transformers' eval_loss and train_loss are means of the batches' means.
        self.assert_same_history(ours, peer.state.log_history, 2e-5, leave_out=["eval_loss", "train_loss"])
        self.assertGreater(ours[-2]["eval_f1"], 0.3)

        # transformers loads what was saved, and predicts the same.
        saved = transformers.AutoModelForTokenClassification.from_pretrained(self.dir / "ours").eval()
        done = self.run_it(
            {
                "model_name_or_path": self.dir / "ours",
                "do_predict": True,
                "test_file": write_conll(self.dir / "words", self.others, 1),
                "output_dir": self.dir / "predicted",
            },
            ranks=2,
        )
        self.assertNotIn("without a label", done.stdout)
        lines = json_lines(self.dir / "predicted/predictions.jsonl")
        self.assertEqual([line["index"] for line in lines], list(range(31)))
        for line, (words, _) in zip(lines, self.others):
            encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
            with torch.no_grad():
                best = saved(**encoded).logits[0].argmax(-1)
            wanted = {}
            for place, word in enumerate(encoded.word_ids(0)):
                wanted.setdefault(word, LABELS[best[place]])
            self.assertEqual((line["tokens"], line["labels"]), (words, [wanted[word] for word in range(len(words))]))

        # All tokens of a word count.
        self.run_it(self.flags("all", model_name_or_path=first, label_all_tokens=True, max_steps=1, learning_rate=0))
        samples = self.peer_samples(tokenizer, self.others, label_all=True)
        batch = transformers.DataCollatorForTokenClassification(tokenizer)(samples)
        with torch.no_grad():
            loss = transformers.AutoModelForTokenClassification.from_pretrained(first).eval()(**batch).loss.item()
        self.assertAlmostEqual(history(self.dir / "all")[1]["eval_loss"], loss, delta=1e-5)

    def test_more_ranks_train_the_same(self):
        self.run_it(self.flags("alone"))
        self.run_it(self.flags("together", per_device_train_batch_size=8), ranks=2)
        self.assert_same_history(history(self.dir / "together"), history(self.dir / "alone"), 1e-4)

    def test_file_formats_are_the_same(self):
        import pyarrow
        import pyarrow.parquet

        wanted = self.run_and_history("conll")
        rows = self.dir / "train.jsonl"
        rows.write_text("".join(json.dumps({"tokens": words, "ner_tags": labels}) + "\n" for words, labels in self.sentences))
        tabs = self.dir / "tabs.iob2"
        tabs.write_text(write_conll(self.dir / "two.conll", self.sentences, 2).read_text().replace(" ", "\t").replace("\n", "\r\n"))
        numbers = pyarrow.array([[LABELS.index(label) for label in labels] for _, labels in self.sentences])
        feature = {
            "info": {
                "features": {
                    "tokens": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "Sequence"},
                    "ner_tags": {"feature": {"names": LABELS, "_type": "ClassLabel"}, "_type": "Sequence"},
                }
            }
        }
        table = pyarrow.table({"tokens": [words for words, _ in self.sentences], "ner_tags": numbers})
        parquet = self.dir / "train.parquet"
        pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(feature)}), parquet)
        for file in (rows, tabs, parquet):
            self.assert_same_history(self.run_and_history(file.stem + "_" + file.suffix[1:], train_file=file), wanted, 0)

    def run_and_history(self, name, **more):
        self.run_it(self.flags(name, max_steps=4, eval_strategy="no", **more))
        return history(self.dir / name)

    def test_entity_level_metrics(self):
        self.run_it(self.flags("types", return_entity_level_metrics=True, max_steps=2, eval_strategy="no"))
        results = json.loads((self.dir / "types/eval_results.json").read_text())
        wanted = {f"eval_{type_}_{score}" for type_ in ("LOC", "PER") for score in ("precision", "recall", "f1", "number")}
        wanted |= {f"eval_overall_{score}" for score in ("precision", "recall", "f1", "accuracy")}
        self.assertLessEqual(wanted, set(results))
        self.assertEqual(results["eval_PER_number"], sum(label == "B-PER" for _, labels in self.others for label in labels))

    def test_words_that_are_cut(self):
        self.run_it(self.flags("short", max_steps=1, eval_strategy="no"))
        done = self.run_it(
            {
                "model_name_or_path": self.dir / "short",
                "do_predict": True,
                "test_file": self.validation,
                "max_seq_length": 6,
                "output_dir": self.dir / "cut",
            }
        )
        self.assertRegex(done.stdout, r"valid.txt: \d+ words without a label, behind --max-seq-length")
        lines = json_lines(self.dir / "cut/predictions.jsonl")
        self.assertTrue(any(line["labels"][-1] is None for line in lines))
        for line, (words, _) in zip(lines, self.others):
            self.assertEqual(len(line["labels"]), len(words))
            self.assertIsNotNone(line["labels"][0])

    def test_kill_and_resume(self):
        self.check_kill_and_resume(self.flags("", max_steps=12, eval_strategy="no", hidden_dropout=0.2))

    def test_a_resume_with_other_data(self):
        flags = self.flags("other", max_steps=4, save_strategy="steps", save_steps=2, eval_strategy="no")
        self.run_it(flags)
        changed = [(words, ["O"] * len(labels) if row == 7 else labels) for row, (words, labels) in enumerate(self.sentences)]
        again = {**flags, "resume_from_checkpoint": "checkpoint-2", "max_steps": 6}
        for name, more in (
            ("train_data.hash", {"train_file": write_conll(self.dir / "changed.conll", changed)}),
            ("label_all_tokens", {"label_all_tokens": True}),
            ("max_seq_length", {"max_seq_length": 20}),
        ):
            self.refuses(f"{name}: ", {**again, "resume_from_checkpoint": self.dir / "other/checkpoint-2", **more})

    def test_bad_files(self):
        def file(name, text):
            path = self.dir / name
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            return path

        for name, text, message in (
            ("fields.conll", "anna NNP B-PER\nmet O\n", 'fields.conll:2: "met O" has 2 fields, the lines before it have 3'),
            ("alone.conll", "anna\nmet\n", 'alone.conll:1: "anna" stands alone; expected a word and, last in the line, its label'),
            ("one.conll", "anna O\nmet O\n", "one.conll holds the label O only; expected two labels or more"),
            ("nothing.jsonl", '{"tokens": ["anna", "met"], "ner_tags": ["B-PER", ""]}\n', "nothing.jsonl:1: a label in column ner_tags is empty"),
            ("empty.conll", "\n\n-DOCSTART- O\n", "empty.conll holds no sentence"),
            ("latin.conll", b"anna B-PER\ncaf\xe9 O\n", "latin.conll:2: byte 4 is not UTF-8"),
            ("lengths.jsonl", '{"tokens": ["anna", "met"], "ner_tags": ["B-PER"]}\n', "lengths.jsonl:1: 2 words in column tokens, but 1 labels"),
            ("text.jsonl", '{"tokens": "anna met", "ner_tags": ["B-PER"]}\n', "tokens"),
        ):
            self.refuses(message, self.flags("bad", train_file=file(name, text)), ranks=2 if name == "fields.conll" else None)
        self.refuses(
            'unknown.conll:3: label "B-ORG" is unknown; expected one of B-LOC, B-PER, I-LOC, I-PER, O',
            self.flags("bad", validation_file=file("unknown.conll", "anna B-PER\n\nbank B-ORG\n")),
        )
        self.refuses("--max-seq-length is 65; the model has 64 positions", self.flags("bad", max_seq_length=65))
        self.refuses("--do-predict and --test-file belong together", self.flags("bad", do_predict=True))
        # A trained head does not take other labels, unless it may be replaced.
        self.run_it(self.flags("trained", max_steps=1, eval_strategy="no"))
        more = self.flags(
            "bad",
            train_file=file("more.conll", "anna B-PER\n\nbank B-ORG\n"),
            model_name_or_path=self.dir / "trained",
            max_steps=1,
            eval_strategy="no",
        )
        del more["validation_file"]
        self.refuses('more.conll:3: label "B-ORG" is unknown', more)
        self.run_it({**more, "ignore_mismatched_sizes": True, "output_dir": self.dir / "replaced"})
        self.assertEqual(json.loads((self.dir / "replaced/config.json").read_text())["id2label"], {"0": "B-ORG", "1": "B-PER"})

    def test_training_from_scratch(self):
        flags = self.flags("scratch", model_config="small", max_steps=60, learning_rate=1e-3, eval_strategy="no")
        del flags["model_name_or_path"]
        self.run_it(flags, ranks=2)
        self.assertGreater(json.loads((self.dir / "scratch/eval_results.json").read_text())["eval_f1"], 0.8)


if __name__ == "__main__":
    unittest.main()
