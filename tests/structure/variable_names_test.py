"""The name of an environment variable is written once in the C++ sources (base/env_names.h or its one user)."""

import collections
import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
FOLDERS = ("lockstep", "launcher", "tools", "bench", "zoo", "python")
USE = re.compile(r'\benv::(?:get|get_int|get_bool|set)\(\s*"([A-Z][A-Z0-9_]+)"')
CONSTANT = re.compile(r'constexpr const char\* k\w+ = "([A-Z][A-Z0-9_]*_?[A-Z0-9_]+)";')


def sources():
    for folder in FOLDERS:
        for path in sorted((SOURCE / folder).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                yield path.relative_to(SOURCE), path.read_text()


class VariableNamesTest(unittest.TestCase):
    def test_each_name_is_written_once(self):
        files = dict(sources())
        names = set()
        for path, text in files.items():
            names.update(USE.findall(text))
            if path.name in ("env_names.h", "launch_environment.cpp", "parts_folder.h"):
                names.update(CONSTANT.findall(text))
        self.assertGreater(len(names), 40, "the patterns above no longer find the names")
        places = collections.defaultdict(list)
        for path, text in files.items():
            for number, line in enumerate(text.splitlines(), 1):
                for name in re.findall(r'"([A-Z][A-Z0-9_]+)=?"', line):
                    if name in names:
                        places[name].append(f"{path}:{number}")
        self.assertEqual({}, {name: where for name, where in places.items() if len(where) > 1})


if __name__ == "__main__":
    unittest.main()
