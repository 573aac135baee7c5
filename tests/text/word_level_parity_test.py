"""WordLevelTokenizer against the tokenizers library: files byte for byte, ids one by one, on real text and on every code point."""

import json
import os
import pathlib
import random
import subprocess
import sysconfig
import tempfile
import unittest

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from tokenizer_inputs import EVERY, Fuzz

RUNNER = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "word_level_runner"
SPECIAL = ["[UNK]", "[PAD]", "[SOS]", "[EOS]"]


def run(*arguments, lines=()):
    """The lines of JSON that the runner prints, read."""
    data = "".join(json.dumps(line) + "\n" for line in lines)
    result = subprocess.run([RUNNER, *map(str, arguments)], input=data.encode(), capture_output=True, timeout=120)
    if result.returncode != 0:
        raise AssertionError(result.stderr.decode())
    return [json.loads(line) for line in result.stdout.splitlines()]


def peer(texts, vocab_size=30000, min_frequency=2, special_tokens=SPECIAL, unk_token="[UNK]"):
    tokenizer = Tokenizer(models.WordLevel(unk_token=unk_token))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=special_tokens, show_progress=False))
    return tokenizer


def real_lines():
    """Lines of the pinned Python packages, first those that are not ASCII, and what Debian says of the installed packages."""
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    plain, foreign = [], []
    for path in sorted((site / "transformers").rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                (plain if line.isascii() else foreign).append(line)
        if len(plain) + len(foreign) >= 50000:
            break
    descriptions = pathlib.Path("/var/lib/dpkg/status")
    if descriptions.exists():
        plain += descriptions.read_text(encoding="utf-8").splitlines()
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

    def train(self, texts, **options):
        """Both train and save; the files are equal. The path and the peer's tokenizer."""
        ours, theirs = self.folder / "ours.json", self.folder / "theirs.json"
        run("train", ours, json.dumps(options), lines=texts)
        tokenizer = peer(texts, **options)
        tokenizer.save(str(theirs))
        self.compare_files(ours, theirs)
        return theirs, tokenizer

    def compare_files(self, ours, theirs):
        if ours.read_bytes() == theirs.read_bytes():
            return
        pairs = zip(ours.read_text().splitlines(), theirs.read_text().splitlines())
        line, (found, wanted) = next(((n, p) for n, p in enumerate(pairs, 1) if p[0] != p[1]), (0, ("", "")))
        self.fail(f"line {line} of the file is {found!a}, the peer's {wanted!a}; {ours.stat().st_size} and {theirs.stat().st_size} bytes")

    def compare_ids(self, path, tokenizer, lines):
        ours = run("encode", path, lines=lines)
        self.assertEqual(len(ours), len(lines))
        for line, found, encoding in zip(lines, ours, tokenizer.encode_batch(lines)):
            if found != encoding.ids:
                self.fail(f"{line[:300]!a}: {found[:40]}, the peer's ids are {encoding.ids[:40]}")

    def test_real_lines(self):
        self.assertGreaterEqual(len(self.lines), 50000)
        path, tokenizer = self.train(self.lines[::2])
        self.assertGreater(tokenizer.get_vocab_size(), 5000)
        self.compare_ids(path, tokenizer, self.lines)

    def test_every_code_point(self):
        lines = ["".join(form.format(c) for c in EVERY[i:i + 256]) for i in range(0, len(EVERY), 256) for form in ("a{0}b ", "{0}", ".{0}")]
        path, tokenizer = self.train(lines, vocab_size=3000000, min_frequency=0)
        self.compare_ids(path, tokenizer, lines)

    def test_options_of_training(self):
        texts = self.fuzz.lines(2000) + ["the cat the mat [PAD] the UNK UNK the_end", "\"\\\b\f\x01\x7f \u2028 \ufeff/ \"\\"]
        for options in (dict(min_frequency=0), dict(min_frequency=3), dict(vocab_size=4), dict(vocab_size=17), dict(vocab_size=300),
                        dict(special_tokens=["UNK", "x", "the"], unk_token="UNK"), dict(special_tokens=["mat", "[UNK]"], min_frequency=1),
                        dict(special_tokens=["the", "UNK"], unk_token="UNK", vocab_size=3)):
            with self.subTest(**options):
                path, tokenizer = self.train(texts, **options)
                self.compare_ids(path, tokenizer, texts)

    def test_fuzz(self):
        lines = [line.replace("[CLS]", "[SOS]").replace("[SEP]", "[EOS]") for line in self.fuzz.lines(20000)]
        path, tokenizer = self.train(lines[::3])
        self.compare_ids(path, tokenizer, lines)

    def test_files_of_the_peer(self):
        """With added tokens of every kind, read and written: the bytes and the ids stay."""
        lines = [line.replace("[CLS]", "[SOS]").replace("[PAD]", "<strip>") for line in self.fuzz.lines(3000)]
        lines += ["see <new>!", "<new><new> x<new>y", " foo  <strip>  bar<strip>", "cat<strip> \t[PAD] <long> <longer> <longest", "", " "]
        theirs, tokenizer = self.train(["the cat, the cat; foo bar foo bar"])
        tokenizer.add_special_tokens([AddedToken("<new>", normalized=False)])
        tokenizer.add_tokens([AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False), AddedToken("<long>", normalized=True),
                              AddedToken("<longer>", normalized=True), AddedToken("<long", lstrip=True), AddedToken("cat", normalized=False)])
        tokenizer.save(str(theirs))
        ours = self.folder / "copy.json"
        run("copy", theirs, ours)
        self.compare_files(ours, theirs)
        self.compare_ids(ours, tokenizer, lines)
        tokenizer.save(str(theirs), pretty=False)
        run("copy", theirs, ours)
        tokenizer.save(str(theirs))
        self.compare_files(ours, theirs)

    def test_decoding(self):
        path, tokenizer = self.train(self.lines[:3000])
        draw = random.Random(3)
        ids = [[draw.choice([draw.randrange(4), draw.randrange(tokenizer.get_vocab_size()), 1 << 20]) for _ in range(length)]
               for length in range(60)]
        self.assertEqual(run("decode", path, lines=ids), [[tokenizer.decode(row), tokenizer.decode(row, skip_special_tokens=False)] for row in ids])


if __name__ == "__main__":
    unittest.main()
