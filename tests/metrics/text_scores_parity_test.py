"""Scores of texts against sacrebleu's and torchmetrics'."""

import json
import math
import os
import subprocess
import unittest

import recorded
from metrics.text_scores_peer import RECORD, answer, pairs

RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "text_scores_runner")
SCORES = ("bleu", "chrf2", "torchmetrics_bleu", "cer", "wer")


def ask(questions):
    done = subprocess.run([RUNNER], input="".join(json.dumps(question) + "\n" for question in questions), check=True,
                          capture_output=True, text=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


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
        questions = [(score, [hypothesis], [reference]) for score in (*SCORES, "sentence_bleu", "sentence_chrf")
                     for hypothesis, reference in found]
        self.compare("pairs", questions)

    def test_corpora(self):
        found = pairs()
        corpora = [found[at:at + size] for size in (2, 7, 50) for at in range(0, 500, size)] + [found]
        self.compare("corpora", [(score, *map(list, zip(*corpus))) for score in SCORES for corpus in corpora])

    def test_tokenizer_13a(self):
        """All of ASCII in threes, and every code point."""
        ascii_characters = [chr(c) for c in range(1, 128)]
        some = [c for c in ascii_characters if not c.isalnum()] + ["a", "0", "\u00e9"]
        texts = ["".join(f"{a}{b}{c} " for c in some for b in some) for a in some]
        every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
        texts += ["".join(f"a{c}. {c}b{c}" for c in every[at:at + 1024]) for at in range(0, len(every), 1024)]
        texts += ["".join(pair) for pair in pairs()]
        expected = RECORD.value("13a", recorded.hash_of(texts), lambda: recorded.block_hashes(answer("13a", texts, [])))
        ours, = ask([("13a", texts, [])])
        for block, (mine, theirs) in enumerate(zip(recorded.block_hashes(ours), expected, strict=True)):
            if mine != theirs:
                at = recorded.in_block(block)
                for line, found, right in zip(texts[at], ours[at], answer("13a", texts[at], [])):
                    self.assertEqual(found, right, f"{line[:200]!a}")
                self.fail("the peer now gives what we give; what is recorded differs")


if __name__ == "__main__":
    unittest.main()
