"""The searches that scripts/docs_search_check.py tries name pages of the site, and each rule of the search's order fits a page.

scripts/docs makes the site and tries the searches.
"""

import sys
import types
import unittest

from pages import SOURCE

sys.path.insert(0, str(SOURCE / "scripts"))
import docs_search_check  # noqa: E402
import docs_search_order  # noqa: E402

MADE = ("api/", "project/", "reference/flags.md")  # pages that scripts/docs makes


def boost_of(path):
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri=path), meta={})
    docs_search_order.on_page_markdown("", page)
    return page.meta.get("search", {}).get("boost", 1)


class SearchTest(unittest.TestCase):
    def test_the_pages_are_there(self):
        for words, page in docs_search_check.SEARCHES.items():
            with self.subTest(words):
                self.assertTrue((SOURCE / "docs" / f"{page}.md").exists(), page)

    def test_what_readers_ask_most_is_tried(self):
        for words, page in (
            ("batch size", "data"),
            ("no_sync", "ddp"),
            ("checkpoint", "checkpoints"),
            ("--max-restarts", "lockrun/ends"),
            ("--nproc-per-node", "lockrun"),
            ("SLURM", "lockrun/recipes"),
        ):
            self.assertEqual(docs_search_check.SEARCHES[words], page)

    def test_every_rule_fits_a_page(self):
        pages = [str(path.relative_to(SOURCE / "docs")) for path in (SOURCE / "docs").rglob("*.md")]
        for start in docs_search_order.BOOST:
            with self.subTest(start):
                self.assertTrue(start in MADE or any(page.startswith(start) for page in pages))

    def test_the_last_rule_that_fits_counts(self):
        self.assertEqual([boost_of(path) for path in ("lockrun.md", "lockrun/ends.md", "api/data.md", "data.md", "gpu.md")], [4, 3, 0.1, 2, 1])

    def test_a_wrong_result_is_an_error(self):
        searches = {"batch size": "data", "no_sync": "ddp", "hang": "howto/debug_a_hang"}
        self.assertEqual(
            docs_search_check.problems(searches, ["data.html#batch-size", "ddp.html", None]),
            ["a search for 'hang' finds nothing first, and should find howto/debug_a_hang.html"],
        )
        self.assertEqual(len(docs_search_check.problems(searches, ["data/sets.html", "ddp.html", "howto/debug_a_hang.html"])), 1)

    def test_dashes_are_not_searched(self):
        self.assertEqual(docs_search_check.typed("--nproc-per-node 2 -v"), "nproc-per-node 2 v")
        self.assertIn(r"replace(/(^|\s)-+(?=\S)/g", (SOURCE / "docs/assets/search.js").read_text())


if __name__ == "__main__":
    unittest.main()
