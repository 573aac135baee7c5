"""The pages of the documentation and their blocks of code."""

import dataclasses
import os
import pathlib
import re

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])


@dataclasses.dataclass
class Block:
    page: pathlib.Path  # relative to the checkout
    line: int  # of its first line of code, from 1
    language: str  # "" for indented code
    text: str
    hint: str = ""  # of a comment <!-- test: HINT --> before it

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def pages():
    top = [SOURCE / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return [path.relative_to(SOURCE) for path in [*top, *sorted((SOURCE / "docs").rglob("*.md"))]]


def text_of(page):
    return (SOURCE / page).read_text()


def blocks_of(page):
    """Fenced and indented blocks of code, in order."""
    lines = text_of(page).split("\n")
    found, number, hint = [], 0, ""
    while number < len(lines):
        line = lines[number]
        if line.startswith("```"):
            end = next(at for at in range(number + 1, len(lines)) if lines[at].startswith("```"))
            found.append(Block(page, number + 2, line[3:].strip(), "\n".join(lines[number + 1 : end]), hint))
            number, hint = end, ""
        elif line.startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            found.append(Block(page, number + 1, "", "\n".join(one[4:] for one in lines[number:end]).rstrip(), hint))
            number, hint = end - 1, ""
        elif line.startswith("<!-- test:"):
            end = number
            while "-->" not in lines[end]:
                end += 1
            hint = re.search(r"<!-- test:(.*?)-->", "\n".join(lines[number : end + 1]), re.S)[1].strip()
            number = end
        elif line.strip():
            hint = ""
        number += 1
    return found


def prose_of(page):
    """(line number, text) of what is no code, with inline code and links' targets left out."""
    text = text_of(page)
    code = set()
    for block in blocks_of(page):
        code.update(range(block.line - 1, block.line + block.text.count("\n") + 2))
    for number, line in enumerate(text.split("\n"), 1):
        if number not in code:
            yield number, re.sub(r"`[^`]*`", "`code`", re.sub(r"\]\([^)]*\)", "]", line))


def anchors_of(page):
    """The anchors of a page's headings, as GitHub makes them."""
    anchors, code = [], False
    for line in text_of(page).split("\n"):
        code ^= line.startswith("```")
        heading = re.match(r"#+ (.*)", line)
        if heading and not code:
            anchor = re.sub(r"[^\w\- ]", "", heading[1].replace("`", "").strip().lower()).replace(" ", "-")
            anchors.append(anchor if anchor not in anchors else f"{anchor}-{anchors.count(anchor)}")
    return anchors


def sentences_of(page):
    """(line number, text) of each sentence, each row of a table and each heading, in one line; no blocks of code."""
    text = text_of(page)
    code = set()
    for block in blocks_of(page):
        code.update(range(block.line - 1, block.line + block.text.count("\n") + 2))
    found, paragraph, start = [], [], 0

    def end_paragraph():
        whole = " ".join(" ".join(paragraph).split())
        # A sentence may end in bold or in brackets, and the next one begin with code, a link or a bracket.
        ends = re.split(r"(?:(?<=[.?!])|(?<=[.?!]\*\*)|(?<=[.?!]\)))\s+(?=[A-Z`\[(*])", whole)
        found.extend((start, sentence) for sentence in ends if sentence)
        paragraph.clear()

    for number, line in enumerate(text.split("\n"), 1):
        if number in code or not line.strip() or line.startswith(("|", "#")):
            end_paragraph()
            if number not in code and line.strip():
                found.append((number, " ".join(line.split())))
            continue
        item = re.match(r"(- |\d+\. )", line)
        if item:
            end_paragraph()
        if not paragraph:
            start = number
        paragraph.append(line.removeprefix(item[1]) if item else line)
    end_paragraph()
    return found
