"""A folder includes only folders that stand above it in docs/architecture.md."""

import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])


def folders():
    """The folders of C++ sources in the order of the document's tables: a row's first cell names one."""
    text = (SOURCE / "docs" / "architecture.md").read_text()
    return re.findall(r"^\| `([a-z_/]+)/` \|", text, re.MULTILINE)


def sources():
    """Names of all C++ files in the tables' folders, relative to the repository."""
    roots = sorted({folder.split("/")[0] for folder in folders()})
    return [str(path.relative_to(SOURCE)) for root in roots for path in sorted((SOURCE / root).rglob("*")) if path.suffix in (".h", ".cpp")]


def folder_of(name, order):
    """The innermost folder of the tables that holds `name`; None for a file beside them."""
    holders = [folder for folder in order if name.startswith(folder + "/")]
    return max(holders, key=len) if holders else None


def includes_of(text):
    """The files that a source includes, relative to the repository: the zoo's headers are included as lockstep/zoo/..."""
    return [re.sub("^lockstep/zoo", "zoo", included) for included in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)]


def wrong_includes(order, texts):
    """What sources, {name: text}, include from below, a line each."""
    for name, text in texts.items():
        folder = folder_of(name, order)
        if folder is None or name.count("/") == 1:  # a main program, an umbrella header
            continue
        for included in includes_of(text):
            other = folder_of(included, order)
            if other is not None and order.index(other) > order.index(folder):
                yield f"{name} includes {included}, but {other}/ stands below {folder}/"


class IncludeOrderTest(unittest.TestCase):
    def test_no_folder_includes_one_below_it(self):
        order = folders()
        self.assertIn("lockstep/base", order)
        self.assertEqual([], list(wrong_includes(order, {name: (SOURCE / name).read_text() for name in sources()})))

    def test_a_planted_include_is_found(self):
        order = ["lockstep/base", "lockstep/comm", "lockstep/comm/backends", "zoo/text"]
        base, text = '#include <string>\n#include "lockstep/base/error.h"\n', '#include "lockstep/zoo/text/ids.h"\n'
        self.assertEqual([], list(wrong_includes(order, {"lockstep/comm/init.cpp": base, "zoo/text/ids.cpp": base + text})))
        wrong = {"lockstep/base/error.cpp": base + '#include "lockstep/comm/init.h"\n', "lockstep/comm/backends/gloo.cpp": base + text}
        self.assertEqual(
            [
                "lockstep/base/error.cpp includes lockstep/comm/init.h, but lockstep/comm/ stands below lockstep/base/",
                "lockstep/comm/backends/gloo.cpp includes zoo/text/ids.h, but zoo/text/ stands below lockstep/comm/backends/",
            ],
            list(wrong_includes(order, wrong)),
        )


if __name__ == "__main__":
    unittest.main()
