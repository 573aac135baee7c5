"""What tokenizer_parity_test.py tokenizes, and with which vocabularies: the same on every machine that has the pinned packages."""

import collections
import pathlib
import re
import sysconfig

# Every code point, but for planes in which nothing is assigned or all is for private use: there every 61st.
EVERY = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and (c < 0x40000 or 0xE0000 <= c < 0xF0000 or c % 61 == 0)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Every character is a token, at the start of a word and behind it, so that no difference hides behind [UNK]. Where nothing is
# assigned (above the ideographs of planes 2 and 3, but for plane 14's), kept and dropped are all there is to tell apart, and
# [UNK] tells it.
CODE_POINTS = [c for c in EVERY if not c.isspace() and c != "\0" and (ord(c) < 0x32400 or 0xE0000 <= ord(c) < 0xE0200)]


def review_lines(folder):
    lines = []
    for path in sorted(folder.glob("*_GroundTruth.txt")):
        for line in path.read_bytes().decode("cp1252", errors="replace").splitlines():
            lines.append(line.split("\t")[-1])
    return lines


def python_lines(limit):
    """Lines of pinned Python packages: code, and above all those that are not ASCII."""
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    plain, foreign = [], []
    for path in (path for package in ("transformers", "numpy", "accelerate") for path in sorted((site / package).rglob("*.py"))):
        lines = path.read_text(encoding="utf-8").splitlines()
        foreign.extend(line for line in lines if not line.isascii())
        plain.extend(lines[:5])
        if len(foreign) >= limit and len(plain) >= limit:
            break
    return plain[:limit] + foreign[:limit]


def cased_vocabulary(lines):
    """The most frequent words and ends of words, and all characters."""
    words = collections.Counter(word for line in lines for word in re.findall(r"\w+|[^\w\s]", line))
    ends = collections.Counter()
    for word, count in words.items():
        for length in (2, 3, 4, 5):
            if len(word) > length:
                ends["##" + word[-length:]] += count
    characters = sorted({c for word in words for c in word})
    found = [token for counter, limit in ((words, 3500), (ends, 1500)) for token, _ in counter.most_common(limit)]
    return list(dict.fromkeys([*SPECIAL, *characters, *("##" + c for c in characters), *found]))


class Fuzz:
    """Lines of all sorts of characters, by a random.Random."""

    def __init__(self, random):
        self.random = random

    def line(self):
        draw, pick = self.random, self.random.choice
        kinds = [
            lambda: pick("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"),
            lambda: pick(" \t\n\r\u00a0\u2003\u3000\u2028\u200b\x00\x07\x85\ufeff\ufffd"),
            lambda: pick("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\u00bf\u2014\u3002\u300c"),
            lambda: chr(draw.randrange(0xA0, 0x250)),
            lambda: chr(draw.randrange(0x300, 0x370)),
            lambda: pick("\u0130\u03a3\u03c2\u1e9e\u00df\u212b\u2260\u037e\u0958\u09cb\u0cc0\ufb01\u01c5"),
            lambda: pick("\u302e\u302f\u1b44\ua953\U0001d165\U0001d16d\U0001d15f\U0001e94a\U0001e944\u05b0\u0f71\u0f72"),
            lambda: chr(draw.randrange(0xAC00, 0xD7A4)),
            lambda: chr(draw.randrange(0x4E00, 0xA000)),
            lambda: chr(draw.randrange(0x900, 0x1000)),
            lambda: chr(draw.randrange(0x1F300, 0x1FB00)),
            lambda: pick(CODE_POINTS),
            lambda: pick(SPECIAL),
            lambda: pick(["[MASK", "MASK]", "[[CLS]]", "[cls]", "[ SEP ]", "[UNK][UNK]"]),
            lambda: pick("ab\u00e9\u4e00") * draw.randrange(95, 106),
        ]
        weights = [draw.random() ** 3 for _ in kinds]
        weights[-1] *= 0.02
        return "".join(kind() for kind in draw.choices(kinds, weights, k=draw.randrange(60)))

    def lines(self, count):
        return [self.line() for _ in range(count)]
