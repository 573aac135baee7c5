"""Whoever adds a collective finds the places for it in one section of docs/architecture/collective.md: no other file tells kinds apart."""

import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
# The names, and the backends. The functions of comm/process_group name the kind that each of them makes.
NAMES = "lockstep/comm/process_group/collective.h"
LISTS = {NAMES, "lockstep/comm/backends/shared_memory.cpp", "lockstep/comm/backends/c10d_group.cpp",
         "lockstep/comm/backends/hybrid_operations.cpp", "lockstep/comm/backends/healable_group.cpp"}


class CollectiveKindsTest(unittest.TestCase):
    def test_kinds_are_told_apart_in_the_documented_files_only(self):
        kinds = re.search(r"enum class Kind : uint8_t \{(.*?)\};", (SOURCE / NAMES).read_text(), re.DOTALL)
        names = re.findall(r"^ +([a-z_]+),", kinds.group(1), re.MULTILINE)
        self.assertIn("all_to_all", names)
        case = re.compile(r"case (?:Collective::)?Kind::(?:" + "|".join(names) + r"):")
        found = {str(path.relative_to(SOURCE)) for path in (SOURCE / "lockstep/comm").rglob("*")
                 if path.suffix in (".h", ".cpp") and case.search(path.read_text())}
        self.assertEqual(LISTS, found)
        text = (SOURCE / "docs/architecture/collective.md").read_text()
        section = text.partition("## Adding a collective")[2].partition("\n#")[0]
        for name in LISTS:
            self.assertIn(name.removeprefix("lockstep/"), section)


if __name__ == "__main__":
    unittest.main()
