"""Makes the API reference by Doxygen and judges its warnings: a public symbol without a /// comment is an error, unless it is one of
those in docs/api_undocumented.txt. That list should only get shorter; a line that is no longer true is named.

Usage: docs_api.py DIRECTORY [--write]
  --write  write docs/api_undocumented.txt anew
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = ROOT / "docs/api_undocumented.txt"
HEAD = ("# Public symbols without a /// comment, and comments that Doxygen cannot read. scripts/docs fails where there is another one.\n"
        "# Take out what has got its comment (scripts/docs_api.py build-docs/site/api --write).\n")


def complaints(log):
    """"file: what" for each warning, without line numbers, which change."""
    found = set()
    for line in log.splitlines():
        match = re.match(r"(.*?):\d+: (?:warning|error): (.*)", line)
        if not match:
            continue
        path = match[1].removeprefix(str(ROOT) + "/")
        text = match[2]
        if "is not documented" in text:
            kind, rest = text.split(" ", 1)
            name = re.split(r"[(<\[ ]", rest)[0] if not rest.startswith("operator") else "operator"
            scope = re.search(r"of (?:class|struct|namespace|file) (\S+)", rest)
            found.add(f"{path}: {scope[1].rstrip('.') + '::' if scope and kind == 'Member' else ''}{name}")
        elif not text.startswith("ignoring unsupported tag"):
            found.add(f"{path}: {re.sub(r' found$', '', text)}")
    return found


def main(directory, write):
    target = pathlib.Path(directory)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    included = [name for header in ("lockstep/lockstep.h", "zoo/zoo.h")
                for name in re.findall(r'^#include "(.*)"', (ROOT / header).read_text(), re.M)]
    headers = [re.sub("^lockstep/zoo/", "zoo/", name) for name in included if name != "lockstep/lockstep.h"]
    version = re.search(r"project\(Lockstep VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    result = subprocess.run(["doxygen", "docs/Doxyfile"], cwd=ROOT, capture_output=True, text=True, env={
        **os.environ, "LOCKSTEP_VERSION": version, "LOCKSTEP_HEADERS": " ".join(headers), "LOCKSTEP_API_DIR": str(target)})
    if result.returncode != 0:
        sys.exit(f"docs_api: error: doxygen ended with {result.returncode}: {result.stderr}")
    found = complaints(result.stderr)
    if write:
        KNOWN.write_text(HEAD + "".join(line + "\n" for line in sorted(found)))
    known = {line for line in KNOWN.read_text().splitlines() if line and not line.startswith("#")}
    for line in sorted(found - known):
        print(f"docs_api: error: without a /// comment, or with one that Doxygen cannot read: {line}", file=sys.stderr)
    for line in sorted(known - found):
        print(f"docs_api: no longer true, take it out of docs/api_undocumented.txt: {line}", file=sys.stderr)
    sys.exit(bool(found - known))


if __name__ == "__main__":
    main(sys.argv[1], "--write" in sys.argv)
