"""Makes the API reference from the /// comments of the public headers: Doxygen reads them, this program writes a page for each header
and one for each module, so that the site's search, theme and navigation hold for the reference too. It judges Doxygen's warnings: a public symbol without a
/// comment is an error, unless it is one of those in docs/api_undocumented.txt. That list should only get shorter; a line that is no
longer true is named.

Usage: docs_api.py PAGES [--write] [--without-doxygen]
  PAGES              the pages of the site; api/MODULE.md, api/MODULE/HEADER.md and the table of modules in reference/api.md are
                     written there
  --write            write docs/api_undocumented.txt anew
  --without-doxygen  write only what the navigation needs: pages that say that the reference was left out
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = ROOT / "docs/api_undocumented.txt"
HEAD = (
    "# Public symbols without a /// comment, and comments that Doxygen cannot read. scripts/docs fails where there is another one.\n"
    "# Take out what has got its comment (scripts/docs_api.py build-docs/pages --write).\n"
)
# Modules in the order of the house, and what each is for.
MODULES = {
    "base": "errors, logging, main() for programs, random keys",
    "state": "the value of state_dict(), and what is Stateful",
    "timeline": "what each rank did when",
    "comm": "joining a job, process groups, collectives, starting ranks",
    "parallel": "DistributedDataParallel, DataParallel, SyncBatchNorm, communication hooks, join, logical ranks",
    "step": "steps that fail on all ranks or on none, and the check of replicas",
    "recovery": "ranks that die are replaced, and the others go on",
    "optim": "optimizers, sharded optimizers, schedules, clipping",
    "ops": "layers whose gradients need no copy",
    "data": "samplers, the data loader, splits",
    "checkpoint": "safetensors files, snapshots, folders of checkpoints, run records",
    "metrics": "metrics of classification and regression",
    "tracking": "trackers and progress bars",
    "trainer": "TrainingArguments and the Trainer",
    "models": "BERT, residual networks, a translation transformer (zoo)",
    "text": "tokenizers, padding, metrics of texts (zoo)",
    "tables": "readers of CSV, TSV, JSON lines, Parquet and Arrow files (zoo)",
    "vision": "pictures as data sets (zoo)",
    "tasks": "what the recipes share (zoo)",
}
WIDTH = 88  # columns of a declaration; the site shows 92


def complaints(log):
    """ "file: what" for each warning, without line numbers, which change."""
    found = set()
    for line in log.splitlines():
        match = re.match(r"(.*?):\d+: (?:warning|error): (.*)", line)
        if not match:
            continue
        path = match[1].removeprefix(str(ROOT) + "/")
        text = match[2]
        if "is not documented" in text:
            if "operator==" in text and "=default" in text.replace("= default", "=default"):
                continue  # says itself what it does
            kind, rest = text.split(" ", 1)
            name = re.split(r"[(<\[ ]", rest)[0] if not rest.startswith("operator") else "operator"
            scope = re.search(r"of (?:class|struct|namespace|file) (\S+)", rest)
            found.add(f"{path}: {scope[1].rstrip('.') + '::' if scope and kind == 'Member' else ''}{name}")
        elif not text.startswith("ignoring unsupported tag"):
            found.add(f"{path}: {re.sub(r' found$', '', text)}")
    return found


def public_headers():
    included = [
        name for header in ("lockstep/lockstep.h", "zoo/zoo.h") for name in re.findall(r'^#include "(.*)"', (ROOT / header).read_text(), re.M)
    ]
    return [re.sub("^lockstep/zoo/", "zoo/", name) for name in included if name != "lockstep/lockstep.h"]


def run_doxygen(headers, directory):
    version = re.search(r"project\(Lockstep VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    result = subprocess.run(
        ["doxygen", "docs/Doxyfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "LOCKSTEP_VERSION": version, "LOCKSTEP_HEADERS": " ".join(headers), "LOCKSTEP_API_DIR": str(directory)},
    )
    if result.returncode != 0:
        sys.exit(f"docs_api: error: doxygen ended with {result.returncode}: {result.stderr}")
    return result.stderr


def module_of(header):
    return header.split("/")[1]


def purpose_of(header):
    """The comment at the head of a header."""
    lines = []
    for line in (ROOT / header).read_text().splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].strip())
    return " ".join(lines)


def plain(text):
    """Words of a comment as Markdown: what Markdown would read as markup is escaped."""
    return re.sub(r"([\\`*_<>|#])", r"\\\1", text)


def tidy(code):
    """A type as people write it: Doxygen puts a space inside angle brackets."""
    code = re.sub(r"\s+", " ", code).strip()
    code = re.sub(r"< ", "<", code)
    code = re.sub(r" >", ">", code)
    return re.sub(r" ([&*])", r"\1", code)


def anchor_of(qualified):
    return re.sub(r"[^a-z0-9_]+", "-", qualified.removeprefix("lockstep::").lower()).strip("-")


def page_of(header):
    """The page of a header, in the folder api/."""
    return header.split("/", 1)[1].removesuffix(".h") + ".md"


def included(header):
    """What a program writes between <>."""
    return f"lockstep/{header}" if header.startswith("zoo/") else header


class Places:
    """Which page and which anchor a symbol of Doxygen's has."""

    def __init__(self):
        self.anchors = {}

    def add(self, identifier, header, qualified):
        self.anchors[identifier] = (page_of(header), anchor_of(qualified))

    def link(self, identifier, label, page):
        """A link that stands in the page."""
        if identifier not in self.anchors:
            return label
        goal, anchor = self.anchors[identifier]
        return f"[{label}]({'' if goal == page else os.path.relpath(goal, os.path.dirname(page))}#{anchor})"


class Words:
    """The text of a comment as Markdown."""

    def __init__(self, places, page):
        self.places = places
        self.page = page

    def inline(self, node):
        text = plain(node.text or "")
        for child in node:
            text += self.element(child) + plain(child.tail or "")
        return text

    def element(self, node):
        whole = "".join(node.itertext())
        if node.tag == "ref":
            return self.places.link(node.get("refid"), plain(whole), self.page)
        if node.tag == "computeroutput":
            return f"`{whole}`"
        if node.tag in ("emphasis", "bold"):
            return f"*{plain(whole)}*"
        if node.tag == "ulink":
            return f"[{plain(whole)}]({node.get('url')})"
        if node.tag in ("itemizedlist", "orderedlist"):
            return "\n\n" + "\n".join("- " + " ".join(self.paragraphs(item).split()) for item in node.findall("listitem")) + "\n\n"
        if node.tag in ("programlisting", "verbatim"):
            return f"\n\n```cpp\n{self.listing(node)}\n```\n\n"
        if node.tag == "simplesect":
            return "\n\n" + self.paragraphs(node) + "\n\n"
        if node.tag == "linebreak":
            return "\n\n"
        return {"ndash": "–", "mdash": "—", "nonbreakablespace": " ", "lsquo": "‘", "rsquo": "’"}.get(node.tag) or self.inline(node)

    @staticmethod
    def listing(node):
        for space in node.iter("sp"):
            space.text = " "
        lines = node.findall("codeline")
        return "\n".join("".join(line.itertext()) for line in lines) if lines else (node.text or "").strip("\n")

    def paragraphs(self, node):
        return "\n\n".join(filter(None, (self.inline(paragraph).strip() for paragraph in node.findall("para"))))

    def of(self, symbol):
        """All that is said about a symbol."""
        parts = [self.paragraphs(part) for name in ("briefdescription", "detaileddescription") if (part := symbol.find(name)) is not None]
        return re.sub(r"\n{3,}", "\n\n", "\n\n".join(filter(None, parts)))


def code_of(node):
    return tidy("".join(node.itertext())) if node is not None else ""


def declaration(member):
    """A function as its header declares it, in lines that the site does not cut."""
    template = member.find("templateparamlist")
    head = ""
    if template is not None:
        head = (
            "template <"
            + ", ".join(" ".join(filter(None, (code_of(p.find("type")), code_of(p.find("declname"))))) for p in template.findall("param"))
            + ">\n"
        )
    words = [
        name for name in ("static", "explicit", "virtual") if member.get(name if name != "virtual" else "virt") in ("yes", "virtual", "pure-virtual")
    ]
    start = " ".join(filter(None, [*words, code_of(member.find("type")), member.findtext("name")])) + "("
    parameters = []
    for parameter in member.findall("param"):
        text = code_of(parameter.find("type"))
        name = code_of(parameter.find("declname"))
        array = code_of(parameter.find("array"))
        text = text.replace("(&)", f"(&{name})") if array and "(&)" in text else " ".join(filter(None, (text, name)))
        default = code_of(parameter.find("defval"))
        parameters.append(text + array + (f" = {default}" if default else ""))
    deleted = (member.findtext("argsstring") or "").replace(" ", "").endswith("=delete")
    end = (
        ")"
        + (" const" if member.get("const") == "yes" else "")
        + (" = 0" if member.get("virt") == "pure-virtual" else "")
        + (" = delete" if deleted else "")
    )
    line = start + ", ".join(parameters) + end
    if len(line) > WIDTH:
        line = start + "\n    " + ",\n    ".join(parameters) + end
    return head + line + ";"


def cell(text):
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


class Page:
    """The page of one header."""

    def __init__(self, header, places):
        page = page_of(header)
        self.words = Words(places, page)
        module = module_of(header)
        up = os.path.relpath(f"{module}.md", os.path.dirname(page))
        self.lines = [f"# {plain(header.rsplit('/', 1)[1])}", f"A header of [{module}]({up}): {MODULES[module]}."]
        if purpose := purpose_of(header):
            self.lines.append(plain(purpose))
        self.lines.append(f"```cpp\n#include <{included(header)}>\n```")

    def text(self):
        return "\n\n".join(self.lines) + "\n"

    def add_compound(self, compound):
        qualified = compound.findtext("compoundname")
        name = qualified.removeprefix("lockstep::")
        bases = [code_of(base) for base in compound.findall("basecompoundref") if base.get("prot") == "public"]
        self.lines.append(f"## {plain(name)} {{ #{anchor_of(qualified)} }}")
        self.lines.append(f"```cpp\n{compound.get('kind')} {name.rsplit('::', 1)[-1]}{' : public ' + ', '.join(bases) if bases else ''};\n```")
        self.lines.append(self.words.of(compound))
        members = [
            member
            for section in compound.findall("sectiondef")
            for member in section.findall("memberdef")
            if member.get("prot") == "public" and member.get("kind") != "friend"
        ]
        self.add_fields([member for member in members if member.get("kind") == "variable"])
        self.add_members([member for member in members if member.get("kind") != "variable"], 3)

    def add_fields(self, fields):
        if not fields:
            return
        rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
        for field in fields:
            kind = code_of(field.find("type"))
            # The type stands beside it: an enumerator's name is enough.
            initial = tidy(re.sub(r"^=\s*", "", code_of(field.find("initializer")))).removeprefix(kind + "::")
            rows.append(f"| `{field.findtext('name')}` | `{cell(kind)}` | {f'`{cell(initial)}`' if initial else ''} | {cell(self.words.of(field))} |")
        self.lines.append("\n".join(rows))

    def add_members(self, members, depth):
        """Functions of one name stand under one heading."""
        named = collections.OrderedDict()
        for member in members:
            named.setdefault(member.findtext("qualifiedname") or member.findtext("name"), []).append(member)
        for qualified, overloads in named.items():
            self.lines.append(f"{'#' * depth} {plain(overloads[0].findtext('name'))} {{ #{anchor_of(qualified)} }}")
            for member in overloads:
                self.lines.append(f"```cpp\n{self.declared(member)}\n```")
                self.lines.append(self.words.of(member))
                if member.get("kind") == "enum":
                    self.lines.append(
                        "\n".join(f"- `{value.findtext('name')}`: {' '.join(self.words.of(value).split())}" for value in member.findall("enumvalue"))
                    )

    @staticmethod
    def declared(member):
        kind = member.get("kind")
        if kind == "function":
            return declaration(member)
        if kind == "enum":
            return f"enum class {member.findtext('name')};"
        if kind == "typedef":
            return f"using {member.findtext('name')} = {code_of(member.find('type'))};"
        if kind == "define":
            return f"#define {member.findtext('name')}"
        initial = code_of(member.find("initializer"))
        return " ".join(filter(None, (code_of(member.find("type")), member.findtext("name"), initial))) + ";"


def contents(page, compounds, members):
    """Links to what a header declares, each name once."""
    names = {}
    classes = [compound.findtext("compoundname") for compound in compounds]
    for qualified in classes:
        if not any(qualified.startswith(f"{outer}::") for outer in classes):
            names.setdefault(qualified.rsplit("::", 1)[-1], anchor_of(qualified))
    for member in members:
        names.setdefault(member.findtext("name"), anchor_of(member.findtext("qualifiedname") or member.findtext("name")))
    return ", ".join(f"[{plain(name)}]({page}#{anchor})" for name, anchor in names.items())


def write_pages(xml, headers, pages):
    """One page a header, one a module with the list of its headers, and the table of modules in the front page."""
    places = Places()
    compounds = collections.defaultdict(list)  # by header
    members = collections.defaultdict(list)
    for path in sorted(xml.glob("*.xml")):
        if path.stem in ("index", "Doxyfile"):
            continue
        compound = ElementTree.parse(path).getroot().find("compounddef")
        kind = compound.get("kind")
        if kind in ("class", "struct") and compound.get("prot", "public") == "public":
            header = compound.find("location").get("file")
            if header not in headers or "::detail" in compound.findtext("compoundname") or compound.get("prot") == "private":
                continue
            compounds[header].append(compound)
            places.add(compound.get("id"), header, compound.findtext("compoundname"))
            for member in compound.iter("memberdef"):
                places.add(member.get("id"), header, member.findtext("qualifiedname") or compound.findtext("compoundname"))
        elif kind in ("namespace", "file"):
            for member in compound.iter("memberdef"):
                header = member.find("location").get("file")
                qualified = member.findtext("qualifiedname") or member.findtext("name")
                known = any(member.get("id") == other.get("id") for other in members[header])
                if header in headers and "::detail" not in qualified and not known and (kind == "namespace" or member.get("kind") == "define"):
                    members[header].append(member)
                    places.add(member.get("id"), header, qualified)

    def by_line(symbol):
        return int(symbol.find("location").get("line"))

    rows = ["| module | for | headers |", "|---|---|---|"]
    for module in MODULES:
        own = [header for header in headers if module_of(header) == module and (compounds[header] or members[header])]
        if not own:
            continue
        lines = [f"# {module}", MODULES[module][0].upper() + MODULES[module][1:] + "."]
        table = ["| header | declares |", "|---|---|"]
        for header in own:
            page = Page(header, places)
            classes, functions = sorted(compounds[header], key=by_line), sorted(members[header], key=by_line)
            for compound in classes:
                page.add_compound(compound)
            page.add_members(functions, 2)
            path = pages / "api" / page_of(header)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page.text())
            name = header.split("/", 2)[2]
            table.append(f"| [{plain(name)}]({page_of(header)}) | {contents(page_of(header), classes, functions)} |")
        (pages / "api" / f"{module}.md").write_text("\n\n".join([*lines, "\n".join(table)]) + "\n")
        rows.append(
            f"| [{module}](../api/{module}.md) | {MODULES[module]} | "
            + ", ".join(f"[{header.rsplit('/', 1)[1].removesuffix('.h')}](../api/{page_of(header)})" for header in own)
            + " |"
        )
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pages", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--without-doxygen", action="store_true")
    arguments = parser.parse_args()
    headers = public_headers()
    unknown = {module_of(header) for header in headers} - set(MODULES)
    if unknown:
        sys.exit(f"docs_api: error: scripts/docs_api.py has no line for the module {', '.join(sorted(unknown))}")
    (arguments.pages / "api").mkdir(parents=True, exist_ok=True)
    front = arguments.pages / "reference/api.md"
    for module in MODULES:
        (arguments.pages / "api" / f"{module}.md").write_text(f"# {module}\n\nThis site was made without the API reference.\n")
    if arguments.without_doxygen:
        return
    with tempfile.TemporaryDirectory() as directory:
        log = run_doxygen(headers, directory)
        table = write_pages(pathlib.Path(directory) / "xml", headers, arguments.pages)
    front.write_text(front.read_text().replace("<!-- modules -->", table))
    found = complaints(log)
    if arguments.write:
        KNOWN.write_text(HEAD + "".join(line + "\n" for line in sorted(found)))
    known = {line for line in KNOWN.read_text().splitlines() if line and not line.startswith("#")}
    for line in sorted(found - known):
        print(f"docs_api: error: without a /// comment, or with one that Doxygen cannot read: {line}", file=sys.stderr)
    for line in sorted(known - found):
        print(f"docs_api: no longer true, take it out of docs/api_undocumented.txt: {line}", file=sys.stderr)
    sys.exit(bool(found - known))


if __name__ == "__main__":
    main()
