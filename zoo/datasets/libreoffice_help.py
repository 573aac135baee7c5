#!/usr/bin/env python3
"""LibreOffice's help in two languages, joined by the ids of its paragraphs, as train, validation and test: each as two files of aligned
lines. Also writes SOURCE.txt, which names the packages and their license."""

import os
import re

from common.program import Error, Parser, UsageError, end_if_stopped, make_folder, read_text_file, run_main, run_program, temporary_folder, write_file
from common.tables import SPLITS, split_of

PARAGRAPH = re.compile(rb"p|h[1-6]")
WHITE_SPACE = re.compile(rb"(?:\xc2\xa0|[ \t\r\n\v\f])+")  # no-break spaces too
ENTITY = re.compile(rb"&([^;&]{0,9});")
NAMED = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'", b"nbsp": b" "}
NUMBERED = re.compile(rb"#(?:[xX]([0-9a-fA-F]+)|([0-9]+))")


def next_tag(html, position):
    """The next tag as (name, attributes, begin, end); name is "p" or "/p". Comments are tags that nobody asks for."""
    begin = html.find(b"<", position)
    if begin < 0:
        return None
    is_comment = html.startswith(b"<!--", begin)
    close = html.find(b"-->" if is_comment else b">", begin)
    if close < 0:
        return None
    inner = html[begin + 1 : close]
    space = re.compile(rb"[ \t\r\n]").search(inner, 1)
    name_end = space.start() if space else len(inner)
    return inner[:name_end], inner[name_end:], begin, close + (3 if is_comment else 1)


def character(match):
    """The text of an entity, such as "<" of "&lt;"; what is not a known one stays."""
    name = match[1]
    if name in NAMED:
        return NAMED[name]
    number = NUMBERED.fullmatch(name)
    code = 0 if not number else int(number[1], 16) if number[1] else int(number[2])
    if not 0 < code <= 0x10FFFF or 0xD800 <= code < 0xE000:
        return match[0]
    return chr(code).encode("utf-8")


def inner_text(html, tag):
    """What stands between a paragraph's tags, without the marks in it, and the position behind it."""
    text, position = [], tag[3]
    while found := next_tag(html, position):
        name, _, begin, end = found
        text.append(html[position:begin])
        if PARAGRAPH.fullmatch(name):
            return b"".join(text), position  # never closed: the next one begins
        position = end
        if name == b"/" + tag[0]:
            return b"".join(text), position
        if name in (b"br", b"br/"):
            text.append(b" ")
        if name in (b"script", b"style"):
            close = html.find(b"</" + name, position)
            position = len(html) if close < 0 else close
    return b"".join(text), len(html)


def help_paragraphs(html):
    """The paragraphs and headings of a page that have an id and text, as id -> text on one line, in the page's order. The first of an id counts."""
    paragraphs, position = {}, 0
    while tag := next_tag(html, position):
        position = tag[3]
        if not PARAGRAPH.fullmatch(tag[0]):
            continue
        marked = tag[1].partition(b' id="')[2].partition(b'"')[0]
        text, position = inner_text(html, tag)
        text = WHITE_SPACE.sub(b" ", ENTITY.sub(character, text)).strip(b" ")
        if not marked or not text or marked in paragraphs:
            continue
        try:
            text.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError("the page is not UTF-8") from None
        paragraphs[marked] = text
    return paragraphs


class HelpPairs:
    """Collects pages: all pairs of a page fall into one split, and a pair that was there before, in any page, is left out."""

    def __init__(self):
        self.pairs = {split: [] for split in SPLITS}
        self.pages = self.duplicates = self.untranslated = 0
        self._seen = set()

    def add(self, page, source, target):
        self.pages += 1
        pairs = self.pairs[split_of(page)]
        for marked, text in source.items():
            translated = target.get(marked)
            if translated is None:
                continue
            if translated == text:
                self.untranslated += 1
            elif (text, translated) in self._seen:
                self.duplicates += 1
            else:
                self._seen.add((text, translated))
                pairs.append((text, translated))


def package_of(language):
    return "libreoffice-help-" + language.lower()


def languages_of(text):
    languages = text.split(",")
    if len(languages) != 2 or languages[0] == languages[1]:
        raise UsageError(f"--languages is {text}; expected two languages with a comma between, such as en-US,it")
    for language in languages:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", language):
            raise UsageError(f"'{language}' is no language; expected a name such as en-US or it")
    return languages


def fetch(languages, folder):
    """Unpacks the packages of both languages into a folder. Returns their names and versions."""
    downloads = os.path.join(folder, "packages")
    make_folder(downloads)
    for language in languages:
        package = package_of(language)
        run_program(
            ["apt-get", "download", "-q", package],
            downloads,
            f"is there a package {package}? `apt-get update` renews the list, `apt-cache search libreoffice-help-` shows the languages; "
            "--input takes an unpacked package",
        )
    names = sorted(os.listdir(downloads))
    for name in names:
        run_program(["dpkg-deb", "-x", os.path.join(downloads, name), folder], downloads, "is there space in the directory for temporary files?")
    return "\n".join(names)


def pages_of(root, language):
    for base in (os.path.join(root, "usr/share/libreoffice/help"), root):
        pages = os.path.join(base, language, "text")
        if os.path.isdir(pages):
            return pages
    raise Error(f"{root} has no {language}/text; expected an unpacked package {package_of(language)}, or /usr/share/libreoffice/help")


def read_paragraphs(path):
    try:
        return help_paragraphs(read_text_file(path))
    except ValueError as error:
        raise Error(f"{path}: {error}") from None


def read_pages(root, languages):
    source, target = (pages_of(root, language) for language in languages)
    pages = []
    for folder, _, names in os.walk(source):
        pages += [os.path.relpath(os.path.join(folder, name), source) for name in names if os.path.splitext(name)[1] == ".html"]
    pairs = HelpPairs()
    for page in sorted(pages, key=lambda page: os.fsencode(page).split(b"/")):
        end_if_stopped()
        if os.path.isfile(os.path.join(target, page)):
            pairs.add(os.fsencode(page), *(read_paragraphs(os.path.join(side, page)) for side in (source, target)))
    return pairs


def write_pairs(folder, languages, pairs):
    make_folder(folder)
    for split in SPLITS:
        for language, lines in zip(languages, zip(*pairs[split])):
            write_file(os.path.join(folder, f"{split}.{language}"), b"".join(line + b"\n" for line in lines))
        print(f"{split:12}{len(pairs[split]):8} pairs")


def main():
    parser = Parser(__doc__)
    parser.add_argument("--languages", required=True, metavar="A,B", help="two languages, source first: en-US,it")
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="directory to write to")
    parser.add_argument("--input", metavar="DIR", help="directory with unpacked packages, in place of fetching them with apt-get")
    arguments = parser.parse_args()
    languages = languages_of(arguments.languages)
    with temporary_folder() as temporary:
        packages = arguments.input or fetch(languages, temporary)
        found = read_pages(arguments.input or temporary, languages)
        for split in SPLITS:
            if not found.pairs[split]:
                raise UsageError(f"too few pages in both languages ({found.pages}): nothing is left for {split}")
        write_pairs(arguments.output_dir, languages, found.pairs)
        source = os.path.join(arguments.output_dir, "SOURCE.txt")
        write_file(
            source,
            f"Paragraphs of LibreOffice's help in {languages[0]} and {languages[1]}, joined by their ids. From:\n{packages}\n\n"
            "Copyright LibreOffice contributors and others. License: Mozilla Public License 2.0; parts Apache License 2.0.\n"
            "The packages' own statement is in /usr/share/doc/<package>/copyright.\n".encode(),
        )
    print(f"{'all':12}{sum(map(len, found.pairs.values())):8} pairs of {found.pages} pages")
    print(f"left out: {found.duplicates} duplicates, {found.untranslated} without a translation\nlicense: MPL-2.0, see {source}")


if __name__ == "__main__":
    run_main(main)
