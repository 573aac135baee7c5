"""Writes unicode_tables.inc and word_characters.inc: what the peer's Unicode tables say, asked of the peer for every code point;
and metric_characters.inc: what sacrebleu's do, which are those of Python and of the package regex.

Hugging Face's tokenizers carries Unicode tables of different ages (its lowercase mapping is newer than its
punctuation), so no single Unicode version, and no system library, gives the same ids. Run with the Python of
deps/requirements-test.txt after a change of the tokenizers version; --check only compares.
"""

import argparse
import pathlib
import re
import sys
import unicodedata

import regex
import tokenizers
from tokenizers import normalizers, pre_tokenizers

FOLDER = pathlib.Path(__file__).parent
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)
# A mark of combining class 240 before and one of class 1 after: a mark between them is reordered, a starter is not.
HIGH, LOW = "\u0345", "\u0334"


def bert_normalizer(**chosen):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**off, **chosen})


def ask_peer():
    clean = bert_normalizer(clean_text=True).normalize_str
    chinese = bert_normalizer(handle_chinese_chars=True).normalize_str
    strip = bert_normalizer(strip_accents=True).normalize_str
    lower = bert_normalizer(lowercase=True).normalize_str
    nfd = normalizers.NFD().normalize_str
    representatives = representative_marks(nfd)
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str

    peer = dict(
        removed=[], cleaned_space=[], space=[], chinese=[], punctuation=[], stripped={}, lower={}, mark=[], starter_mark=[], surviving_mark={}
    )
    for code in CODE_POINTS:
        char = chr(code)
        cleaned = clean(char)
        if cleaned == "":
            peer["removed"].append(code)
        elif cleaned == " ":
            peer["cleaned_space"].append(code)
        else:
            assert cleaned == char, hex(code)
        if chinese(char) != char:
            assert chinese(char) == f" {char} "
            peer["chinese"].append(code)
        words = [word for word, _ in split(f"a{char}b")]
        if words == ["a", "b"]:
            peer["space"].append(code)
        elif words == ["a", char, "b"]:
            peer["punctuation"].append(code)
        else:
            assert words == [f"a{char}b"], hex(code)
        lowered = lower(char)
        if lowered != char:
            peer["lower"][code] = [ord(c) for c in lowered]

        decomposed = nfd(char)
        reordered = [nfd(HIGH + c + LOW) != HIGH + c + LOW for c in decomposed]
        kept = [strip(c) for c in decomposed]
        assert "".join(kept) == strip(char), hex(code)
        if strip(char) == "":
            peer["mark" if all(reordered) else "starter_mark"].append(code)
        elif code in HANGUL:
            assert not any(reordered)
        elif strip(char) != char:
            # A dropped starter still ends a run of marks. Here that needs no record: what is kept begins with a
            # starter, and no starter is dropped after a kept mark.
            kept_reordered = [r for r, k in zip(reordered, kept) if k]
            first_kept_mark = next((i for i, (r, k) in enumerate(zip(reordered, kept)) if r and k), len(kept))
            assert not kept_reordered[0], hex(code)
            assert all(r or k for r, k in list(zip(reordered, kept))[first_kept_mark:]), hex(code)
            peer["stripped"][code] = [ord(c) for c in strip(char)]
        elif reordered[0]:
            assert decomposed == char and lowered == char
            peer["surviving_mark"][code] = combining_class(nfd, representatives, char)
    return peer


def ask_whitespace_splitter():
    """Code points of words, and those between words, of the pre-tokenizer Whitespace. All others are punctuation."""
    split = pre_tokenizers.Whitespace().pre_tokenize_str
    found = dict(word=[], space=[])
    for code in CODE_POINTS:
        words = [word for word, _ in split(f"a{chr(code)}b")]
        if words == ["a", "b"]:
            found["space"].append(code)
        elif words == [f"a{chr(code)}b"]:
            found["word"].append(code)
        else:
            assert words == ["a", chr(code), "b"], hex(code)
    return found


def ask_sacrebleu():
    """Code points by the categories of its tokenizer intl, by what they do to a final sigma in lower(), and by Python's re."""

    def is_in(category):
        return [code for code in CODE_POINTS if regex.match(rf"\p{{{category}}}", chr(code))]

    def is_final(before):
        return (before + "\u03a3").lower().endswith("\u03c2")

    cased = [code for code in CODE_POINTS if is_final(chr(code))]
    ignorable = [code for code in CODE_POINTS if is_final("a" + chr(code)) and not is_final(chr(code))]
    return dict(
        number=is_in("N"),
        punctuation=is_in("P"),
        symbol=is_in("S"),
        cased=cased,
        ignorable=ignorable,
        word=[code for code in CODE_POINTS if re.match(r"\w", chr(code))],
    )


def representative_marks(nfd):
    """One mark of every combining class, by class: marks that the peer sorts too (a mark's class never changes)."""
    result = {}
    for code in CODE_POINTS:
        value = unicodedata.combining(chr(code))
        if value and value not in result and nfd(chr(code)) == chr(code) and nfd(HIGH + chr(code) + LOW)[0] != HIGH:
            result[value] = chr(code)
    return result


def combining_class(nfd, representatives, mark):
    """The class of `mark`: that of the representative with which it never changes places."""
    for value, other in representatives.items():
        if nfd(mark + other) == mark + other and nfd(other + mark) == other + mark:
            return value
    raise AssertionError(f"no known class for {ord(mark):#x}")


def ranges(codes):
    result = []
    for code in sorted(codes):
        if result and result[-1][1] == code - 1:
            result[-1][1] = code
        else:
            result.append([code, code])
    return result


def lower_runs(mapping):
    """[first, last, stride, delta]: every stride-th code point from first to last maps to itself + delta."""
    result = []
    for code, out in sorted(mapping.items()):
        delta = out[0] - code
        if result:
            first, last, stride, run_delta = result[-1]
            step = code - last
            if run_delta == delta and step <= 2 and (first == last or step == stride):
                result[-1][1:3] = [code, step]
                continue
        result.append([code, code, 1, delta])
    return result


class Tables:
    """The text of a file of tables."""

    def __init__(self, *comments, source=f"tokenizers {tokenizers.__version__}"):
        head = f"// Written by tables/generate.py from {source}. Do not edit."
        self.lines = [head, *(f"// {comment}" for comment in comments), ""]

    def add(self, kind, name, comment, rows):
        def cell(value):
            return str(value) if -256 < value < 256 else f"{value:#x}"

        self.lines.extend([f"/// {comment}", f"inline constexpr {kind} {name}[] = {{"])
        line = "   "
        for text in ("{" + ", ".join(cell(v) for v in row) + "}" for row in rows):
            if len(line) + len(text) + 2 > 118:
                self.lines.append(line)
                line = "   "
            line += f" {text},"
        self.lines.extend([line, "};", ""])

    def text(self):
        return "\n".join(self.lines[:-1]) + "\n"


def render(peer):
    tables = Tables("Hangul syllables, which decompose by a formula, are left out.")
    table = tables.add

    def sequences(mapping):
        return [[code] + out for code, out in sorted(mapping.items())]

    single = {c: o for c, o in peer["lower"].items() if len(o) == 1}
    several = {c: o for c, o in peer["lower"].items() if len(o) > 1}
    table("Range", "kRemoved", "Dropped by clean_text: control, format and private use characters.", ranges(peer["removed"]))
    table("Range", "kCleanedSpace", "Made a space by clean_text.", ranges(peer["cleaned_space"]))
    table("Range", "kSpace", "Splits words.", ranges(peer["space"]))
    table("Range", "kChinese", "Set apart by tokenize_chinese_chars.", ranges(peer["chinese"]))
    table("Range", "kPunctuation", "Is a word of its own.", ranges(peer["punctuation"]))
    table("LowerRun", "kLower", "Lowercase: first, last, stride, difference.", lower_runs(single))
    table("Sequence", "kLowerSequences", "Lowercase of several code points.", sequences(several))
    table("Range", "kMarks", "Dropped by strip_accents; combining class not 0.", ranges(peer["mark"]))
    table("Range", "kStarterMarks", "Dropped by strip_accents; combining class 0, so marks are not sorted across it.", ranges(peer["starter_mark"]))
    table("MarkClass", "kSurvivingMarks", "Kept by strip_accents, but sorted by this combining class.", sorted(peer["surviving_mark"].items()))
    table("Sequence", "kStripped", "What strip_accents leaves of a decomposed character.", sequences(peer["stripped"]))
    return tables.text()


def render_splitter(found):
    tables = Tables()
    tables.add("CodeRange", "kWordCharacters", "Part of a word.", ranges(found["word"]))
    tables.add("CodeRange", "kSpaces", "Between words.", ranges(found["space"]))
    return tables.text()


def render_metrics(found):
    tables = Tables(source=f"Unicode {unicodedata.unidata_version} of Python and regex {regex.__version__}")
    tables.add("MetricRange", "kNumbers", "Category N.", ranges(found["number"]))
    tables.add("MetricRange", "kPunctuationMarks", "Category P.", ranges(found["punctuation"]))
    tables.add("MetricRange", "kSymbols", "Category S.", ranges(found["symbol"]))
    tables.add("MetricRange", "kCased", "Makes a capital sigma behind it a final one.", ranges(found["cased"]))
    tables.add("MetricRange", "kCaseIgnorable", "May stand between the two.", ranges(found["ignorable"]))
    tables.add("MetricRange", "kPythonWord", "What \\w matches in Python's re.", ranges(found["word"]))
    return tables.text()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when the committed table differs")
    check = parser.parse_args().check
    texts = {
        "unicode_tables.inc": render(ask_peer()),
        "word_characters.inc": render_splitter(ask_whitespace_splitter()),
        "metric_characters.inc": render_metrics(ask_sacrebleu()),
    }
    for name, text in texts.items():
        path = FOLDER / name
        if not check:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path} is not what this version of tokenizers says; run {__file__}")


if __name__ == "__main__":
    main()
