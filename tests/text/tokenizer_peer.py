"""The fast tokenizer of transformers: what tokenizer_parity_test.py compares with, recorded (tests/recorded.py)."""

import functools
import json
import pathlib
import subprocess
import sys
import tempfile

import recorded

RECORD = recorded.Record("tokenizer", ["text/tokenizer_peer.py"], ["transformers", "tokenizers"])


@functools.cache
def tokenizer(directory):
    from transformers import AutoTokenizer, logging

    logging.set_verbosity_error()
    return AutoTokenizer.from_pretrained(directory)


def answers(directory, lines, max_length):
    """A line of JSON for each text or pair of texts, as `lockstep tokenize` prints it."""
    limit = dict(truncation=True, max_length=max_length) if max_length else dict(truncation=False)
    found = tokenizer(directory)(lines, padding=False, **limit)
    return [json.dumps({"input_ids": ids, "token_type_ids": types}) for ids, types in zip(found["input_ids"], found["token_type_ids"])]


def recorded_hashes(key, directory, lines, max_length):
    """Those of the peer's answers, with the files of `directory`."""
    files = [
        [path.name, recorded.hash_of(path.read_bytes())] for path in sorted(pathlib.Path(directory).iterdir()) if path.suffix in (".json", ".txt")
    ]
    return RECORD.value(key, recorded.hash_of(files, lines, max_length), lambda: recorded.block_hashes(answers(directory, lines, max_length)))


def tables_are_current(source):
    """Whether zoo/text/tables/generate.py, which asks the peer about every code point, writes the tables that are there."""

    def compute():
        return subprocess.run([sys.executable, source / "zoo/text/tables/generate.py", "--check"]).returncode == 0

    tables = sorted(path for path in (source / "zoo/text/tables").iterdir() if path.is_file())
    return RECORD.value("tables", recorded.hash_of(*(path.read_bytes() for path in tables)), compute)


def with_added_tokens(model, tokens):
    """{file: content} of what the peer saves after adding tokens to `model`; "tokenizer.json" is only what it has added."""

    def compute():
        import tokenizers
        from transformers import AutoTokenizer

        peer = AutoTokenizer.from_pretrained(model)
        peer.add_tokens([tokenizers.AddedToken(content, **{"normalized": False, **options}) for content, options in tokens])
        with tempfile.TemporaryDirectory() as folder:
            peer.save_pretrained(folder)
            files = {path.name: path.read_text(encoding="utf-8") for path in pathlib.Path(folder).iterdir()}
        saved, before = json.loads(files["tokenizer.json"]), json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
        differing = {name: saved[name] for name in saved if saved[name] != before.get(name)}
        assert list(saved) == list(before) and "model" not in differing, differing.keys()
        return {**files, "tokenizer.json": json.dumps(differing)}

    model_hash = recorded.hash_of(*((model / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")))
    return RECORD.value("files with added tokens", recorded.hash_of(model_hash, tokens), compute)
