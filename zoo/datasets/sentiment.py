#!/usr/bin/env python3
"""Sentences that people rated, from the corpus inside the package vaderSentiment, as train.csv, validation.csv and test.csv with the
columns text, label (positive or negative), source and document."""

import math
import os
import re

from common.program import Error, Parser, UsageError, read_text_file, run_main
from common.tables import SPLITS, split_of, write_splits

FILES = {
    "movie": "movieReviewSnippets_GroundTruth.txt",
    "amazon": "amazonReviewSnippets_GroundTruth.txt",
    "tweets": "tweets_GroundTruth.txt",
    "nyt": "nytEditorialSnippets_GroundTruth.txt",
}
COLUMNS = (b"text", b"label", b"source", b"document")
WHITE_SPACE = b" \t\r\n\v\f"
NUMBER = re.compile(rb"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def to_utf8(text):
    """Converts text to UTF-8; what is not UTF-8 is Windows-1252."""
    try:
        text.decode("utf-8")
        return text
    except UnicodeDecodeError:
        pass
    try:
        return text.decode("cp1252").encode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte 0x{text[error.start]:02X} is neither UTF-8 nor Windows-1252") from None


def parse_rating(field):
    if not NUMBER.fullmatch(field) or not math.isfinite(float(field)):
        raise ValueError(f"the rating '{field.decode('utf-8', 'replace')}' is not a number")
    return float(field)


def parse_line(line):
    """id TAB mean rating TAB text: as (id, rating, text)."""
    fields = line.split(b"\t", 2)
    if len(fields) < 3:
        raise ValueError("expected id TAB mean rating TAB text")
    identifier, rating, text = fields[0].strip(WHITE_SPACE), parse_rating(fields[1].strip(WHITE_SPACE)), to_utf8(fields[2]).strip(WHITE_SPACE)
    if not identifier or not text:
        raise ValueError("the text is empty" if identifier else "the id is empty")
    return identifier, rating, text


def parse_ratings(content, name):
    """The lines of a ground-truth file; `name` stands in errors."""
    ratings = []
    for number, line in enumerate(content.split(b"\n"), 1):
        line = line.strip(WHITE_SPACE)
        if not line:
            continue
        try:
            ratings.append(parse_line(line))
        except ValueError as error:
            raise Error(f"{name}:{number}: {error}") from None
    if not ratings:
        raise Error(f"{name} is empty: expected lines of id TAB mean rating TAB text")
    return ratings


def document_of(source, identifier):
    """Sentences of one review or article share it: "amazon-12" for 12_3."""
    return source.encode() + b"-" + identifier.split(b"_")[0]


def duplicate_key(text):
    """Equal for texts that differ only in the case of ASCII letters and in white space."""
    return re.sub(b"[" + WHITE_SPACE + b"]+", b" ", text).lower()


class Corpus:
    """Takes the parts of the corpus, leaves out neutral and duplicate sentences, and deals documents to the splits."""

    def __init__(self, min_rating):
        self.min_rating = min_rating
        self.rows = {split: [] for split in SPLITS}
        self.neutral = self.duplicates = 0
        self._seen = set()

    def add(self, source, ratings):
        for identifier, rating, text in ratings:
            if abs(rating) < self.min_rating:
                self.neutral += 1
                continue
            key = duplicate_key(text)
            if key in self._seen:
                self.duplicates += 1
                continue
            self._seen.add(key)
            document = document_of(source, identifier)
            self.rows[split_of(document)].append((text, b"positive" if rating > 0 else b"negative", source.encode(), document))


def choose_parts(folder, named):
    """The names of the parts to take: those that were named, or all whose file is there."""
    for name in named or ():
        if name not in FILES:
            raise UsageError(f"unknown part '{name}'; expected movie, amazon, tweets or nyt")
    parts = [part for part, file in FILES.items() if (part in named if named else os.path.exists(os.path.join(folder, file)))]
    if not parts:
        raise Error(
            f"{folder} has no *_GroundTruth.txt; in a checkout scripts/fetch_demo_data fetches them into .data/vader; elsewhere take "
            "them out of additional_resources/hutto_ICWSM_2014.tar.gz in the source distribution of vaderSentiment 3.3.2"
        )
    return parts


def print_counts(corpus, parts):
    def line(part, split):
        labels = [row[1] for row in corpus.rows[split] if part == "all" or row[2] == part.encode()]
        print(f"{part:8}{split:12}{labels.count(b'positive'):9}{labels.count(b'negative'):10}{len(labels):8}")

    print(f"{'part':8}{'split':12}{'positive':>9}{'negative':>10}{'rows':>8}")
    for part in parts + ["all"] * (len(parts) > 1):
        for split in SPLITS:
            line(part, split)


def main():
    parser = Parser(__doc__)
    parser.add_argument("--input", required=True, metavar="DIR", help="directory with *_GroundTruth.txt")
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="directory to write to")
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        metavar="NAMES",
        help="movie, amazon, tweets, nyt or several with commas between (default: all that exist)",
    )
    parser.add_argument("--min-rating", type=float, default=0.5, metavar="X", help="leave out sentences rated nearer to 0 than this")
    arguments = parser.parse_args()
    shown = repr(arguments.min_rating).removesuffix(".0")
    if not arguments.min_rating > 0:
        raise UsageError(f"min-rating is {shown}; expected a number above 0, for a rating of 0 is neither positive nor negative")
    corpus = Corpus(arguments.min_rating)
    parts = choose_parts(arguments.input, arguments.parts)
    for part in parts:
        path = os.path.join(arguments.input, FILES[part])
        corpus.add(part, parse_ratings(read_text_file(path), path))
    for split in SPLITS:
        if not corpus.rows[split]:
            raise UsageError(f"too few sentences with a rating of {shown} or more: nothing is left for {split}.csv")
    write_splits(arguments.output_dir, COLUMNS, corpus.rows)
    print_counts(corpus, parts)
    print(f"left out: {corpus.neutral} neutral (rating nearer to 0 than {shown}), {corpus.duplicates} duplicates")
    print(f"written to {arguments.output_dir}")


if __name__ == "__main__":
    run_main(main)
