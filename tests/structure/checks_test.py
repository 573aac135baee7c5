"""Tests compare tensors with the checks that say which element differs."""

import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
CONDITION = re.compile(r"\bCHECK_TRUE\(")
COMPARISON = re.compile(r"(?:\bat::equal|\.equal|\bat::allclose|\.allclose)\(")


def condition_of(text, begin):
    """What stands between the parenthesis before `begin` and its partner."""
    depth = 1
    for end in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[begin:end]
    return text[begin:]


class Checks(unittest.TestCase):
    def test_tensors_are_compared_by_checks_that_print_them(self):
        """CHECK_TRUE would print the condition alone. It may say that tensors differ, or compare with another condition."""
        found = []
        for path in sorted((SOURCE / "tests").rglob("*.cpp")):
            text = path.read_text()
            for match in CONDITION.finditer(text):
                condition = condition_of(text, match.end())
                is_more = condition.startswith("!") or re.search(r"\) [=!]= ", condition)
                if COMPARISON.search(condition) and not is_more:
                    found.append(
                        f"{path.relative_to(SOURCE)}:{text.count(chr(10), 0, match.start()) + 1}: CHECK_TRUE({condition}): "
                        "take CHECK_EQUAL or CHECK_CLOSE"
                    )
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
