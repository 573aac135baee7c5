#!/usr/bin/env python3
"""Pairs of words for natural language inference, generated from WordNet, as train.csv, validation.csv and test.csv with the columns
premise, hypothesis, label and synset. A hypernym is entailment, an antonym contradiction, a sister term neutral."""

import os

from common.program import Error, Parser, UsageError, read_text_file, run_main, whole_number
from common.tables import SPLITS, split_of, write_splits
from common.xxh3 import xxh3_64

LABELS = ("entailment", "neutral", "contradiction")
COLUMNS = (b"premise", b"hypothesis", b"label", b"synset")


def bytes_of(text):
    return text.encode("utf-8", "surrogateescape")


def to_number(field, base=10):
    digits = "0123456789abcdef"[:base]
    if not field.removeprefix("-") or any(character not in digits for character in field.removeprefix("-").lower()):
        raise ValueError(f"'{field}' is not a number")
    return int(field, base)


def parse_synset(line):
    """A line of data.noun or data.verb (wndb(5WN)) as (offset, words, pointers). A pointer is (relation, offset of the target, number of the
    source word, number of the target word): relation "@" is a hypernym, "!" an antonym; words are counted from 1, and 0 is the whole synset."""
    fields = iter([field for field in line.split(" ") if field])
    try:
        offset = to_number(next(fields))
        next(fields)  # the lexicographer's file
        part = next(fields)
        words = []
        for _ in range(to_number(next(fields), 16)):
            words.append(next(fields).replace("_", " "))
            next(fields)  # the word's number in that file
        pointers = []
        for _ in range(to_number(next(fields))):
            relation, target, target_part, numbers = next(fields), to_number(next(fields)), next(fields), next(fields)
            if len(numbers) != 4:
                raise ValueError(f"'{numbers}' is no pair of word numbers")
            if relation in ("@", "!") and target_part == part:
                pointers.append((relation, target, to_number(numbers[:2], 16), to_number(numbers[2:], 16)))
    except StopIteration:
        raise ValueError("the line ends too early") from None
    if not words:
        raise ValueError("a synset without words")
    return offset, words, pointers


def parse_synsets(content, name):
    """The synsets of a file of WordNet; `name` stands in errors."""
    synsets = []
    for number, line in enumerate(content.decode("utf-8", "surrogateescape").split("\n"), 1):
        if not line or line.startswith(" "):  # the license
            continue
        try:
            synsets.append(parse_synset(line))
        except ValueError as error:
            raise Error(f"{name}:{number}: no line of a WordNet data file: {error}") from None
    if not synsets:
        raise Error(f"{name} has no synsets: expected WordNet's data file")
    return synsets


class Pairs:
    """What each pair of words may be: more than one label means that the words have several meanings."""

    def __init__(self, part):
        self._part = part
        self._found = {}  # words -> (label, synset)
        self._ambiguous = set()

    def add(self, premise, hypothesis, label, offset):
        if premise == hypothesis:
            return
        known = self._found.setdefault((premise, hypothesis), (label, f"{self._part}-{offset:08}"))
        if known[0] != label:
            self._ambiguous.add((premise, hypothesis))

    def of(self, label):
        """Rows (premise, hypothesis, label, synset) in the order of the words' hash."""
        rows = [(*words, *known) for words, known in self._found.items() if known[0] == label and words not in self._ambiguous]
        return sorted(rows, key=place_of)

    def __len__(self):
        return len(self._found)


def place_of(row):
    return xxh3_64(bytes_of(row[0] + "\t" + row[1]))


def lexical_pairs(synsets, part, most):
    """As many pairs of each label as of the rarest, at most `most` (0: all), chosen and ordered by a hash of the words. A synset takes part
    with its first word; antonyms are words."""
    by_offset = {synset[0]: synset for synset in synsets}
    below = {}  # hypernym -> synsets
    pairs = Pairs(part)
    for synset in synsets:
        offset, words, pointers = synset
        for relation, target, source_word, target_word in pointers:
            if target not in by_offset:
                raise Error(f"WordNet's {part}s: synset {offset:08} points to {target:08}, which is not there")
            other = by_offset[target][1]
            if relation == "@":
                pairs.add(words[0], other[0], "entailment", offset)
                below.setdefault(target, []).append(synset)
            else:  # both directions of an antonymy fall into one split
                pairs.add(
                    words[min(max(source_word, 1), len(words)) - 1],
                    other[min(max(target_word, 1), len(other)) - 1],
                    "contradiction",
                    min(offset, target),
                )
    for _, sisters in sorted(below.items(), key=lambda item: item[0]):
        for one, two in zip(sisters, sisters[1:]):
            pairs.add(one[1][0], two[1][0], "neutral", one[0])
    of_label = [pairs.of(label) for label in LABELS]
    each = min(most or len(pairs), *map(len, of_label))
    return sorted((row for rows in of_label for row in rows[:each]), key=place_of)


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "--input", default="/usr/share/wordnet", metavar="DIR", help="directory with data.noun and data.verb, as of Debian's wordnet-base"
    )
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="directory to write to")
    parser.add_argument(
        "--pairs-per-label",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="pairs of each label and part of speech at most; 0: as many as there are of the rarest",
    )
    arguments = parser.parse_args()
    rows = {split: [] for split in SPLITS}
    for part in ("noun", "verb"):
        path = os.path.join(arguments.input, "data." + part)
        if not os.path.exists(path):
            raise Error(
                f"{path} is not there; WordNet's files are in Debian's package wordnet-base (apt-get install wordnet-base), or give "
                "their directory as --input"
            )
        for row in lexical_pairs(parse_synsets(read_text_file(path), path), part, arguments.pairs_per_label):
            rows[split_of(bytes_of(row[3]))].append(row)
    table = [f"{'split':12}{'entailment':>12}{'neutral':>10}{'contradiction':>15}{'rows':>8}"]
    for split in SPLITS:
        if not rows[split]:
            raise UsageError(f"too few pairs: nothing is left for {split}.csv")
        counts = [sum(row[2] == label for row in rows[split]) for label in LABELS]
        table.append(f"{split:12}{counts[0]:12}{counts[1]:10}{counts[2]:15}{len(rows[split]):8}")
    write_splits(arguments.output_dir, COLUMNS, {split: [[bytes_of(field) for field in row] for row in rows[split]] for split in SPLITS})
    print("\n".join(table))
    print(f"generated from a lexicon, not written by people: WordNet, {arguments.input}\nwritten to {arguments.output_dir}")


if __name__ == "__main__":
    run_main(main)
