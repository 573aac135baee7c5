"""WordLevelTokenizer against the tokenizers library: files byte for byte, ids one by one, on real text and on every code point."""

import json
import os
import pathlib
import random
import subprocess
import sysconfig
import tempfile
import unittest

from tokenizers import AddedToken

import word_level_peer
from tokenizer_inputs import EVERY, Fuzz

RUNNER = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "word_level_runner"


def run(*arguments, lines=()):
    """The lines of JSON that the runner prints, read."""
    data = "".join(json.dumps(line) + "\n" for line in lines)
    result = subprocess.run([RUNNER, *map(str, arguments)], input=data.encode(), capture_output=True, timeout=120)
    if result.returncode != 0:
        raise AssertionError(result.stderr.decode())
    return [json.loads(line) for line in result.stdout.splitlines()]


def real_lines():
    """Lines of a pinned Python package, first those that are not ASCII."""
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    plain, foreign = [], []
    for path in sorted((site / "transformers").rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                (plain if line.isascii() else foreign).append(line)
        if len(plain) + len(foreign) >= 50000:
            break
    return foreign + plain


class WordLevelParity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.lines = real_lines()

    def setUp(self):
        self.fuzz = Fuzz(random.Random(self._testMethodName))
        self.comparisons = 0

    def train(self, texts, **options):
        path = self.folder / "ours.json"
        run("train", path, json.dumps(options), lines=texts)
        return path

    def compare(self, texts, lines, **options):
        """Both train on the texts, save, and encode the lines: the same file, the same ids. Returns how many words are known."""
        self.comparisons += 1
        path = self.train(texts, **options)
        ours = path.read_bytes()
        ids = run("encode", path, lines=lines)
        self.assertEqual(len(ids), len(lines))
        key = f"{self._testMethodName.removeprefix('test_')} {self.comparisons}"
        expected = word_level_peer.recorded_summary(key, texts, options, lines)
        if word_level_peer.summary(ours, ids) != expected:
            peer = word_level_peer.trained(texts, **options)
            self.compare_files(ours, word_level_peer.saved(peer))
            self.compare_ids(ids, peer, lines)
            self.fail("the peer now gives what we give; what is recorded differs")
        return len(json.loads(ours)["model"]["vocab"])

    def compare_files(self, ours, theirs):
        if ours == theirs:
            return
        pairs = zip(ours.decode().splitlines(), theirs.decode().splitlines())
        line, (found, wanted) = next(((n, p) for n, p in enumerate(pairs, 1) if p[0] != p[1]), (0, ("", "")))
        self.fail(f"line {line} of the file is {found!a}, the peer's {wanted!a}; {len(ours)} and {len(theirs)} bytes")

    def compare_ids(self, ours, peer, lines):
        for line, found, wanted in zip(lines, ours, word_level_peer.ids(peer, lines), strict=True):
            if found != wanted:
                self.fail(f"{line[:300]!a}: {found[:40]}, the peer's ids are {wanted[:40]}")

    def test_real_lines(self):
        self.assertGreaterEqual(len(self.lines), 50000)
        self.assertGreater(self.compare(self.lines[::2], self.lines), 5000)

    def test_every_code_point(self):
        lines = ["".join(form.format(c) for c in EVERY[i : i + 256]) for i in range(0, len(EVERY), 256) for form in ("a{0}b ", "{0}", ".{0}")]
        self.compare(lines, lines, vocab_size=3000000, min_frequency=0)

    def test_options_of_training(self):
        texts = self.fuzz.lines(2000) + ["the cat the mat [PAD] the UNK UNK the_end", '"\\\b\f\x01\x7f \u2028 \ufeff/ "\\']
        for options in (
            dict(min_frequency=0),
            dict(min_frequency=3),
            dict(vocab_size=4),
            dict(vocab_size=17),
            dict(vocab_size=300),
            dict(special_tokens=["UNK", "x", "the"], unk_token="UNK"),
            dict(special_tokens=["mat", "[UNK]"], min_frequency=1),
            dict(special_tokens=["the", "UNK"], unk_token="UNK", vocab_size=3),
        ):
            with self.subTest(**options):
                self.compare(texts, texts, **options)

    def test_fuzz(self):
        lines = [line.replace("[CLS]", "[SOS]").replace("[SEP]", "[EOS]") for line in self.fuzz.lines(20000)]
        self.compare(lines[::3], lines)

    def test_files_of_the_peer(self):
        """With added tokens of every kind, read and written: the bytes and the ids stay."""
        lines = [line.replace("[CLS]", "[SOS]").replace("[PAD]", "<strip>") for line in self.fuzz.lines(3000)]
        lines += ["see <new>!", "<new><new> x<new>y", " foo  <strip>  bar<strip>", "cat<strip> \t[PAD] <long> <longer> <longest", "", " "]
        tokenizer = word_level_peer.trained(["the cat, the cat; foo bar foo bar"])
        tokenizer.add_special_tokens([AddedToken("<new>", normalized=False)])
        tokenizer.add_tokens(
            [
                AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False),
                AddedToken("<long>", normalized=True),
                AddedToken("<longer>", normalized=True),
                AddedToken("<long", lstrip=True),
                AddedToken("cat", normalized=False),
            ]
        )
        theirs, ours = self.folder / "theirs.json", self.folder / "copy.json"
        for pretty in (True, False):
            tokenizer.save(str(theirs), pretty=pretty)
            run("copy", theirs, ours)
            self.compare_files(ours.read_bytes(), word_level_peer.saved(tokenizer))
        self.compare_ids(run("encode", ours, lines=lines), tokenizer, lines)

    def test_decoding(self):
        path, tokenizer = self.train(self.lines[:3000]), word_level_peer.trained(self.lines[:3000])
        draw = random.Random(3)
        ids = [[draw.choice([draw.randrange(4), draw.randrange(tokenizer.get_vocab_size()), 1 << 20]) for _ in range(length)] for length in range(60)]
        self.assertEqual(run("decode", path, lines=ids), [[tokenizer.decode(row), tokenizer.decode(row, skip_special_tokens=False)] for row in ids])


if __name__ == "__main__":
    unittest.main()
