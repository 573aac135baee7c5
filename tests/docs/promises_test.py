"""Every promise of docs/{ddp,collectives,optimizers,determinism}.md, and of the pages in folders of these names, has a test that would
fail if it were false: promises.toml names it. And the faults of faults.toml, which scripts/plant_faults plants, still fit the sources."""

import re
import tomllib
import unittest

import faults
from faults import Fault
from named_tests import missing, named_tests
from pages import SOURCE, sentences_of

TABLE = "tests/docs/promises.toml"
PAGES = ("ddp", "collectives", "optimizers", "determinism")
# Whole words of prose: neither `all_reduce` nor "all-reduce".
WORD = re.compile(r"(?<![\w-])(all|every|never|same)(?![\w-])", re.I)
ROWS = "ddp_rows"  # the other rows of docs/ddp.md's tables
MOST_DEFINITIONS = 14  # sentences that use the words and promise nothing
MOST_UNTESTED = 0  # rows
FEWEST_FAULTS = 20


def promises_of(page):
    """(line, sentence, word)"""
    for line, sentence in sentences_of(page):
        word = WORD.search(re.sub(r"`[^`]*`", "`code`", re.sub(r"\]\([^)]*\)", "]", sentence)))
        if word:
            yield line, sentence, word[1]


def rows_of(page):
    """(line, row, word) of the tables' rows that promises_of() does not have; `word` is what an error quotes."""
    promised = {sentence for _, sentence, _ in promises_of(page)}
    in_table = False
    for line, sentence in sentences_of(page):
        if not sentence.startswith("|"):
            in_table = False
        elif sentence.startswith("|---"):
            in_table = True
        elif in_table and sentence not in promised:
            yield line, sentence, sentence.split("|")[1].strip()


def pages_of(name):
    """A page, and those that its long sections are."""
    return [f"docs/{name}.md", *sorted(str(path.relative_to(SOURCE)) for path in (SOURCE / "docs" / name).glob("*.md"))]


def problems(name, promises, entries, tests):
    """`entries`: by the beginning of a sentence, its tests or "definition: REASON"."""
    found = []
    used = dict.fromkeys(entries, 0)
    for line, sentence, word in promises:
        matching = [beginning for beginning in entries if sentence.startswith(beginning)]
        for beginning in matching:
            used[beginning] += 1
        if not matching:
            found.append(
                f'docs/{name}.md:{line}: this says "{word}", and {TABLE} does not say which test would fail if it were false:'
                f'\n    {sentence}\n  Under [{name}] there, give its beginning and that test: "{sentence[:40]}..." = '
                f'"ddp_cases: Suite.Case". If there is none, write one, or say less.'
            )
        elif len(matching) > 1:
            found.append(f"docs/{name}.md:{line}: {TABLE} has this sentence twice: {matching}")
    for beginning, count in used.items():
        if count == 0:
            found.append(
                f'{TABLE}: docs/{name}.md has no sentence with all, every, never or same that begins with "{beginning}". If it '
                f"was reworded, give its new beginning; does its test still fit? If it is gone, take the entry out."
            )
        elif count > 1:
            found.append(f'{TABLE}: {count} sentences of docs/{name}.md begin with "{beginning}": give more of it')
    for beginning, given in entries.items():
        names = [given] if isinstance(given, str) else given
        if names[0].startswith(("definition: ", "untested: ")):
            continue
        wrong = missing(names, tests)
        if wrong:
            found.append(f'{TABLE}: "{beginning}": {wrong}')
    return found


class PromisesTest(unittest.TestCase):
    def setUp(self):
        self.table = tomllib.loads((SOURCE / TABLE).read_text())
        self.tests = named_tests()

    def test_every_promise_has_a_test(self):
        self.assertEqual(set(self.table), {*PAGES, ROWS})
        found = []
        for name in PAGES:
            promises = [promise for page in pages_of(name) for promise in promises_of(page)]
            self.assertGreater(len(promises), 8, "the sentences are no longer found")
            found += problems(name, promises, self.table[name], self.tests)
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_every_row_of_ddp_has_a_test(self):
        rows = [row for page in pages_of("ddp") for row in rows_of(page)]
        self.assertGreater(len(rows), 50, "the rows are no longer found")
        found = problems("ddp", rows, self.table[ROWS], self.tests)
        self.assertEqual(found, [], "\n" + "\n".join(found))
        untested = [beginning for entries in self.table.values() for beginning, given in entries.items() if str(given).startswith("untested: ")]
        self.assertLessEqual(len(untested), MOST_UNTESTED, untested)

    def test_the_page_of_ddp_says_where_its_tests_are(self):
        text = (SOURCE / "docs/ddp.md").read_text()
        self.assertIn(f"`{TABLE}`", text)
        case = re.search(r"`scripts/test --case ([\w.]+)`", text)
        self.assertTrue(case, "no command that runs a test")
        self.assertEqual(missing([f"ddp_cases: {case[1]}"], self.tests), "")

    def test_few_sentences_promise_nothing(self):
        definitions = [(name, beginning) for name in PAGES for beginning, given in self.table[name].items() if str(given).startswith("definition: ")]
        self.assertLessEqual(len(definitions), MOST_DEFINITIONS, definitions)

    def test_every_fault_fits_the_sources(self):
        table = faults.faults()
        self.assertGreaterEqual(len(table), FEWEST_FAULTS)
        self.assertEqual({fault.page for fault in table}, set(PAGES))
        self.assertEqual(len({fault.name for fault in table}), len(table), "two faults have one name")
        for fault in table:
            with self.subTest(fault.name):
                count = (SOURCE / fault.file).read_text().count(fault.old)
                self.assertEqual(
                    count,
                    1,
                    f"{faults.TABLE}: {fault.file} has its old text {count} times instead of once. Fit it to the "
                    f"source as it is now; scripts/plant_faults --only {fault.name} shows that the test still fails",
                )
                self.assertEqual(missing([fault.test], self.tests), "")
                named = [test for given in self.table[fault.page].values() for test in ([given] if isinstance(given, str) else given)]
                self.assertIn(fault.test, named, f"no promise of docs/{fault.page}.md in {TABLE} names this test")

    def test_what_is_wrong_is_told(self):
        tests = {"ddp_cases": self.tests["ddp_cases"], "performance_page": self.tests["performance_page"]}
        promises = [(3, "All ranks sing.", "All"), (4, "It never rains.", "never")]
        good = {"All ranks": "ddp_cases: Join.UnevenInputs", "It never": ["performance_page"]}
        self.assertEqual(problems("ddp", promises, good, tests), [])
        for entries, expected in (
            ({"All ranks": good["All ranks"]}, r"^docs/ddp.md:4: this says \"never\".*\n    It never rains.\n"),
            ({**good, "It snows": "performance_page"}, 'has no sentence .* that begins with "It snows"'),
            ({**good, "It never rains": "performance_page"}, "has this sentence twice"),
            ({**good, "It never": "ddp_cases"}, "ddp_cases has many cases"),
            ({**good, "It never": "ddp_cases: Join.Nobody"}, "ddp_cases has no case Join.Nobody"),
            ({**good, "It never": "ddp_cases: Groups.AsyncForms"}, "has no case Groups.AsyncForms"),
            ({**good, "It never": "hail"}, "CTest has no hail"),
        ):
            found = problems("ddp", promises, entries, tests)
            self.assertEqual(len(found), 1, found)
            self.assertRegex(found[0], expected)

    def test_what_is_planted(self):
        def fault(name, old, new):
            return Fault(name=name, page="ddp", file="f.cpp", old=old, new=new, test="t")

        sum_, call, rank = fault("s", "a + b", "a"), fault("c", "go();", ""), fault("r", "f(r)", "f(FAULT ? 0 : r)")
        self.assertEqual(
            faults.plant("x = a + b;\ngo();\nf(r) + 1", [call, rank, sum_]),
            '#include "lockstep_planted.h"\nx = (lockstep_planted("s") ? (a) : (a + b));\n'
            'if (lockstep_planted("c")) {  } else { go(); }\nf(lockstep_planted("r") ? 0 : r) + 1',
        )
        self.assertRaisesRegex(ValueError, "f.cpp has the old text of s 2 times", faults.plant, "a + b, a + b", [sum_])


if __name__ == "__main__":
    unittest.main()
