"""bert_qa as real processes: equal to transformers' Trainer and run_qa.py, whatever the file format and the number of ranks."""

import collections
import json
import random
import re
import string
import unittest

import tiny_tasks
from tiny_tasks import RecipeCase, history

LENGTH, STRIDE = 32, 8


def make_paragraphs(count, seed, impossible=0.0):
    """SQuAD's paragraphs: texts of 10 to 60 words, with letters that take several bytes, and questions about them."""
    draw = random.Random(seed)
    paragraphs = []
    for number in range(count):
        words = draw.choices(
            ["Anna", "Otto", "met", "saw", "in", "the", "bank", "Rome", "Oslo", "1984", "703", "\u00c9", "union."], k=draw.randrange(10, 60)
        )
        context, questions = " ".join(words), []
        for which in range(2):
            first = draw.randrange(len(words))
            last = min(first + draw.randrange(3), len(words) - 1)
            start = len(" ".join(words[:first])) + (first > 0)
            answers = [{"text": " ".join(words[first : last + 1]), "answer_start": start}, {"text": words[first], "answer_start": start}]
            none = draw.random() < impossible
            questions.append(
                {
                    "id": f"q{number}-{which}",
                    "question": "  where is " + " ".join(draw.choices(words, k=3)),
                    "answers": [] if none else answers,
                    "is_impossible": none,
                }
            )
        paragraphs.append({"context": context, "qas": questions})
    return paragraphs


def flat(paragraphs):
    return [
        {
            "id": q["id"],
            "question": q["question"],
            "context": p["context"],
            "answers": {key: [answer[key] for answer in q["answers"]] for key in ("text", "answer_start")},
        }
        for p in paragraphs
        for q in p["qas"]
    ]


def features(tokenizer, rows):
    """As run_qa.py makes them, but that an answer in the last token of a window begins there and not in [SEP]."""
    encoded = tokenizer(
        [row["question"].lstrip() for row in rows],
        [row["context"] for row in rows],
        truncation="only_second",
        max_length=LENGTH,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length",
    )
    found = []
    for at, row in enumerate(encoded["overflow_to_sample_mapping"]):
        places = [None, None]
        if rows[row]["answers"]["text"]:
            start, text = rows[row]["answers"]["answer_start"][0], rows[row]["answers"]["text"][0]
            places = [encoded.char_to_token(at, char, sequence_index=1) for char in (start, start + len(text) - 1)]
        found.append(
            {
                **{name: encoded[name][at] for name in ("input_ids", "token_type_ids", "attention_mask")},
                "start_positions": 0 if None in places else places[0],
                "end_positions": 0 if None in places else places[1],
                "row": row,
                "offsets": [span if part == 1 else None for span, part in zip(encoded["offset_mapping"][at], encoded.sequence_ids(at))],
            }
        )
    return found


def answers_of(rows, windows, starts, ends, negative, n_best=20, longest=30, threshold=0.0):
    """{id: (answer, n best texts with probabilities, null odds)}"""
    import numpy

    found = {}
    of_row = collections.defaultdict(list)
    for at, window in enumerate(windows):
        of_row[window["row"]].append(at)
    for number, row in enumerate(rows):
        ranked = []
        null = min((starts[at][0] + ends[at][0] for at in of_row[number]))
        for at in of_row[number]:
            spans = windows[at]["offsets"]
            for start in numpy.argsort(-starts[at], kind="stable")[:n_best]:
                for end in numpy.argsort(-ends[at], kind="stable")[:n_best]:
                    if spans[start] is not None and spans[end] is not None and start <= end < start + longest:
                        ranked.append((starts[at][start] + ends[at][end], row["context"][spans[start][0] : spans[end][1]]))
        if negative:
            ranked.append((null, ""))
        ranked = sorted(ranked, key=lambda pair: -pair[0])
        kept = ranked[:n_best]
        if negative and "" not in [text for _, text in kept]:
            kept.append((null, ""))
        if not [text for _, text in kept if text]:
            kept.insert(0, (0.0, "empty"))
        weights = numpy.exp(numpy.array([score for score, _ in kept]) - max(score for score, _ in kept))
        best = next(pair for pair in kept if pair[1])
        odds = null - best[0]
        found[row["id"]] = ("" if negative and odds > threshold else best[1], [text for _, text in kept], weights / weights.sum(), odds)
    return found


def normalized(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def score(predicted, answers, negative=False):
    """(exact, F1) as SQuAD's scripts have it: version 2 knows texts of articles alone as no answer."""
    best = [0.0, 0.0]
    for answer in ([answer for answer in answers if normalized(answer)] or [""]) if negative else answers:
        a, b = normalized(predicted).split(), normalized(answer).split()
        common = sum((collections.Counter(a) & collections.Counter(b)).values())
        f1 = (float(a == b) if negative else 0.0) if not a or not b else 2 * common / (len(a) + len(b))
        best = [max(best[0], float(a == b)), max(best[1], f1)]
    return best


class QaTest(RecipeCase):
    recipe = "bert_qa"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = tiny_tasks.write_model(cls.dir / "model", "BertForQuestionAnswering")
        cls.paragraphs, cls.others = make_paragraphs(16, 1), make_paragraphs(9, 2)
        cls.train, cls.validation = cls.write("train.json", cls.paragraphs), cls.write("dev.json", cls.others)

    @classmethod
    def write(cls, name, paragraphs):
        path = cls.dir / name
        path.write_text(
            json.dumps(
                {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs[:5]}, {"title": "u", "paragraphs": paragraphs[5:]}]},
                ensure_ascii=False,
            )
        )
        return path

    def flags(self, name, **more):
        return {
            "model_name_or_path": self.model,
            "train_file": self.train,
            "validation_file": self.validation,
            "output_dir": self.dir / name,
            "per_device_train_batch_size": 16,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "eval_strategy": "epoch",
            "num_train_epochs": 2,
            "hidden_dropout": 0,
            "attention_dropout": 0,
            "save_strategy": "no",
            "max_seq_length": LENGTH,
            "doc_stride": STRIDE,
            **more,
        }

    def peer_logits(self, directory, windows):
        import torch
        import transformers

        model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory).eval()
        inputs = {name: torch.tensor([window[name] for window in windows]) for name in ("input_ids", "token_type_ids", "attention_mask")}
        with torch.no_grad():
            found = model(**inputs)
        return found.start_logits.numpy(), found.end_logits.numpy()

    def check_answers(self, output, prefix, rows, wanted, negative):
        predictions, best = (json.loads((output / f"{prefix}_{name}.json").read_text()) for name in ("predictions", "nbest_predictions"))
        self.assertEqual(list(predictions), [row["id"] for row in rows])
        for row in rows:
            answer, texts, probabilities, odds = wanted[row["id"]]
            self.assertEqual(predictions[row["id"]], answer, row["id"])
            self.assertEqual([entry["text"] for entry in best[row["id"]]], texts)
            for entry, probability in zip(best[row["id"]], probabilities):
                self.assertAlmostEqual(entry["probability"], probability, delta=1e-4)
            if negative:
                self.assertAlmostEqual(json.loads((output / f"{prefix}_null_odds.json").read_text())[row["id"]], odds, delta=1e-4)
        if not negative:
            self.assertFalse((output / f"{prefix}_null_odds.json").exists())

    def history_and_answers_equal_those_of_transformers(self):
        """Run by transformers_test.py."""
        import torch
        import transformers

        torch.set_num_threads(1)
        self.run_it(self.flags("ours"))
        ours = history(self.dir / "ours")
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
        rows, others = flat(self.paragraphs), flat(self.others)
        windows = features(tokenizer, others)
        self.assertGreater(len(windows), 2 * len(others))
        model = transformers.AutoModelForQuestionAnswering.from_pretrained(self.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        arguments = transformers.TrainingArguments(
            output_dir=str(self.dir / "theirs"),
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            logging_steps=1,
            num_train_epochs=2,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            optim="adamw_torch_fused",
        )
        peer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=features(tokenizer, rows),
            eval_dataset=windows,
            data_collator=transformers.default_data_collator,
        )
        peer.train()
        theirs = peer.state.log_history
        scores = {"eval_exact_match", "eval_f1"}
        for entry in ours:
            self.assertEqual(scores <= set(entry), "eval_loss" in entry)
        self.assert_same_history([{key: value for key, value in entry.items() if key not in scores} for entry in ours], theirs, 2e-5)
        self.assertLess(ours[-2]["eval_loss"], ours[-1]["train_loss"] * 2)

        starts, ends = self.peer_logits(self.dir / "ours", windows)
        wanted = answers_of(others, windows, starts, ends, negative=False)
        self.check_answers(self.dir / "ours", "eval", others, wanted, negative=False)
        values = [score(wanted[row["id"]][0], row["answers"]["text"]) for row in others]
        results = json.loads((self.dir / "ours/eval_results.json").read_text())
        for name, mean in (("eval_exact_match", sum(v[0] for v in values)), ("eval_f1", sum(v[1] for v in values))):
            self.assertAlmostEqual(results[name], 100 * mean / len(values), delta=1e-9)

        # A test file without answers, on two ranks, with answers of two tokens at most.
        bare = [{"context": p["context"], "qas": [{"id": q["id"], "question": q["question"]} for q in p["qas"]]} for p in self.others]
        self.run_it(
            {
                "model_name_or_path": self.dir / "ours",
                "do_predict": True,
                "test_file": self.write("bare.json", bare),
                "output_dir": self.dir / "new",
                "max_seq_length": LENGTH,
                "doc_stride": STRIDE,
                "n_best_size": 5,
                "max_answer_length": 2,
            },
            ranks=2,
        )
        self.check_answers(self.dir / "new", "predict", others, answers_of(others, windows, starts, ends, False, n_best=5, longest=2), negative=False)
        # One with answers is measured.
        self.run_it(
            {
                "model_name_or_path": self.dir / "ours",
                "do_predict": True,
                "test_file": self.validation,
                "validation_file": self.train,
                "output_dir": self.dir / "both",
                "max_seq_length": LENGTH,
                "doc_stride": STRIDE,
            }
        )
        both = json.loads((self.dir / "both/test_results.json").read_text())
        self.assertAlmostEqual(both["test_f1"], results["eval_f1"], delta=1e-6)

    def questions_without_an_answer(self):
        """Run by transformers_test.py."""
        import torch
        import transformers

        torch.set_num_threads(1)
        paragraphs = make_paragraphs(12, 5, impossible=0.4)
        file = self.write("v2.json", paragraphs)
        same = dict(train_file=file, validation_file=file, eval_strategy="no", max_steps=6)
        self.refuses("its text does not answer it; such questions need --version-2-with-negative", self.flags("v1", **same))
        self.run_it(self.flags("v2", version_2_with_negative=True, **same))
        rows = flat(paragraphs)
        windows = features(transformers.AutoTokenizer.from_pretrained(self.model), rows)
        starts, ends = self.peer_logits(self.dir / "v2", windows)
        none = set()
        for threshold in (0.0, -3.0, 3.0):
            name = f"v2_{threshold}"
            self.run_it(
                {
                    "model_name_or_path": self.dir / "v2",
                    "validation_file": file,
                    "version_2_with_negative": True,
                    "null_score_diff_threshold": threshold,
                    "output_dir": self.dir / name,
                    "max_seq_length": LENGTH,
                    "doc_stride": STRIDE,
                }
            )
            wanted = answers_of(rows, windows, starts, ends, True, threshold=threshold)
            self.check_answers(self.dir / name, "eval", rows, wanted, negative=True)
            none.add(sum(answer == "" for answer, *_ in wanted.values()))
            results = json.loads((self.dir / name / "eval_results.json").read_text())
            for prefix, some in (
                ("", rows),
                ("HasAns_", [r for r in rows if r["answers"]["text"]]),
                ("NoAns_", [r for r in rows if not r["answers"]["text"]]),
            ):
                values = [score(wanted[row["id"]][0], row["answers"]["text"], True) for row in some]
                self.assertEqual(results[f"eval_{prefix}total"], len(some))
                self.assertAlmostEqual(results[f"eval_{prefix}exact"], 100 * sum(v[0] for v in values) / len(some), delta=1e-9)
                self.assertAlmostEqual(results[f"eval_{prefix}f1"], 100 * sum(v[1] for v in values) / len(some), delta=1e-9)
        self.assertGreater(len(none), 1)  # the threshold did something

    def test_more_ranks_train_the_same(self):
        self.run_it(self.flags("alone"))
        self.run_it(self.flags("together", per_device_train_batch_size=8), ranks=2)
        self.assert_same_history(history(self.dir / "together"), history(self.dir / "alone"), 1e-4)
        one, two = (json.loads((self.dir / name / "eval_predictions.json").read_text()) for name in ("alone", "together"))
        self.assertEqual(one, two)
        done = self.run_it(self.flags("ragged", no_pad_to_max_length=True, max_steps=2, eval_strategy="no"), ranks=2)
        self.assertRegex(done.stdout, r"training 32 questions in \d+ windows, validation 18 questions in \d+ windows")

    def test_file_formats_are_the_same(self):
        self.run_it(self.flags("squad", max_steps=3, eval_strategy="no"))
        rows = flat(self.paragraphs)
        (self.dir / "flat.json").write_text(json.dumps({"data": rows}))
        (self.dir / "flat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name in ("flat.json", "flat.jsonl"):
            self.run_it(self.flags(name[:-1] + "_", train_file=self.dir / name, max_steps=3, eval_strategy="no"))
            self.assert_same_history(history(self.dir / (name[:-1] + "_")), history(self.dir / "squad"), 0)

    def test_kill_and_resume(self):
        self.check_kill_and_resume(self.flags("", max_steps=9, eval_strategy="no", hidden_dropout=0.2))

    def test_a_resume_with_other_data(self):
        flags = self.flags("other", max_steps=4, save_strategy="steps", save_steps=2, eval_strategy="no")
        self.run_it(flags)
        changed = json.loads(json.dumps(self.paragraphs))
        changed[3]["qas"][0]["question"] = "who is it"
        again = {**flags, "resume_from_checkpoint": self.dir / "other/checkpoint-2", "max_steps": 6}
        for name, more in (
            ("train_data.hash", {"train_file": self.write("changed.json", changed)}),
            ("doc_stride", {"doc_stride": 4}),
            ("max_seq_length", {"max_seq_length": 40}),
            ("no_pad_to_max_length", {"no_pad_to_max_length": True}),
        ):
            self.refuses(f"{name}: ", {**again, **more})

    def test_bad_files(self):
        def paragraph(**changes):
            question = {"id": "q", "question": "who met", "answers": [{"text": "Otto", "answer_start": 9}], **changes}
            return {"context": "Anna met Otto.", "qas": [{key: value for key, value in question.items() if value is not None}]}

        good = paragraph()
        cases = [
            (paragraph(answers=[{"text": "Otto", "answer_start": 8}]), 'question q: the answer "Otto" does not stand at character 8'),
            (paragraph(answers=[{"text": "Otto", "answer_start": -1}]), "does not stand at character -1 of its text, where none is"),
            (paragraph(answers=[{"text": "", "answer_start": 0}]), "question q: an answer is empty"),
            (paragraph(answers=[{"text": "Otto"}]), "question q: an answer has no text or no whole number answer_start"),
            (paragraph(answers=None), 'question q: has no "answers"'),
            (paragraph(answers=[]), "question q: its text does not answer it"),
            (paragraph(id=None), 'question number 2: has no text "id"'),
            (paragraph(id="first"), "question first: another question has this id"),
            (paragraph(question=7), 'question q: has no text "question"'),
            (paragraph(is_impossible=True), "question q: is_impossible is true, but there are answers"),
        ]
        for number, (bad, message) in enumerate(cases):
            first = json.loads(json.dumps(good))
            first["qas"][0]["id"] = "first"
            file = self.write(f"bad{number}.json", [first, bad])
            if number == 0:
                self.refuses(message, self.flags("bad", train_file=file), ranks=2)
                done = self.run_it(self.flags("skipped", train_file=file, skip_bad_rows=True, max_steps=1, eval_strategy="no"))
                self.assertRegex(done.stdout, "left out 1 bad question; the first: .*bad0.json: question q: the answer")
            else:
                self.refuses(message, self.flags("bad", train_file=file))
        for name, text, message in (
            ("broken.json", '{"data": [', "broken.json: not JSON: byte"),
            ("list.json", "[]", "list.json: expected SQuAD's"),
            ("none.json", '{"data": []}', "none.json holds no question"),
        ):
            (self.dir / name).write_text(text)
            self.refuses(message, self.flags("bad", train_file=self.dir / name))
        long = paragraph(question="who met " * 12)
        long["context"] += " the bank" * 30
        file = self.write("long.json", [good, {**long, "qas": [{**long["qas"][0], "id": "long"}]}])
        self.refuses("question long: its 24 tokens leave 5 of --max-seq-length 32 to a text of", self.flags("bad", train_file=file))
        done = self.run_it(self.flags("long", train_file=file, skip_bad_rows=True, max_steps=1, eval_strategy="no"))
        self.assertIn("left out 1 question that left too little room to the text", done.stdout)

    def test_training_from_scratch(self):
        flags = self.flags("scratch", model_config="small", max_steps=3, eval_strategy="no")
        del flags["model_name_or_path"]
        self.run_it(flags, ranks=2)
        self.assertIn("met\n", (self.dir / "scratch/vocab.txt").read_text())


if __name__ == "__main__":
    unittest.main()
