"""CSV files for training, validation and test."""

import os

from .program import make_folder, write_file
from .xxh3 import xxh3_64

SPLITS = ("train", "validation", "test")


def split_of(name):
    """The split of everything that has this name (bytes): XXH3 modulo 10; 8 is validation, 9 is test, the others are train."""
    return {8: "validation", 9: "test"}.get(xxh3_64(name) % 10, "train")


def csv_row(fields):
    """A line of CSV, from bytes. Quoted only if necessary."""
    is_empty = len(fields) == 1 and not fields[0]
    quoted = [b'"' + field.replace(b'"', b'""') + b'"' if is_empty or any(byte in b',"\r\n' for byte in field) else field for field in fields]
    return b",".join(quoted) + b"\n"


def write_splits(folder, header, rows_of_split):
    """Writes train.csv, validation.csv and test.csv. `rows_of_split`: split -> rows of bytes."""
    make_folder(folder)
    for split in SPLITS:
        write_file(os.path.join(folder, split + ".csv"), b"".join(csv_row(row) for row in [header, *rows_of_split[split]]))
