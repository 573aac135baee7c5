"""docs/reference/errors.md quotes messages as the sources have them, and lists all types of errors."""

import re
import unittest

from messages import GAP, Message, messages_in, nearest, of_cmake, of_cpp, of_python, pattern_of
from pages import SOURCE, text_of

PAGE = "docs/reference/errors.md"
FOLDERS = ("lockstep", "launcher", "tools", "bench", "zoo", "python", "cmake")
MOST_PLACES = 4  # with one message: a quotation that more have says too little


def quotations(page):
    """(line, text) of each message quoted: the code in the first cells of tables whose first column is "message"."""
    is_table = False
    for number, line in enumerate(page.split("\n"), 1):
        if not line.startswith("|"):
            is_table = False
        elif re.match(r"\| *message *\|", line):
            is_table = True
        elif is_table:
            yield from ((number, code) for code in re.findall(r"`([^`]*)`", line.split("|")[1]))


def problems(page, messages):
    found = []
    for number, quoted in quotations(page):
        pattern = pattern_of(quoted)
        places = [message.place for message in messages if pattern.search(message.text)]
        if len(places) > MOST_PLACES:
            found.append(f"{PAGE}:{number}: `{quoted}` is in {len(places)} messages, such as {places[0]}'s; quote more of one")
        elif not places:
            other = nearest(quoted, messages)
            found.append(
                f"{PAGE}:{number}: no source has the message `{quoted}`. If it was reworded, quote it as it is now; if it is "
                f"gone, take the row out. The nearest is in {other.place}: {other.shown()}"
            )
    return found


class ErrorMessagesTest(unittest.TestCase):
    maxDiff = None

    def test_quoted_messages_are_in_the_sources(self):
        page = text_of(PAGE)
        self.assertGreater(len(list(quotations(page))), 60, "the quotations are no longer found")
        messages = messages_in(SOURCE, FOLDERS)
        self.assertGreater(len(messages), 2000, "the messages are no longer found")
        found = problems(page, messages)
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_rows_say_what_to_do(self):
        for number, line in enumerate(text_of(PAGE).split("\n"), 1):
            if line.startswith("|"):
                self.assertTrue(all(cell.strip() for cell in line.strip("|").split("|")), f"{PAGE}:{number} has an empty cell")

    def test_all_types_are_listed(self):
        """Those that a program sees which includes lockstep/lockstep.h."""
        headers, classes = ["lockstep/lockstep.h"], set()
        for header in headers:
            text = (SOURCE / header).read_text()
            classes.update(re.findall(r"^class (\w+Error) : public", text, re.M))
            headers += [name for name in re.findall(r'^#include "(lockstep/.*\.h)"', text, re.M) if name not in headers]
        self.assertEqual(set(re.findall(r"^\| `(\w+Error)`", text_of(PAGE), re.M)), classes)

    def test_a_reworded_message_is_found(self):
        page = "| message | cause | do |\n|---|---|---|\n| `rank <r> has gone home` | it is late | wait |\n"
        has = [Message("a.cpp:1", text) for _, text in of_cpp('throw Error("rank " + std::to_string(r) + " has gone " "home; wait");')]
        self.assertEqual(problems(page, has), [])
        for reworded in ('"rank " + name + " went home"', '"rank 3 has gone home"', '"rank " + a + " has gone" + b + " home"'):
            has = [Message("a.cpp:1", text) for _, text in of_cpp(f"throw Error({reworded});")]
            self.assertRegex("".join(problems(page, has)), r"errors.md:3: no source has the message `rank <r> has gone home`.*a.cpp:1")

    def test_a_quotation_of_many_messages_is_found(self):
        page = "| message | cause | do |\n|---|---|---|\n| `<file> is <what>` | any | none |\n"
        has = [Message(f"a.cpp:{line}", f"{GAP} is {GAP}") for line in range(MOST_PLACES + 1)]
        self.assertRegex("".join(problems(page, has)), "is in 5 messages, such as a.cpp:0's")

    def test_readers(self):
        first = 'f({.a = 1}, "{{x}} {:.2f}: "\n  /* "no" */ + g(\'"\') + R"(raw "text")");'
        self.assertEqual(
            of_cpp(first + ' // "no"\nint a = 30\'000; h("%s\\n");'), [(1, f'{GAP}{{x}} {GAP}: {GAP}raw "text"{GAP}'), (3, f"{GAP}\n{GAP}")]
        )
        self.assertEqual(of_cpp('if (a) { f("one"); } else { f("two" + b); }'), [(1, f"{GAP}one{GAP}"), (1, f"{GAP}two{GAP}")])
        self.assertEqual(of_python('raise E(f"one {a}"\n "two")'), [(1, f"{GAP}one {GAP}two{GAP}")])
        self.assertEqual(of_cmake('set(a "one ${b} \\\ntwo")'), [(1, f"{GAP}one {GAP} two{GAP}")])


if __name__ == "__main__":
    unittest.main()
