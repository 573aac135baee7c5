"""`lockstep tokenize` as a shell command: what it refuses, and how it says so."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockstep"
VOCAB = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\nWorld\n"


class TokenizeCommand(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        self.vocab = self.directory / "vocab.txt"
        self.vocab.write_text(VOCAB)

    def tokenize(self, data, *flags, vocab=None):
        command = [LOCKSTEP, "tokenize", "--vocab", vocab or self.vocab, *flags]
        return subprocess.run(command, input=data, capture_output=True, timeout=60)

    def error(self, data, *flags, code=1, vocab=None):
        result = self.tokenize(data, *flags, vocab=vocab)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, code, message)
        self.assertEqual(message.count("\n"), 1, message)
        return message

    def test_writes_a_line_for_each_line(self):
        lines = [
            {"text": "Hello World"},
            {"text": "hello", "text_pair": "world"},
            {"text": "", "text_pair": None},
            {"text": "a\u0301 [MASK]", "label": 3},
        ]
        data = "".join(json.dumps(line) + "\n" for line in lines)
        expected = [([2, 5, 6, 3], [0] * 4), ([2, 5, 3, 6, 3], [0, 0, 0, 1, 1]), ([2, 3], [0, 0]), ([2, 1, 4, 3], [0] * 4)]
        expected = [dict(zip(("input_ids", "token_type_ids"), pair)) for pair in expected]

        def read(result):
            return [json.loads(line) for line in result.stdout.splitlines()]

        self.assertEqual(read(self.tokenize(data.encode())), expected)
        # The last line needs no end, and a file serves as well.
        path = self.directory / "in.jsonl"
        path.write_text(data.rstrip("\n"))
        self.assertEqual(read(self.tokenize(b"", "--input", path)), expected)
        self.assertEqual(
            read(self.tokenize(b'{"text": "World hello"}', "--cased", "--max-length", "3")), [{"input_ids": [2, 7, 3], "token_type_ids": [0, 0, 0]}]
        )
        self.assertEqual(self.tokenize(b"").stdout, b"")
        self.assertEqual(read(self.tokenize(b"\xef\xbb\xbf" + data.encode())), expected)  # a byte order mark

    def test_bad_lines_are_named(self):
        good = b'{"text": "hello"}\n'
        for bad, expected in (
            (b"hello", "JSON object"),
            (b"", "JSON object"),
            (b'["hello"]', "JSON object"),
            (b'{"txt": "a"}', 'no "text"'),
            (b'{"text": 3}', '"text" is not a string'),
            (b'{"text": "a", "text_pair": 3}', '"text_pair" is not a string'),
            (b'{"text": "caf\xe9"}', "not UTF-8 (byte 13)"),
            (b'{"text": "\\ud800"}', "JSON object"),
        ):
            with self.subTest(bad=bad):
                message = self.error(good + good + bad + b"\n" + good)
                self.assertIn("standard input:3: ", message)
                self.assertIn(expected, message)
        self.assertIn("standard input:1: max_length is 2", self.error(b'{"text": "a", "text_pair": "b"}', "--max-length", "2"))

    def test_bad_arguments(self):
        self.assertIn("cannot open " + str(self.directory / "none.txt"), self.error(b"", vocab=self.directory / "none.txt"))
        self.assertIn("cannot read " + str(self.directory / "none"), self.error(b"", "--input", self.directory / "none"))
        self.assertIn("cannot read", self.error(b"", "--input", self.directory))
        self.assertIn("--cased is for a vocab.txt", self.error(b"", "--cased", vocab=self.directory, code=2))
        for flags in (["--max-length", "1"], ["--max-length", "many"], ["--no-such-flag"]):
            self.assertNotEqual(self.tokenize(b"", *flags).returncode, 0)

    def test_closed_pipe_is_quiet(self):
        data = self.directory / "many.jsonl"
        data.write_text('{"text": "hello world"}\n' * 100000)
        for restore in (True, False):  # False: SIGPIPE stays ignored, as in Python's own children
            with self.subTest(restore_signals=restore):
                process = subprocess.Popen(
                    [LOCKSTEP, "tokenize", "--vocab", self.vocab, "--input", data],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    restore_signals=restore,
                )
                process.stdout.readline()
                process.stdout.close()
                message = process.stderr.read()
                process.stderr.close()
                self.assertEqual(process.wait(60), -signal.SIGPIPE if restore else 1)
                self.assertEqual(message, b"")

    def test_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run(
                [LOCKSTEP, "tokenize", "--vocab", self.vocab], input=b'{"text": "hello"}\n', stdout=full, stderr=subprocess.PIPE, timeout=60
            )
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"cannot write to standard output: No space left on device", result.stderr)


if __name__ == "__main__":
    unittest.main()
