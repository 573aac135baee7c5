"""A tiny random BERT, tiny data, and running bert_classify on them as a user would."""
import csv
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile

import recorded

BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
WORDS = ("good great fine warm bright clever bad awful dull cold slow poor the a film plot actor scene story "
         "end and but with of very not quite").split()


def make_model(directory, vocab_extra=0):
    """A random 2-layer BERT of transformers with a vocabulary of WORDS; `vocab_extra` more lines in vocab.txt."""
    shutil.copytree(prepared_model(), directory)
    with open(directory / "vocab.txt", "a") as file:
        file.writelines(f"extra{i}\n" for i in range(vocab_extra))
    return directory


def prepared_model():
    """Made once for these scripts and versions of the packages, as importing transformers takes seconds."""
    here = pathlib.Path(__file__)
    prepared = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / f"tiny-model-{recorded.hash_of(recorded.pins(), here.read_bytes())}"
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
    import torch
    import transformers

    directory.mkdir()
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", ","]
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(tokens), hidden_size=32, num_hidden_layers=2,
                                     num_attention_heads=2, intermediate_size=64, max_position_embeddings=64,
                                     initializer_range=0.2)
    transformers.BertForSequenceClassification(config).save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(token + "\n" for token in tokens))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))


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
    return subprocess.run(command(arguments, ranks), capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **(env or {})})


def history(output_dir):
    return json.loads((pathlib.Path(output_dir) / "trainer_state.json").read_text())["log_history"]


def json_lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
