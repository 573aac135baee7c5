"""Lays out the pages of the site: docs/, what stands at the top of the checkout, and the reference that programs print themselves.

Usage: docs_pages.py DIRECTORY

Pages are written for GitHub. What Python's Markdown reads differently is changed in the copies: a list needs an empty line before
it, and a link to a file outside docs/ becomes its name.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Files at the top of the checkout, and their pages.
TOP = {"CONTRIBUTING.md": "project/contributing.md", "SECURITY.md": "project/security.md", "CHANGELOG.md": "project/changelog.md"}
PROGRAMS = [
    "lockrun",
    "lockstep",
    "bert_classify",
    "bert_by_hand",
    "bert_ner",
    "bert_qa",
    "bert_recovery",
    "bert_nli",
    "resnet_ddp",
    "translate",
    "toy_ddp",
    "messages",
]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
ITEM = re.compile(r" {0,3}([-*]|\d+\.) ")


def outside_code(text, change):
    """Applies `change` to the parts of a page that are no fenced code."""
    parts = re.split(r"(^```.*?^```\n)", text, flags=re.S | re.M)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def with_site_links(text, source, page):
    """Links of the file `source` as they have to be in `page`, both relative to the checkout and to the site."""

    def replace(match):
        image, label, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = (ROOT / source).parent.joinpath(target).resolve()
        if not path.exists():
            raise SystemExit(f"docs_pages: error: {source} links to {target}, which does not exist")
        relative = path.relative_to(ROOT)
        if relative.parts[0] == "docs":
            goal = relative.relative_to("docs")
        elif str(relative) in TOP:
            goal = pathlib.Path(TOP[str(relative)])
        elif str(relative) == "README.md" and anchor == "#your-own-program":
            goal, anchor = pathlib.Path("first_program.md"), None
        elif str(relative) == "README.md":
            goal = pathlib.Path("index.md")
        else:
            return label if "`" in label else f"`{relative}`" if label == target else f"{label} (`{relative}`)"
        return f"{image}[{label}]({os.path.relpath(goal, pathlib.Path(page).parent)}{anchor or ''})"

    return outside_code(text, lambda part: LINK.sub(replace, part))


def first_program():
    """README's program, which is nowhere else in the pages."""
    section = re.search(r"^## Your own program\n.*?(?=^## )", (ROOT / "README.md").read_text(), re.S | re.M)
    return section[0].replace("## Your own program", "# First program", 1)


def with_space_before_lists(text):
    def change(part):
        lines = []
        for line in part.split("\n"):
            if ITEM.match(line) and lines and lines[-1].strip() and not ITEM.match(lines[-1]) and not lines[-1].startswith(" "):
                lines.append("")
            lines.append(line)
        return "\n".join(lines)

    return outside_code(text, change)


def help_of(program, *words):
    result = subprocess.run(
        [ROOT / "build/bin" / program, *words, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "LOCKSTEP_TERMINAL_COLUMNS": "92", "COLUMNS": "92", "NO_COLOR": "1"},
    )
    if result.returncode != 0:
        raise SystemExit(f"docs_pages: error: {program} {' '.join(words)} --help ended with {result.returncode}: {result.stderr}")
    return result.stdout


def subcommands(text):
    section = re.search(r"^Subcommands:\n(.*?)(?:\n\n|\Z)", text, re.S | re.M)
    return re.findall(r"^  ([a-z0-9-]+)", section[1], re.M) if section else []


def flags_page():
    """Every program and subcommand, as --help prints it."""
    parts = [
        "# Flags",
        "Every program as its `--help` prints it. This page is made from the programs themselves.",
        "A flag may be written with dashes or underscores. `lockrun` reads a flag from its `PET_` variable too, for example `PET_NPROC_PER_NODE`.",
    ]

    def add(program, words, depth):
        text = help_of(program, *words)
        parts.append(f"{'#' * depth} {' '.join([program, *words])}")
        parts.append(f"```text\n{text.rstrip()}\n```")
        for word in subcommands(text):
            add(program, [*words, word], min(depth + 1, 4))

    for program in PROGRAMS:
        if (ROOT / "build/bin" / program).exists():
            add(program, [], 2)
    for path in sorted((ROOT / "zoo/recipes").glob("*.cpp")):
        if path.stem not in PROGRAMS and (ROOT / "build/bin" / path.stem).exists():
            add(path.stem, [], 2)
    return "\n\n".join(parts) + "\n"


def main(directory):
    target = pathlib.Path(directory)
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(DOCS.rglob("*")):
        relative = path.relative_to(DOCS)
        if path.is_dir() or relative.parts[0] in ("results",) or path.name in ("Doxyfile", "api_undocumented.txt", "namespaces.dox"):
            continue
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = with_site_links(path.read_text(), path.relative_to(ROOT), relative)
            (target / relative).write_text(with_space_before_lists(text))
        else:
            shutil.copyfile(path, target / relative)
    for source, page in TOP.items():
        (target / page).parent.mkdir(parents=True, exist_ok=True)
        (target / page).write_text(with_space_before_lists(with_site_links((ROOT / source).read_text(), source, page)))
    (target / "reference").mkdir(exist_ok=True)
    (target / "first_program.md").write_text(with_site_links(first_program(), "README.md", "first_program.md"))
    (target / "reference/flags.md").write_text(flags_page())


if __name__ == "__main__":
    main(sys.argv[1])
