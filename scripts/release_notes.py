"""Writes a version's section of CHANGELOG.md as the text of its release on a hosting site, where relative links lead nowhere.

Usage: release_notes.py VERSION [--remote URL] < CHANGELOG.md
  --remote URL  the repository's address, as git remote has it: links lead to its files at the tag of the version. Without it, or if
                it is a folder, a link becomes its text and the file's name

A paragraph becomes one line, since hosting sites show each line of a release's text as one.
"""

import argparse
import re
import sys

LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)([^)\s]+)\)")
BEGINS_A_BLOCK = re.compile(r"\s*([-*+] |\d+\. |#|\||>|$)")


def section_of(text, version):
    """What stands below the heading of this version."""
    found = re.search(rf"^## {re.escape(version)}\b.*\n((?:(?!## ).*\n)*)", text + "\n", re.M)
    if not found:
        sys.exit(f"release_notes: error: CHANGELOG.md has no section '## {version}'; write one")
    return found[1].strip() + "\n"


def web_address(remote):
    """https://host/owner/name, or None if the remote is a folder or unknown."""
    found = re.fullmatch(r"(?:https?://(?:[^@/]*@)?|ssh://(?:[^@/]*@)?|[^@/\s]+@)([^/:]+)(?::\d+(?=/))?[:/](.+?)(?:\.git)?/?", remote or "")
    return f"https://{found[1]}/{found[2]}" if found else None


def unwrapped(text):
    """Each paragraph and each item of a list in one line. Code stays as it is."""
    lines, in_code = [], False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        if lines and lines[-1] and not (in_code or fence or lines[-1].lstrip().startswith(("#", "|", "```")) or BEGINS_A_BLOCK.match(line)):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
        in_code ^= fence
    return "\n".join(lines) + "\n"


def with_links(text, version, address):
    """Relative links as addresses of files at the tag; without an address as the file's name."""

    def replacement(link):
        words, target = link.groups()
        if address:
            return f"[{words}]({address}/blob/v{version}/{target})"
        return f"{words} (`{target.split('#')[0]}`)"

    return LINK.sub(replacement, text)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("Usage: ")[1].splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--remote", default="")
    options = parser.parse_args()
    text = unwrapped(section_of(sys.stdin.read(), options.version))
    print(with_links(text, options.version, web_address(options.remote)), end="")


if __name__ == "__main__":
    main()
