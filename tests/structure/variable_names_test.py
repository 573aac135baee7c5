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


def places_of_names(files):
    """{variable: where its name is written} of sources, {path: text}."""
    names = set()
    for path, text in files.items():
        names.update(USE.findall(text))
        if path.name in ("env_names.h", "launch_environment.cpp", "parts_folder.h"):
            names.update(CONSTANT.findall(text))
    places = collections.defaultdict(list)
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            for name in re.findall(r'"([A-Z][A-Z0-9_]+)=?"', line):
                if name in names:
                    places[name].append(f"{path}:{number}")
    return places


class VariableNamesTest(unittest.TestCase):
    def test_each_name_is_written_once(self):
        places = places_of_names(dict(sources()))
        self.assertGreater(len(places), 40, "the patterns above no longer find the names")
        self.assertEqual({}, {name: where for name, where in places.items() if len(where) > 1})

    def test_a_planted_repetition_is_found(self):
        names = (pathlib.Path("base/env_names.h"), 'inline constexpr const char* kRank = "RANK";\n')
        places = places_of_names(dict([names, (pathlib.Path("a.cpp"), '\nenv::get("MASTER_PORT");\nsetenv("RANK", "1");\nlog("OTHER");\n')]))
        self.assertEqual({"RANK": ["base/env_names.h:1", "a.cpp:3"], "MASTER_PORT": ["a.cpp:2"]}, dict(places))


if __name__ == "__main__":
    unittest.main()
