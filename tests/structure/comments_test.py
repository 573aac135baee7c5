"""A comment in the C++ sources begins with a subject or a verb, not with "Of", "Likewise" or "The same"."""

import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
LINE = re.compile(r"^\s*//")
# The text before a trailing comment: no string that is still open, so that "https://..." is none.
TRAILING = re.compile(r"""^(?:[^"'/]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|/(?!/)|(?<=\w)')*(//.*)$""")
BAD = re.compile(r"^///?<? ?(?:Of |Likewise\b|The same\b)")


def sources():
    names = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z", "--", "*.h", "*.cpp"], check=True,
                           capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (SOURCE / name).is_file():
            yield name, (SOURCE / name).read_text()


def bad_comments(text):
    """Numbers of the lines at which a comment begins so. A comment is a block of // lines, or one behind code."""
    numbers, in_block = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if LINE.match(line):
            if not in_block and BAD.match(line.strip()):
                numbers.append(number)
            in_block = True
            continue
        in_block = False
        trailing = TRAILING.match(line) if "//" in line else None
        if trailing and BAD.match(trailing[1]):
            numbers.append(number)
    return numbers


class CommentsTest(unittest.TestCase):
    def test_which_lines_count(self):
        self.assertEqual([1], bad_comments("/// Of the last step.\nint step;"))
        self.assertEqual([1], bad_comments("int step;  ///< The same on all ranks."))
        self.assertEqual([2], bad_comments("int next = 1'000;\n// Likewise.\nint last;"))
        self.assertEqual([], bad_comments("// These are the values\n// Of the last step."))
        self.assertEqual([], bad_comments('say("// Of the last step");\nopen("file:///Of x");'))

    def test_comments_have_a_subject_or_a_verb(self):
        files = dict(sources())
        self.assertGreater(len(files), 100, "git no longer lists the sources")
        self.assertEqual([], [f"{name}:{number}" for name, text in files.items() for number in bad_comments(text)])


if __name__ == "__main__":
    unittest.main()
