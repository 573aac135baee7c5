"""zoo/datasets/libreoffice_help.py as its users meet it: help pages in, aligned lines out, errors in one line."""

import pathlib
import subprocess
import tempfile
import unittest

from programs import command

SPLITS = ("train", "validation", "test")


def page(paragraphs):
    body = "".join(f'<p id="{name}" class="paragraph" dir="auto">{text}</p>\n' for name, text in paragraphs)
    return f"<!DOCTYPE html><html><head><title>x</title><script>if (1 < 2) {{}}</script></head><body>{body}</body></html>"


class LibreOfficeHelp(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.output = self.directory / "deep" / "help"
        self.help = self.directory / "root" / "usr" / "share" / "libreoffice" / "help"

    def put(self, language, name, html):
        path = self.help / language / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")

    def many_pages(self, count=60):
        for i in range(count):
            self.put("en-US", f"shared/{i:02}.html", page([("par_id1", f"Page {i}"), ("par_id2", "The same everywhere"), ("par_id3", "Basic")]))
            self.put("it", f"shared/{i:02}.html", page([("par_id2", "Ovunque lo stesso"), ("par_id1", f"Pagina {i}"), ("par_id3", "Basic")]))

    def make(self, *options, languages="en-US,it"):
        words = command("libreoffice_help", "--languages", languages, "--input", self.directory / "root", "--output-dir", self.output, *options)
        return subprocess.run(words, capture_output=True, text=True, timeout=60)

    def read(self):
        result = {}
        for split in SPLITS:
            sides = [(self.output / f"{split}.{language}").read_text(encoding="utf-8").splitlines() for language in ("en-US", "it")]
            self.assertEqual(len(sides[0]), len(sides[1]))
            result[split] = list(zip(*sides))
        return result

    def test_joins_paragraphs_and_splits_by_page(self):
        self.many_pages()
        self.put("en-US", "only-here.html", page([("par_id1", "Nobody translated this page")]))
        run = self.make()
        self.assertEqual(run.returncode, 0, run.stderr)
        pairs = self.read()
        together = [pair for split in SPLITS for pair in pairs[split]]
        self.assertEqual(sorted(together), sorted([(f"Page {i}", f"Pagina {i}") for i in range(60)] + [("The same everywhere", "Ovunque lo stesso")]))
        self.assertGreater(len(pairs["train"]), len(pairs["test"]))
        self.assertIn("61 pairs of 60 pages", run.stdout)
        self.assertIn("59 duplicates, 60 without a translation", run.stdout)
        self.assertIn("Mozilla Public License 2.0", (self.output / "SOURCE.txt").read_text())

    def test_text_is_what_a_reader_sees(self):
        self.many_pages()
        self.put(
            "en-US",
            "a.html",
            page(
                [
                    (
                        "par_id9",
                        'Choose <span class="menuitem">File\n   - <b>Open</b></span> &amp; &lt;Enter&gt;,<br/>&#233;&nbsp;t&#xe9; &unknown; A&B<!-- <p>no</p> -->',
                    ),
                    ("", "without an id"),
                    ("par_id8", "<img src='x.png'/>"),
                    ("par_id7", "one"),
                    ("par_id7", "again"),
                ]
            )
            + '<h2 id="hd_id1" dir="auto"><a href="x">A heading</a></h2>',
        )
        self.put("it", "a.html", page([("par_id9", "nove"), ("par_id8", "otto"), ("par_id7", "uno")]) + '<h2 id="hd_id1">Titolo</h2>')
        self.assertEqual(self.make().returncode, 0)
        pairs = {target: source for split in self.read().values() for source, target in split}
        self.assertEqual(pairs["nove"], "Choose File - Open & <Enter>, é té &unknown; A&B")
        self.assertEqual(pairs["Titolo"], "A heading")
        self.assertEqual(pairs["uno"], "one")
        self.assertNotIn("otto", pairs)

    def refused(self, message, **more):
        run = self.make(**more)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(message, run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        self.assertFalse(self.output.exists())

    def test_errors(self):
        self.refused("has no en-US/text")
        self.put("en-US", "a.html", page([("par_id1", "one")]))
        self.refused("has no it/text; expected an unpacked package libreoffice-help-it")
        self.put("it", "a.html", page([("par_id1", "uno")]))
        self.refused("too few pages in both languages (1)")
        self.refused("expected two languages with a comma between", languages="it")
        self.refused("expected two languages with a comma between", languages="it,it")
        self.refused("'../it' is no language", languages="../it,de")


if __name__ == "__main__":
    unittest.main()
