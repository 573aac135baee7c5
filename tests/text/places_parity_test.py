"""Where tokens stand, which word they are of, and the windows of long texts: equal to the fast tokenizer of transformers."""

import json
import os
import pathlib
import random
import re
import subprocess
import tempfile
import unicodedata
import unittest

import transformers
from tokenizer_inputs import CODE_POINTS, SPECIAL, Fuzz, cased_vocabulary

TEST_BIN = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"])
transformers.logging.set_verbosity_error()
# Marks that survive the stripping of accents, since the peer's tables are older than they are. The peer sorts them among the other
# marks around them, and then gives one the place of another.
TABLES = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"], "zoo/text/tables/unicode_tables.inc").read_text()
LATE_MARKS = {chr(int(code, 16)) for code in re.findall(r"\{(0x[0-9a-f]+), ", TABLES.partition("kSurvivingMarks[]")[2].partition("};")[0])}


class Places(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="lockstep_places_")
        cls.addClassCleanup(cls.temporary.cleanup)
        root = pathlib.Path(cls.temporary.name)
        draw = random.Random(7)
        cls.fuzz = Fuzz(draw)
        cls.lines = ["".join(c for c in line if not LATE_MARKS & set(unicodedata.normalize("NFD", c))) for line in cls.fuzz.lines(2500)]
        words = cased_vocabulary(["".join(draw.choices("abcdefghij", k=draw.randrange(1, 9))) for _ in range(3000)])
        small = list(dict.fromkeys([*words, *map(str, range(10)), *("##" + c for c in "0123456789klmnopqrstuvwxyz"), *"klmnopqrstuvwxyz.,!?"]))
        full = SPECIAL + CODE_POINTS + ["##" + c for c in CODE_POINTS]
        cls.directories = []
        for name, vocabulary, config in (
            ("full", full, {}),
            ("cased", full, {"do_lower_case": False}),
            ("words", small, {}),
            ("accents", small, {"strip_accents": False, "tokenize_chinese_chars": False}),
        ):
            directory = root / name
            directory.mkdir()
            (directory / "vocab.txt").write_text("".join(token + "\n" for token in vocabulary), encoding="utf-8", newline="\n")
            (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
            (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
            cls.directories.append(directory)
        added = root / "added"
        peer = transformers.AutoTokenizer.from_pretrained(root / "words")
        peer.add_tokens(
            [
                transformers.AddedToken("<gap>", lstrip=True, rstrip=True, special=True, normalized=False),
                transformers.AddedToken("\u00dcnited", normalized=True),
                transformers.AddedToken("<long>", normalized=True),
            ]
        )
        peer.save_pretrained(added)
        (added / "config.json").write_text(json.dumps({"model_type": "bert"}))
        cls.directories.append(added)

    def ask(self, directory, questions):
        data = "".join(json.dumps(question, ensure_ascii=False) + "\n" for question in questions)
        done = subprocess.run([TEST_BIN / "places_runner", directory], input=data.encode(), capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return [json.loads(line) for line in done.stdout.decode().splitlines()]

    def with_added(self, line):
        return line.replace("[PAD]", " <gap> ").replace("[MASK", "\u00fcnited").replace("ab", "<LONG>")

    def test_places_of_random_texts(self):
        for directory in self.directories:
            peer = transformers.AutoTokenizer.from_pretrained(directory)
            lines = [self.with_added(line) for line in self.lines] if directory.name == "added" else self.lines
            lines = [
                *lines,
                "",
                " ",
                "Stra\u00dfe \u0130stanbul \ufb01n \u1e9e",
                "\u4e2d\u6587 a\u4e2db",
                "e\u0301e\u0300 \u00e9",
                "\uac01\ud55c",
                "x" * 101 + " y",
                "\u00e9" * 100 + "z",
            ]
            found = self.ask(directory, [{"text": line} for line in lines])
            theirs = peer(lines, add_special_tokens=False, return_offsets_mapping=True)
            for line, ours, ids, spans in zip(lines, found, theirs["input_ids"], theirs["offset_mapping"], strict=True):
                self.assertEqual(ours, {"ids": ids, "spans": [list(span) for span in spans]}, (directory.name, line))

    def test_words(self):
        draw = random.Random(11)
        for directory in self.directories:
            peer = transformers.AutoTokenizer.from_pretrained(directory)
            sentences = [
                draw.choices(
                    ["a", "bc", "U.S.", "it's", "\u200b", "\x07", "caf\u00e9", "[MASK]", "x y", "", "\u4e2d\u6587", *self.lines[:200]],
                    k=draw.randrange(1, 12),
                )
                for _ in range(400)
            ]
            for max_length in (0, 2, 3, 8, 24):
                found = self.ask(directory, [{"words": sentence, "max_length": max_length} for sentence in sentences])
                limit = dict(truncation=True, max_length=max_length) if max_length else {}
                theirs = peer(sentences, is_split_into_words=True, **limit)
                for row, ours in enumerate(found):
                    words = [-1 if word is None else word for word in theirs.word_ids(row)]
                    self.assertEqual(
                        ours,
                        {"ids": theirs["input_ids"][row], "types": theirs["token_type_ids"][row], "word_ids": words},
                        (directory.name, max_length, sentences[row]),
                    )

    def test_windows(self):
        directory = self.directories[2]
        peer = transformers.AutoTokenizer.from_pretrained(directory)
        draw = random.Random(13)
        cases = [(tokens, room, stride) for tokens in range(0, 14) for room in range(1, 9) for stride in range(room)]
        cases += [(draw.randrange(400), room := draw.randrange(2, 90), draw.randrange(room)) for _ in range(100)]
        for (tokens, room, stride), ours in zip(cases, self.ask(directory, [{"windows": case} for case in cases]), strict=True):
            text = " ".join(str(number % 10) for number in range(tokens))
            theirs = peer(
                "a", text, truncation="only_second", max_length=room + 4, stride=stride, return_overflowing_tokens=True, return_offsets_mapping=True
            )
            wanted = []
            for row in range(len(theirs["input_ids"])):
                places = [span for span, part in zip(theirs["offset_mapping"][row], theirs.sequence_ids(row)) if part == 1]
                wanted.append([places[0][0] // 2, places[-1][0] // 2 + 1] if places else [0, 0])
            self.assertEqual(ours, wanted, (tokens, room, stride))


if __name__ == "__main__":
    unittest.main()
