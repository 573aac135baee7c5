"""What a peer gives, recorded: computing it would cost more than all the rest of a test.

tests/recorded/NAME.json holds the values, each with a hash of the inputs that it was computed from, and a hash of the pinned
versions (deps/) and of the scripts that compute them. Where a hash differs, or a value is missing, the peer computes it anew and
the test goes by that. `scripts/test --record` has the peers compute everything and writes the files; the test `recorded_values` names
those that are no longer of these versions and scripts.
"""

import hashlib
import json
import os
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent
FOLDER = TESTS / "recorded"
RECORD = os.environ.get("LOCKSTEP_RECORD") == "1"


def hash_of(*parts):
    """Of texts, bytes and what JSON can hold; short, since nobody forges it."""
    total = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else (part if isinstance(part, str) else json.dumps(part)).encode()
        total.update(b"%d:" % len(data) + data)
    return total.hexdigest()[:16]


def pins():
    """{package: version} of the Python packages that deps/ names."""
    lines = "".join(
        (TESTS.parent / "deps" / name).read_text()
        for name in ("requirements.txt", "requirements-zoo.txt", "requirements-test.txt", "requirements-record.txt")
    )
    return dict(line.split("==") for line in lines.splitlines() if "==" in line and not line.startswith("#"))


def hash_of_record(scripts, packages):
    return hash_of([[name, pins()[name]] for name in packages], *((TESTS / script).read_bytes() for script in scripts))


BLOCK = 500


def block_hashes(answers):
    """One hash for each BLOCK answers: of a difference, the block is known, and the peer asked about that."""
    return [hash_of(answers[at : at + BLOCK]) for at in range(0, len(answers), BLOCK)]


def in_block(number):
    return slice(number * BLOCK, (number + 1) * BLOCK)


class Record:
    """scripts: the files that compute the values, below tests/; packages: the peers, as deps/ calls them."""

    def __init__(self, name, scripts, packages):
        self.path, self.scripts, self.packages = FOLDER / f"{name}.json", scripts, packages
        self.hash = hash_of_record(scripts, packages)
        self.values = {}
        if self.path.exists():
            found = json.loads(self.path.read_text())
            if found["hash"] == self.hash:
                self.values = found["values"]
        self.computed = set()

    def value(self, key, inputs, compute):
        """What compute() gives from these inputs (hash_of): JSON."""
        if (key in self.computed or not RECORD) and key in self.values and self.values[key][0] == inputs:
            return self.values[key][1]
        if not RECORD:
            print(f"{self.path.name}: {key} is not recorded for these inputs: asking the peer", file=sys.stderr)
        self.computed.add(key)
        try:
            self.values[key] = [inputs, compute()]
        except ImportError as error:
            raise SystemExit(f"{error}: .venv/bin/python -m pip install -r deps/requirements-record.txt") from error
        if RECORD:
            self.write()
        return self.values[key][1]

    def write(self):
        FOLDER.mkdir(exist_ok=True)
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(self.values[key])}" for key in sorted(self.values))
        head = "".join(
            f' "{name}": {json.dumps(value)},\n' for name, value in (("hash", self.hash), ("packages", self.packages), ("scripts", self.scripts))
        )
        self.path.write_text(f'{{\n{head} "values": {{\n{lines}\n }}\n}}\n')


def stale():
    """The names of the files that are not of these versions and scripts."""

    def is_stale(path):
        found = json.loads(path.read_text())
        try:
            return hash_of_record(found["scripts"], found["packages"]) != found["hash"]
        except (OSError, KeyError):
            return True

    return [path.name for path in sorted(FOLDER.glob("*.json")) if is_stale(path)]
