"""The messages that the sources can print: their texts, with GAP where a value is filled in."""

import ast
import dataclasses
import pathlib
import re

GAP = "\0"
TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<raw>R"(?P<mark>[^(\s"]*)\(.*?\)(?P=mark)")
  | (?P<text>"(?:\\.|[^"\\])*")
  | (?P<name>\w[\w']*)                          # a number such as 30'000 too
  | (?P<character>'(?:\\.|[^'\\])+')
  | (?P<space>\s+)
  | (?P<other>.)""",
    re.X | re.S,
)
FIELD = re.compile(r"\{\{|\}\}|\{[^{}]*\}|%[-+#0]*[\d.*]*(?:ll|l|z)?[dsufgxc]|@[A-Z_]+@|\$\{\w+\}")


@dataclasses.dataclass
class Message:
    place: str  # "lockstep/comm/init.cpp:81"
    text: str

    def shown(self):
        return self.text.strip(GAP).replace(GAP, "<...>").replace("\n", " ")


def one_gap(text):
    """`text` between gaps: there is code before and behind it."""
    return re.sub(f"{GAP}+", GAP, GAP + text + GAP)


def with_gaps(literal):
    """The text of a format string."""
    return FIELD.sub(lambda field: {"{{": "{", "}}": "}"}.get(field[0], GAP), literal)


def of_cpp(source):
    """(line, text) of each statement with string literals: they follow each other, with a GAP for what stands between them."""
    found, line, depth, first, text = [], 1, 0, 0, ""

    def end():
        nonlocal text
        if text.strip(GAP):
            found.append((first, one_gap(text)))
        text = ""

    for token in TOKEN.finditer(source):
        kind, word = token.lastgroup, token[0]
        if kind == "mark":
            kind = "raw"
        if kind in ("text", "raw"):
            literal = word[1:-1] if kind == "text" else word[len(token["mark"]) + 3 : -len(token["mark"]) - 2]
            if kind == "text":
                literal = re.sub(r"\\(.)", lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], escape[1]), literal, flags=re.S)
            if not text.strip(GAP):
                first = line
            text += with_gaps(literal)
        elif kind == "other" and (word == ";" or word in "{}" and depth == 0):
            end()
        elif kind not in ("comment", "space"):
            depth = max(0, depth + (word in ("(", "[")) - (word in (")", "]")))
            text += GAP
        line += word.count("\n")
    end()
    return found


def of_cmake(source):
    """The same of quoted arguments."""
    return [
        (source.count("\n", 0, match.start()) + 1, one_gap(with_gaps(match[1].replace("\\\n", ""))))
        for match in re.finditer(r'"((?:\\.|[^"\\])*)"', source, re.S)
    ]


def of_python(source):
    """The same of string constants and f-strings."""
    inner, found = set(), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in ast.walk(node) if part is not node)
            found.append((node, "".join(with_gaps(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node, with_gaps(node.value)))
    return [(node.lineno, one_gap(text)) for node, text in found if id(node) not in inner]


READERS = {".cpp": of_cpp, ".h": of_cpp, ".py": of_python, ".cmake": of_cmake}


def messages_in(top, folders):
    found = []
    for folder in folders:
        for path in sorted((pathlib.Path(top) / folder).rglob("*")):
            if path.suffix in READERS:
                found += [Message(f"{path.relative_to(top)}:{line}", text) for line, text in READERS[path.suffix](path.read_text())]
    return found


def pattern_of(quoted):
    """What finds a message that is quoted with <names> for values and ... for any words."""
    parts = re.split(r"(<[^<>]*>|\.\.\.)", quoted)
    value = f"{GAP}(?:[^{GAP}]{{0,40}}{GAP})*?"  # also one of several short texts
    return re.compile("".join(re.escape(part) if i % 2 == 0 else ".*?" if part == "..." else value for i, part in enumerate(parts)), re.S)


def nearest(quoted, messages):
    words = set(re.findall(r"\w{3,}", re.sub(r"<[^<>]*>", " ", quoted)))

    def likeness(message):
        own = set(re.findall(r"\w{3,}", message.text))
        return len(words & own) / (len(words | own) or 1)

    return max(messages, key=likeness)
