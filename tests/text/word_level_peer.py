"""The tokenizers library's WordLevel: what word_level_parity_test.py compares with, in large part recorded (tests/recorded.py)."""

import pathlib
import tempfile

import recorded

RECORD = recorded.Record("word_level", ["text/word_level_peer.py"], ["tokenizers"])
SPECIAL = ["[UNK]", "[PAD]", "[SOS]", "[EOS]"]


def trained(texts, vocab_size=30000, min_frequency=2, special_tokens=SPECIAL, unk_token="[UNK]"):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token=unk_token))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=special_tokens, show_progress=False)
    )
    return tokenizer


def saved(tokenizer):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tokenizer.json"
        tokenizer.save(str(path))
        return path.read_bytes()


def ids(tokenizer, lines):
    return [encoding.ids for encoding in tokenizer.encode_batch(lines)]


def summary(file, found_ids):
    return {"file": recorded.hash_of(file), "ids": recorded.block_hashes(found_ids)}


def recorded_summary(key, texts, options, lines):
    """Of the file that training on the texts gives, and of the ids of the lines."""

    def compute():
        tokenizer = trained(texts, **options)
        return summary(saved(tokenizer), ids(tokenizer, lines))

    return RECORD.value(key, recorded.hash_of(texts, options, lines), compute)
