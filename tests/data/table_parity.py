"""CSV and TSV files against Python's csv module."""

import csv
import io
import os
import random
import tempfile
import unittest

from probe import ask

NASTY = ["", " ", "a", "one two", "a,b", "a\tb", 'say "hi"', '"', '""', "line\nbreak", "crlf\r\nbreak", "\n", ",",
         "é€𝄞", "\u2028", "'", "\\", "\\n", "NULL", "nan", "1.50", "true", "2024-01-01", "# no comment", " lead",
         "trail ", "x" * 5000, "a\x00b", "\ufeff"]


def written(rows, delimiter, terminator, quoting):
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, lineterminator=terminator, quoting=quoting).writerows(rows)
    return out.getvalue().encode()


class TableParity(unittest.TestCase):
    def compare(self, contents):
        """contents: (extension, bytes). All must be read, as Python's csv reads them."""
        with tempfile.TemporaryDirectory() as directory:
            questions, expected = [], []
            for i, (extension, content) in enumerate(contents):
                path = os.path.join(directory, f"{i}.{extension}")
                with open(path, "wb") as file:
                    file.write(content)
                text = io.StringIO(content.decode("utf-8-sig"), newline="")
                header, *rows = (row for row in csv.reader(text, delimiter="," if extension == "csv" else "\t") if row)
                questions.append(dict(ask="text_table", path=path))
                expected.append({"names": header, "columns": [list(column) for column in zip(*rows, strict=True)]})
            for (extension, content), answer, wanted in zip(contents, ask(questions), expected, strict=True):
                self.assertFalse(isinstance(answer, Exception), (extension, content[:300], answer))
                self.assertTrue(answer == wanted, (extension, content[:300]))

    def test_random_tables(self):
        draw = random.Random(3)
        contents = []
        for _ in range(400):
            columns, rows = draw.randint(2, 5), draw.choice([1, 2, 7, 300])
            header = [f"column {n}" for n in range(columns - 1)] + [draw.choice(["", "x,y", 'q"q', "a\nb", "last"])]
            table = [header] + [[draw.choice(NASTY) for _ in range(columns)] for _ in range(rows)]
            extension = draw.choice(["csv", "tsv", "txt"])
            contents.append((extension, written(table, "," if extension == "csv" else "\t",
                                                draw.choice(["\n", "\r\n"]),
                                                draw.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))))
        self.compare(contents)

    def test_larger_than_a_block_of_arrow(self):
        draw = random.Random(4)
        rows = [["text", "label"]] + [[draw.choice(NASTY) * draw.randint(1, 4), str(i)] for i in range(20000)]
        content = written(rows, ",", "\n", csv.QUOTE_MINIMAL)
        self.assertGreater(len(content), 4 << 20)
        self.compare([("csv", content)])

    def test_by_hand(self):
        self.compare([
            ("csv", b"a,b\n1,2"),                               # no line end at the end
            ("csv", b"a,b\r\n1,2\r\n\r\n3,4\r\n\r\n"),          # empty lines
            ("csv", b"\xef\xbb\xbfa,b\n1,2\n"),                 # byte order mark
            ("csv", b'\xef\xbb\xbf"a",b\n1,2\n'),
            ("csv", b"a\n1\n\n2\n"),                            # one column: an empty line is no row
            ("csv", b'a\n""\nx\n'),                             # but an empty quoted field is
            ("csv", b'a,b\n5" disk,2\n'),                       # a quote inside an unquoted field
            ("csv", b'a,b\n"x""y",""\n'),
            ("csv", b'a,b\n"x\n\ny",1\n'),
            ("csv", b"a,b\n ,\n,\n"),
            ("csv", b'a,b\n"x"y"z,"1"'),                        # text after a closing quote
            ("csv", b'a,b\n1,""""'),
            ("csv", b'"a","b"\n"1","2"'),
            ("csv", b'a,b\r1,2\r3,"4"'),                         # old Macintosh line ends
            ("tsv", b'a\tb\nit, "so"\tz\n'),
            ("txt", b"a\tb\n1\t2\n"),
        ])

    def test_bad_files(self):
        cases = {
            "short.csv": (b"text,label\na,0\nb\n", ":3: 1 fields, but the header line has 2"),
            "long.csv": (b'text,label\n"a\nb",0\nc,1,2\n', ":4: 3 fields, but the header line has 2"),
            "first.csv": (b"text,label\na,b,c\n", ":2: 3 fields"),
            "wide.tsv": (b"text\tlabel\na\tb\tc\n", "hold a tab"),
            "latin.csv": (b"text,label\nok,0\ncaf\xe9,1\n", ":3: byte 0xE9 is not UTF-8"),
            "surrogate.csv": (b"text\n\xed\xa0\x80\n", ":2: byte 0xED is not UTF-8"),
            "cut.csv": (b"text\nx\xc3", ":2: byte 0xC3 is not UTF-8"),
            "empty.csv": (b"", "is empty"),
            "blank.csv": (b"\n\n\r\n", "is empty"),
            "bom.csv": (b"\xef\xbb\xbf", "is empty"),
            "header.csv": (b"text,label\n", "has a header line ('text', 'label') but no rows"),
            "header_no_end.csv": (b"text,label", "has a header line ('text', 'label') but no rows"),
            "twice.csv": (b"text,text\na,b\n", ":1: column 'text' stands twice"),
            "open.csv": (b'text,label\n"a,0\nb,1\n', ":2: the quote that opens here is never closed"),
            "open_header.csv": (b'text,"label\na,0\n', ":1: the quote that opens here is never closed"),
            "open_last.csv": (b'text\nx\n\n"ab""', ":4: the quote that opens here is never closed"),
            "table.json": (b"{}", "expected a name that ends in .csv"),
        }
        with tempfile.TemporaryDirectory() as directory:
            questions = [dict(ask="text_table", path=os.path.join(directory, name)) for name in cases]
            questions.append(dict(ask="text_table", path=os.path.join(directory, "missing.csv")))
            questions.append(dict(ask="text_table", path=directory + "/sub.csv"))
            os.mkdir(directory + "/sub.csv")
            for name, (content, _) in cases.items():
                with open(os.path.join(directory, name), "wb") as file:
                    file.write(content)
            wanted = [message for _, message in cases.values()] + ["No such file", "it is a directory"]
            for question, answer, message in zip(questions, ask(questions), wanted, strict=True):
                with self.subTest(path=question["path"]):
                    self.assertIsInstance(answer, Exception)
                    self.assertIn(question["path"], str(answer))
                    self.assertIn(message, str(answer))
                    self.assertNotIn("\n", str(answer))


if __name__ == "__main__":
    unittest.main()
