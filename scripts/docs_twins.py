"""Puts the Markdown of each page beside the page, and llms.txt, which lists those of the navigation with what each says first.

Usage: docs_twins.py PAGES SITE
"""

import pathlib
import re
import shutil
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Loader(yaml.SafeLoader):
    """mkdocs.yml has tags of Python and of MkDocs; the navigation needs none of them."""


Loader.add_multi_constructor("", lambda loader, suffix, node: None)


def entries(navigation, depth=2):
    """The navigation as headings and pages."""
    for item in navigation:
        if isinstance(item, str):
            yield None, item
        else:
            ((title, below),) = item.items()
            yield "#" * depth + " " + title, None
            yield from entries(below, depth + 1)


def first_sentence(text):
    """What a page says first, without markup."""
    for block in re.split(r"\n\s*\n", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)):
        block = " ".join(block.split())
        if block and not re.match(r"[#|!<>{\[-]", block):
            return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.split(r"(?<=[.:]) ", block)[0])
    return ""


def main(pages, site):
    configuration = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    lines = [f"# {configuration['site_name']}", "", f"> {configuration['site_description']}"]
    for heading, page in entries(configuration["nav"]):
        if heading:
            lines += ["", heading, ""]
            continue
        text = (pages / page).read_text()
        title = re.search(r"^# (.*)$", text, re.M)[1].replace("`", "")
        lines.append(f"- [{title}]({page}): {first_sentence(text)}".rstrip(": "))
    for page in pages.rglob("*.md"):
        twin = site / page.relative_to(pages)
        twin.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, twin)
    (site / "llms.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
