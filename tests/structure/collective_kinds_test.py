"""Whoever adds a collective finds the places for it in one section of docs/architecture/collective.md: no other file tells kinds apart."""

import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
# The names, and the backends. The functions of comm/process_group name the kind that each of them makes.
NAMES = "lockstep/comm/process_group/collective.h"
LISTS = {
    NAMES,
    "lockstep/comm/backends/shared_memory.cpp",
    "lockstep/comm/backends/c10d_group.cpp",
    "lockstep/comm/backends/hybrid_operations.cpp",
    "lockstep/comm/backends/hybrid_exchange.cpp",
    "lockstep/comm/backends/healable_group.cpp",
}


def kinds():
    listed = re.search(r"enum class Kind : uint8_t \{(.*?)\};", (SOURCE / NAMES).read_text(), re.DOTALL)
    return re.findall(r"^ +([a-z_]+),", listed.group(1), re.MULTILINE)


def tells_apart(source):
    return re.search(r"case (?:Collective::)?Kind::(?:" + "|".join(kinds()) + r"):", source) is not None


class CollectiveKindsTest(unittest.TestCase):
    def test_a_planted_case_is_found(self):
        self.assertIn("all_to_all", kinds())
        for planted in ("switch (kind) {\n  case Collective::Kind::all_to_all:\n", "    case Kind::gather: return 1;\n"):
            self.assertTrue(tells_apart(planted), planted)
        self.assertFalse(tells_apart("case OpKind::gather:\nmake(Collective::Kind::gather);\n"))

    def test_kinds_are_told_apart_in_the_documented_files_only(self):
        found = {
            str(path.relative_to(SOURCE))
            for path in (SOURCE / "lockstep/comm").rglob("*")
            if path.suffix in (".h", ".cpp") and tells_apart(path.read_text())
        }
        self.assertEqual(LISTS, found)
        text = (SOURCE / "docs/architecture/collective.md").read_text()
        section = text.partition("## Adding a collective")[2].partition("\n#")[0]
        for name in LISTS:
            self.assertIn(name.removeprefix("lockstep/"), section)


if __name__ == "__main__":
    unittest.main()
