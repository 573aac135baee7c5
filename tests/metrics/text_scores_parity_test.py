"""Scores of texts against sacrebleu's and torchmetrics'."""

import json
import math
import os
import subprocess
import unicodedata
import unittest

import recorded
from metrics.text_scores_peer import RECORD, answer, answers_to_questions, pairs, sentences

RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "text_scores_runner")
WITH_OPTIONS = ("bleu,none", "bleu,char", "bleu,intl", "bleu,lowercase", "bleu,intl,lowercase", "chrf2++", "chrf2,lowercase", "chrf2++,lowercase")
SCORES = ("bleu", "chrf2", "torchmetrics_bleu", "cer", "wer")


def ask(questions):
    done = subprocess.run(
        [RUNNER], input="".join(json.dumps(question) + "\n" for question in questions), check=True, capture_output=True, text=True, timeout=120
    )
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]  # splitlines() knows other ends of lines


class TextScoresParity(unittest.TestCase):
    def compare(self, key, questions):
        expected = RECORD.value(key, recorded.hash_of(questions), lambda: [answer(*question) for question in questions])
        ours = ask(questions)
        self.assertEqual(len(ours), len(expected))
        for (score, hypotheses, references), values, right in zip(questions, ours, expected):
            with self.subTest(score=score, hypotheses=hypotheses, references=references):
                self.assertEqual(len(values), 1 if score.startswith("sentence") else 2)
                for value in values:
                    if right == "none":  # torchmetrics divides by no words or characters
                        self.assertIn(score, ("cer", "wer"))
                        given = "".join(hypotheses)
                        self.assertEqual(value, 1 if (given if score == "cer" else given.split()) else 0)
                    else:  # torchmetrics computes in float
                        self.assertTrue(math.isclose(value, right, rel_tol=1e-6 if score in SCORES[2:] else 1e-11, abs_tol=1e-11), (value, right))

    def test_500_pairs(self):
        found = pairs()
        self.assertEqual(len(found), 500)
        questions = [(score, [hypothesis], [reference]) for score in (*SCORES, "sentence_bleu", "sentence_chrf") for hypothesis, reference in found]
        self.compare("pairs", questions)
        self.compare(
            "pairs with options",
            [(score, [hypothesis], [reference]) for score in (*WITH_OPTIONS, "sentence_bleu,intl") for hypothesis, reference in found],
        )

    def test_corpora(self):
        found = pairs()
        corpora = [found[at : at + size] for size in (2, 7, 50) for at in range(0, 500, size)] + [found]
        self.compare("corpora", [(score, *map(list, zip(*corpus))) for score in SCORES for corpus in corpora])
        self.compare("corpora with options", [(score, *map(list, zip(*corpus))) for score in WITH_OPTIONS for corpus in corpora])

    def test_entities(self):
        questions = [("entities", *corpus) for corpus in sentences()]
        expected = RECORD.value("entities", recorded.hash_of(questions), lambda: [answer(*question) for question in questions])
        for question, ours, right in zip(questions, ask(questions), expected, strict=True):
            with self.subTest(question=question):
                flat = [
                    [float(value) for value in values[:3]] + [[kind, *map(float, rest)] for kind, *rest in values[3:]] for values in (ours, right)
                ]
                for found, wanted in zip(flat[0][:3], flat[1][:3]):
                    self.assertAlmostEqual(found, wanted, delta=1e-11)
                self.assertEqual([kind for kind, *_ in flat[0][3:]], [kind for kind, *_ in flat[1][3:]])
                for (_, *found), (_, *wanted) in zip(flat[0][3:], flat[1][3:]):
                    for one, other in zip(found, wanted, strict=True):
                        self.assertAlmostEqual(one, other, delta=1e-11)

    def test_answers_to_questions(self):
        questions = [("squad", [prediction], right) for prediction, right in answers_to_questions()]
        expected = RECORD.value(
            "squad", recorded.hash_of(questions), lambda: [answer(question[0], question[1], question[2]) for question in questions]
        )
        self.assertGreater(len({str(value) for value in expected}), 10)
        for question, ours, right in zip(questions, ask(questions), expected, strict=True):
            with self.subTest(question=question):
                self.assertAlmostEqual(ours[0], right[0], delta=2e-4)
                if ours[1] == 0 and right == [100, 100]:
                    self.assertEqual(ours[0], 100)  # both have no words: the official script of version 1 counts no common one
                else:
                    self.assertAlmostEqual(ours[1], right[1], delta=2e-4)  # torchmetrics computes in float

    def test_lower_case(self):
        """Every code point that Unicode 14 has, and capital sigmas beside others."""
        every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
        texts = ["".join(f"{c}\u03a3 a{c}\u03a3{c} \u03a3{c}" for c in every[at : at + 1024]) for at in range(0, len(every), 1024)]
        texts += ["\u03a3", "A\u03a3", "A\u03a3.\u03a3B", "\u0130\u03a3", ""]
        (ours,) = ask([("lower", texts, [])])
        if unicodedata.unidata_version == "14.0.0":
            self.assertEqual(ours, [text.lower() for text in texts])
        self.assertEqual(ours[-5:], ["\u03c3", "a\u03c2", "a\u03c3.\u03c3b", "i\u0307\u03c2", ""])

    def test_tokenizers(self):
        """All of ASCII in threes, and every code point."""
        ascii_characters = [chr(c) for c in range(1, 128)]
        some = [c for c in ascii_characters if not c.isalnum()] + ["a", "0", "\u00e9"]
        texts = ["".join(f"{a}{b}{c} " for c in some for b in some) for a in some]
        every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
        texts += ["".join(f"a{c}. {c}b{c}" for c in every[at : at + 1024]) for at in range(0, len(every), 1024)]
        texts += ["".join(pair) for pair in pairs()]
        for tokenizer in ("13a", "intl"):
            with self.subTest(tokenizer=tokenizer):
                self.compare_tokenizer(tokenizer, texts)

    def compare_tokenizer(self, tokenizer, texts):
        expected = RECORD.value(tokenizer, recorded.hash_of(texts), lambda: recorded.block_hashes(answer(tokenizer, texts, [])))
        (ours,) = ask([(tokenizer, texts, [])])
        for block, (mine, theirs) in enumerate(zip(recorded.block_hashes(ours), expected, strict=True)):
            if mine != theirs:
                at = recorded.in_block(block)
                for line, found, right in zip(texts[at], ours[at], answer(tokenizer, texts[at], [])):
                    self.assertEqual(found, right, f"{line[:200]!a}")
                self.fail("the peer now gives what we give; what is recorded differs")


if __name__ == "__main__":
    unittest.main()
