"""A tiny random BERT, tiny data, and running bert_classify on them as a user would."""

import csv
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import random_bert
import recorded

BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
WORDS = (
    "good great fine warm bright clever bad awful dull cold slow poor the a film plot actor scene story end and but with of very not quite"
).split()


def make_model(directory, vocab_extra=0):
    """A random 2-layer BERT with a vocabulary of WORDS; `vocab_extra` more lines in vocab.txt."""
    write_model(directory)
    with open(directory / "vocab.txt", "a") as file:
        file.writelines(f"extra{i}\n" for i in range(vocab_extra))
    return directory


def prepared_model():
    """One for all tests, which stays."""
    made_by = recorded.hash_of(*(pathlib.Path(module.__file__).read_bytes() for module in (random_bert, sys.modules[__name__])))
    prepared = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / f"tiny-model-{made_by}"
    if not prepared.exists():
        with tempfile.TemporaryDirectory(dir=prepared.parent) as folder:
            write_model(pathlib.Path(folder) / "model")
            try:
                os.rename(pathlib.Path(folder) / "model", prepared)
            except OSError:  # another test has been faster
                if not prepared.exists():
                    raise
    return prepared


def write_model(directory):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", ","]
    random_bert.write(directory, "BertForSequenceClassification", tokens)


def make_rows(count, seed, labels=("positive", "negative")):
    """Texts of 3 to 20 words whose first two words tell the label."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.randrange(2)
        hint = draw.choices(WORDS[:6] if label == 0 else WORDS[6:12], k=2)
        rows.append((" ".join(hint + draw.choices(WORDS[12:], k=draw.randrange(1, 19))) + ".", labels[label]))
    return rows


def write_csv(path, rows, header=("text", "label")):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def command(arguments, ranks=None):
    """bert_classify with `arguments`; a dict's keys are flags. `ranks`: under lockrun with so many."""
    line = [str(BIN / "bert_classify")]
    if ranks is not None:
        line = [str(BIN / "lockrun"), "--standalone", "--nproc-per-node", str(ranks), *line]
    for flag, value in arguments.items():
        line.append(flag)
        if value is not True:
            line.append(str(value))
    return line


def run(arguments, ranks=None, env=None, timeout=120):
    return subprocess.run(command(arguments, ranks), capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})


def history(output_dir):
    return json.loads((pathlib.Path(output_dir) / "trainer_state.json").read_text())["log_history"]


def json_lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
