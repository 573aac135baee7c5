"""Bad tables: each error names file, line, record and column, or the rows are left out and counted."""

import json
import os
import random
import unittest

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
from table_files import FilesTest, ask


class BadRows(FilesTest):
    def refused(self, answer, path, *messages):
        self.assertIsInstance(answer, Exception, path)
        self.assertIn(path, str(answer))
        for message in messages:
            self.assertIn(message, str(answer))
        self.assertNotIn("\n", str(answer))

    def test_files_that_are_no_tables(self):
        cases = {
            "empty.csv": (b"", "is empty"),
            "blank.csv": (b"\n\n\r\n", "is empty"),
            "bom.csv": (b"\xef\xbb\xbf", "is empty"),
            "header.csv": (b"text,label\n", "has columns ('text', 'label') but no rows"),
            "header_no_end.csv": (b"text,label", "has columns ('text', 'label') but no rows"),
            "twice.csv": (b"text,text\na,b\n", ":1: column 'text' stands twice"),
            "quoted_twice.csv": (b'"te,xt",b,"te,xt"\na,b,c\n', ":1: column 'te,xt' stands twice"),
            "open.csv": (b'text,label\n"a,0\nb,1\n', ":2: the quote that opens here is never closed"),
            "open_header.csv": (b'text,"label\na,0\n', ":1: the quote that opens here is never closed"),
            "open_last.csv": (b'text\nx\n\n"ab""', ":4: the quote that opens here is never closed"),
            "header_latin.csv": (b"caf\xe9,b\n1,2\n", ":1: byte 0xE9 is not UTF-8"),
            "header_nul.csv": (b"a\0,b\n1,2\n", ":1: a NUL byte"),
            "table.xlsx": (b"{}", "expected a name that ends in .csv"),
            "table.parquet.gz": (b"{}", "unpack it first"),
            "empty.jsonl": (b"", "is empty"),
            "blank.jsonl": (b"\n \n", "is empty"),
            "list.json": (b'[{"text": "a"},\n{"text": "b"}]\n', ":1: record 1: the line begins with '['"),
            "printed.json": (b'{\n  "text": "a"\n}\n', ":1: record 1: the object does not end on its line"),
            "text.jsonl": (b"hello\n", ":1: record 1: not a JSON object"),
            "nested_only.jsonl": (b'{"a": [1]}\n', "none of its columns holds texts or numbers"),
            "empty.parquet": (b"", "is not a whole Parquet file"),
            "text.parquet": (b"text,label\na,b\n" * 9, "is not a whole Parquet file"),
            "text.arrow": (b"text,label\na,b\n" * 9, "is not a whole Arrow file"),
            "not.csv.gz": (b"a,b\n1,2\n", "cannot be unpacked"),
        }
        paths = [self.put(name, content) for name, (content, _) in cases.items()]
        for name in ("missing.csv", "missing.parquet", "missing.jsonl"):
            cases[name] = (None, "No such file")
            paths.append(os.path.join(self.directory, name))
        for name in ("sub.csv", "sub.parquet"):
            os.mkdir(os.path.join(self.directory, name))
            cases[name] = (None, "it is a directory")
            paths.append(os.path.join(self.directory, name))
        answers = ask([dict(ask="text_table", path=path) for path in paths])
        for path, answer, (_, message) in zip(paths, answers, cases.values(), strict=True):
            with self.subTest(path=path):
                self.refused(answer, path, message)
        with_cache = ask([dict(ask="text_table", path=path, cache_dir=self.directory + "/cache") for path in paths])
        for path, answer in zip(paths, with_cache, strict=True):
            self.assertIsInstance(answer, Exception, path)
        self.assertEqual(os.listdir(self.directory + "/cache"), [])

    def test_bad_rows_are_named_or_counted(self):
        good_csv = b"text,label\nfirst,0\n"
        good_json = b'{"text": "first", "label": 0}\n'
        csv_rows = {
            b"b\n": "1 fields, but the header line has 2",
            b"text,+-5\n": "column 'label': \"+-5\" is not a whole number",
            b"c,1,2\n": "3 fields, but the header line has 2; quote fields that hold a comma",
            b"caf\xe9,1\n": "column 'text': byte 0xE9 is not UTF-8; convert the file",
            b"\xed\xa0\x80,1\n": "column 'text': byte 0xED is not UTF-8",
            b'"a,""b",1\xc3\n': "column 'label': byte 0xC3 is not UTF-8",
            b"a\0b,1\n": "column 'text': a NUL byte",
            b'"abc"def,0\n': "text behind the closing quote of a field; write a quote within a quoted field as two, or take quotes as text",
            b'"abc" ,0\n': "text behind the closing quote",
            b'abc,"0"1\n': "text behind the closing quote",
            b"text,one\n": "column 'label': \"one\" is not a whole number",
            b"text,1.0\n": "column 'label': \"1.0\" is not a whole number",
            b"text,\n": "column 'label': no value",
            b"text,9223372036854775808\n": "is not a whole number of 64 bits",
        }
        json_rows = {
            b'{"text": "a", "label": 1} {"text": "b", "label": 2}\n': "two objects on one line",
            b'{"text": "a"}\n': "column 'label': no such key",
            b'{"text": null, "label": 1}\n': "column 'text': no value (null)",
            b'{"text": 5, "label": 1}\n': "column 'text': 5 is a number; the first record has text",
            b'{"text": ["a"], "label": 1}\n': "column 'text': a list",
            b'{"text": {"a": 1}, "label": 1}\n': "column 'text': an object",
            b'{"text": "a", "label": "1"}\n': 'column \'label\': ""1"" is not a whole number',
            b'{"text": "a", "label": 1.0}\n': "column 'label': \"1.0\" is not a whole number",
            b'{"text": "a", "label": 9223372036854775808}\n': "is not a whole number of 64 bits",
            b'{"text": "a", "text": "b", "label": 1}\n': "the key 'text' stands twice",
            b'{"text": "a", "label": 1, "x": ' + b"[" * 200 + b"]" * 200 + b"}\n": "nested more than 100 deep",
            b'{"text": "a", "label": 1, "x": ' + b'{"a":' * 10**6 + b"\n": "nested more than 100 deep",
            b'{"text": "caf\xe9", "label": 1}\n': "column 'text': byte 0xE9 is not UTF-8",
            b'{"text": "a", "label": 1, "more": ["\xff"]}\n': "column 'more': byte 0xFF is not UTF-8",
            b'{"text": "a", "label": 1, "\xff": 1}\n': "record 2: byte 0xFF is not UTF-8",
            b'{"text": "a\0b", "label": 1}\n': "a NUL byte",
            b'{"text": "a", "label": 1\n': "the object does not end on its line",
            b'{"text": "\\ud800", "label": 1}\n': "is no character",
            b'["a", 1]\n': "the line begins with '['",
            b"text\n": "not a JSON object",
        }
        questions, wanted = [], []
        for i, (extension, good, bad) in enumerate([("csv", good_csv, row) for row in csv_rows] + [("jsonl", good_json, row) for row in json_rows]):
            last = b'"la\nst",7' if extension == "csv" else b'{"text": "la\\nst", "label": 7}'
            path = self.put(f"{i}.{extension}", good + b"\n" + bad + last)
            columns = [["text", "string"], ["label", "int64"]]
            questions += [
                dict(ask="typed", path=path, columns=columns),
                dict(ask="typed", path=path, columns=columns, skip_bad_rows=True),
                dict(ask="typed", path=path, columns=columns, skip_bad_rows=True, block_bytes=10),
            ]
            line, record = (4, 2) if extension == "csv" else (3, 2)
            wanted.append((path, f":{line}: record {record}", (csv_rows if extension == "csv" else json_rows)[bad], line))
        answers = ask(questions)
        for (path, place, what, line), error, whole, blocks in zip(wanted, answers[::3], answers[1::3], answers[2::3], strict=True):
            with self.subTest(what=what):
                self.refused(error, path + place, what)
                for answer in (whole, blocks):
                    self.assertNotIsInstance(answer, Exception)
                    self.assertEqual(answer["values"], [["first", "la\nst"], [0, 7]])
                    self.assertEqual(answer["records"], [[0, line - 2], [2, line + 1]])
                    self.assertEqual(answer["skipped"], 1)
                    self.assertEqual(answer["first_skipped"], str(error))

    def test_quotes_that_would_join_rows(self):
        """Two lone quotes in a TSV file: refused, or text, or one field, as the caller says."""
        joined = self.put("joined.tsv", b'text\tlabel\nfirst\t1\n"opens here\t0\nmiddle\t1\ncloses"\t0\nlast\t1\n')
        behind = self.put("behind.tsv", b'text\tlabel\n"unclosed start\t1\nsecond\t0\nthe "third" row\t1\nlast"\t1\n')
        header = self.put("header.tsv", b'a\t"b\nc\td"\te\n1\t2\t3\n')
        old = self.put("old.tsv", b'a\tb\r1\t2\r"3\t4\r5"\t6\r')  # line ends of old Macintoshes
        for path, line in ((joined, 3), (behind, 2), (header, 1), (old, 3)):
            for answer in ask([dict(ask="text_table", path=path), dict(ask="text_table", path=path, skip_bad_rows=True)]):
                self.refused(answer, f"{path}:{line}: a quote that opens in this row closes on a later line, behind a tab", "--no-quotes")
        none, minimal = ask([dict(ask="text_table", path=joined, quoting=quoting) for quoting in ("none", "minimal")])
        self.assertEqual(none["columns"], [["first", '"opens here', "middle", 'closes"', "last"], ["1", "0", "1", "0", "1"]])
        self.assertEqual(minimal["columns"], [["first", "opens here\t0\nmiddle\t1\ncloses", "last"], ["1", "0", "1"]])
        (answer,) = ask([dict(ask="text_table", path=behind, quoting="none")])
        self.assertEqual(answer["columns"][0], ['"unclosed start', "second", 'the "third" row', 'last"'])
        csv = self.put("wide.csv", b'text,label\n"a,\nb",1\n')  # text of several lines is common there
        (answer,) = ask([dict(ask="text_table", path=csv)])
        self.assertEqual(answer["columns"], [["a,\nb"], ["1"]])

    def test_bad_values_within_objects_and_lists(self):
        columns = [["t.en", "string"], ["tokens", "list"]]
        good = {"t": {"en": "a"}, "tokens": ["x"]}
        rows = [
            {"t": {"it": "b"}, "tokens": []},
            {"t": None, "tokens": []},
            {"t": "text", "tokens": []},
            {"t": {"en": ["x"]}, "tokens": []},
            {"t": {"en": 5}, "tokens": []},
            {"t": {"en": "b"}, "tokens": None},
            {"t": {"en": "b"}, "tokens": "x"},
            {"t": {"en": "b"}, "tokens": ["x", None]},
            {"t": {"en": "b"}, "tokens": ["x", "y", 3]},
            {"t": {"en": "b"}, "tokens": [["x"]]},
        ]
        whats = [
            "'t.en': no such key",
            "'t.en': no value (null)",
            "'t.en': no such key",
            "'t.en': a list; expected text",
            "'t.en': 5 is a number; the first record has text",
            "'tokens': no value (null)",
            "'tokens': not a list",
            "'tokens': element 2: no value (null)",
            "'tokens': element 3: 3 is a number",
            "'tokens': element 1: a list",
        ]
        paths = [self.put(f"{i}.jsonl", "".join(json.dumps(r) + "\n" for r in (good, row, good)).encode()) for i, row in enumerate(rows)]
        for path, what, error, skipped in zip(
            paths,
            whats,
            ask([dict(ask="typed", path=p, columns=columns) for p in paths]),
            ask([dict(ask="typed", path=p, columns=columns, skip_bad_rows=True) for p in paths]),
            strict=True,
        ):
            self.refused(error, f"{path}:2: record 2, column {what}")
            self.assertEqual(skipped["values"], [["a", "a"], [["x"], ["x"]]])
        parquet = os.path.join(self.directory, "n.parquet")
        pyarrow.parquet.write_table(
            pa.Table.from_pylist(
                [
                    good,
                    {"t": None, "tokens": ["x"]},
                    {"t": {"en": None}, "tokens": ["x"]},
                    {"t": {"en": "b"}, "tokens": None},
                    {"t": {"en": "b"}, "tokens": ["x", None]},
                    good,
                ]
            ),
            parquet,
        )
        error, skipped, whole, field, lists = ask(
            [
                dict(ask="typed", path=parquet, columns=columns),
                dict(ask="typed", path=parquet, columns=columns, skip_bad_rows=True),
                dict(ask="text_table", path=parquet, columns=["t"]),
                dict(ask="text_table", path=parquet, columns=["t.de"]),
                dict(ask="text_table", path=parquet, columns=["tokens"]),
            ]
        )
        self.refused(error, parquet + ": record 2, column 't.en': no value (null)")
        self.assertEqual((skipped["values"], skipped["skipped"]), ([["a", "a"], [["x"], ["x"]]], 4))
        self.refused(whole, parquet + ": column 't' holds objects; name one of their fields, such as 't.en'")
        self.assertEqual(str(field), f"{parquet}: there is no column 't.de'; its columns are 't.en', 'tokens'")
        self.refused(lists, "column 'tokens' holds list<element: string>; expected texts or numbers")
        (answer,) = ask([dict(ask="typed", path=self.put("a.csv", b"a\nx\n"), columns=[["a", "list"]])])
        self.refused(answer, "column 'a' cannot be lists")

    def test_a_damaged_page(self):
        """Named by row group and column; where bad rows are skipped, the rows before it and the other row groups are read."""
        n, group = 6000, 2500
        table = pa.table(
            {
                "id": list(range(n)),
                "text": [f"text {i} " * 3 for i in range(n)],
                "t": [{"en": f"{i}"} for i in range(n)],
                "tokens": [[str(i)] * (i % 3) for i in range(n)],
            }
        )
        path = os.path.join(self.directory, "d.parquet")
        pyarrow.parquet.write_table(
            table,
            path,
            row_group_size=group,
            write_page_checksum=True,
            compression="none",
            use_dictionary=False,
            data_page_size=20000,
            write_statistics=False,
        )
        with open(path, "rb") as file:
            whole = file.read()
        metadata = pyarrow.parquet.ParquetFile(path).metadata
        columns = [["t.en", "string"], ["text", "string"], ["tokens", "list"], ["id", "int64"]]
        for column, needle in (
            ("text", b"text %d text" % 3300),
            ("text", b"text %d text" % 2500),
            ("t.en", b"\4\0\0\0%d" % 4200),
            ("tokens", b"\4\0\0\0%d" % 5999),
            ("text", b"text %d text" % 9),
        ):
            starts = [
                chunk.data_page_offset
                for g in range(3)
                for chunk in map(metadata.row_group(g).column, range(4))
                if chunk.path_in_schema.split(".list")[0] == column
            ]
            place = whole.find(needle, starts[int(needle.strip(b"text \4\0").split()[0]) // group])
            bad = self.put("bad.parquet", whole[: place + 6] + b"#" + whole[place + 7 :])
            row = int(needle.strip(b"text \4\0").split()[0])
            error, skipped = ask([dict(ask="typed", path=bad, columns=columns), dict(ask="typed", path=bad, columns=columns, skip_bad_rows=True)])
            self.assertTrue(isinstance(error, Exception), (column, needle))  # the rows would fill the screen
            self.refused(error, bad, f"column '{column}': row group {row // group + 1} of 3 is damaged from here on: ")
            self.assertNotIsInstance(skipped, Exception)
            ids = skipped["values"][3]
            lost = [i for i in range(n) if i not in set(ids)]
            end = min(n, (row // group + 1) * group)
            self.assertEqual(lost, list(range(lost[0], end)), column)  # to the end of its row group
            self.assertLessEqual(lost[0], row)
            self.assertGreater(lost[0] + 2100, row)  # pages are that small
            self.assertEqual(ids, [i for i in range(n) if not lost[0] <= i < end])
            self.assertEqual(skipped["values"][1], [f"text {i} " * 3 for i in ids])
            self.assertEqual([record for record, _ in skipped["records"]], ids)
            self.assertEqual(skipped["skipped"], len(lost))
            self.assertEqual(skipped["first_skipped"], str(error))
            self.assertIn(f"record {lost[0] + 1}, ", str(error))

    def test_the_first_bad_row_of_a_block(self):
        """Whatever is wrong with it, in whichever column: the same row as in blocks of one row."""
        columns = [["b", "int64"], ["a", "int64"]]
        csv = self.put("a.csv", b"a,b\n0,0\none,1\n2,two\n3\n\xff,4\n")
        parquet = os.path.join(self.directory, "a.parquet")
        pyarrow.parquet.write_table(pa.table({"a": [0, None, 2, 3], "b": [0, 1, None, None]}), parquet)
        questions = [dict(ask="typed", path=path, columns=columns) for path in (csv, parquet)]
        for path, place, total, what, error, skipped, blocks in zip(
            (csv, parquet),
            (":3: record 2", ": record 2"),
            (4, 3),
            ('"one" is not a whole number', "no value (null)"),
            ask(questions),
            ask([dict(q, skip_bad_rows=True) for q in questions]),
            ask([dict(q, skip_bad_rows=True, block_bytes=4) for q in questions]),
            strict=True,
        ):
            self.refused(error, path + place + ", column 'a'", what)
            for answer in (skipped, blocks):
                self.assertEqual(answer["first_skipped"], str(error))
                self.assertEqual(answer["skipped"], total)
                self.assertEqual(answer["values"], [[0], [0]])

    def test_numbers_beyond_those_of_a_double(self):
        """Too large: bad. Too small: 0, as in Python. A number of 400 digits is no infinity."""
        huge, tiny = [b"1" + b"0" * 400, b"1e400", b"-1e400"], [b"1e-400", b"-2.5e-400", b"0." + b"0" * 400 + b"1"]
        paths = [
            self.put("a.csv", b"x\n1.5\n" + b"\n".join(huge + tiny)),
            self.put("a.jsonl", b"".join(b'{"x": %s}\n' % x for x in [b"1.5", *huge, *tiny])),
        ]
        for path, answer in zip(
            paths, ask([dict(ask="typed", path=path, columns=[["x", "float64"]], skip_bad_rows=True) for path in paths]), strict=True
        ):
            self.assertEqual(answer["values"], [[1.5, 0, 0, 0]], path)
            self.assertEqual([record for record, _ in answer["records"]], [0, 4, 5, 6])
            self.assertEqual(answer["skipped"], len(huge))
            self.assertIn("is not a number", answer["first_skipped"])

    def test_keys_that_come_later(self):
        path = self.put("a.jsonl", b'{"text": "a"}\n{"text": "b", "more": 1}\n')
        everything, named = ask([dict(ask="text_table", path=path), dict(ask="text_table", path=path, columns=["text"])])
        self.refused(everything, path + ":2: record 2, column 'more'", "the first record has no such key")
        self.assertEqual(named["columns"], [["a", "b"]])

    def test_missing_columns(self):
        paths = [self.put("a.csv", b"text,label\na,0\n"), self.put("a.jsonl", b'{"text": "a", "label": 0}\n')]
        paths.append(os.path.join(self.directory, "a.parquet"))
        pyarrow.parquet.write_table(pa.table({"text": ["a"], "label": [0]}), paths[-1])
        for path, answer, twice in zip(
            paths,
            ask([dict(ask="text_table", path=p, columns=["labels"]) for p in paths]),
            ask([dict(ask="text_table", path=p, columns=["text", "text"]) for p in paths]),
            strict=True,
        ):
            self.assertEqual(str(answer), f"{path}: there is no column 'labels'; its columns are 'text', 'label'")
            self.assertEqual(str(twice), "column 'text' is asked for twice")

    def test_a_cache_that_cannot_be_written(self):
        path, cache = self.put("a.csv", b"text,label\na,0\n"), os.path.join(self.directory, "cache")
        question = dict(ask="text_table", path=path, cache_dir=cache)
        ask([question])
        (kept,) = os.listdir(cache)
        os.unlink(os.path.join(cache, kept))
        os.mkdir(os.path.join(cache, kept + ".unfinished"))
        (answer,) = ask([question])
        self.refused(answer, kept, "cannot be written", ": Is a directory")

    def test_a_cache_of_other_columns(self):
        path, cache = self.put("a.csv", b'"a\nb",a,b\n1,2,3\n'), os.path.join(self.directory, "cache")
        for columns, wanted in ((["a\nb"], [["1"]]), (["a", "b"], [["2"], ["3"]])):
            (answer,) = ask([dict(ask="text_table", path=path, columns=columns, cache_dir=cache)])
            self.assertEqual(answer, {"names": columns, "columns": wanted})

    def test_all_rows_bad(self):
        path = self.put("a.csv", b"text,label\na\nb\n")
        (answer,) = ask([dict(ask="text_table", path=path, skip_bad_rows=True)])
        self.refused(answer, path, "all 2 rows are bad; the first: ", ":2: record 1: 1 fields")

    def test_parquet(self):
        path = os.path.join(self.directory, "a.parquet")
        text = pa.array([b"a", None, b"caf\xe9", b"d"], pa.binary())
        pyarrow.parquet.write_table(
            pa.table(
                {
                    "text": text,
                    "null": ["a", None, "c", "d"],
                    "big": pa.array([1, 2, 3, 2**63], pa.uint64()),
                    "list": [[1], [2], [3], [4]],
                    "x": [1.5, 2.0, 3.0, 4.0],
                    "nan": [1.0, None, 2.0, 3.0],
                }
            ),
            path,
        )
        cases = [
            ("text", "string", "record 2, column 'text': no value (null)", ["a", "d"]),
            ("null", "string", "record 2, column 'null': no value (null)", ["a", "c", "d"]),
            ("nan", "float64", "record 2, column 'nan': no value (null)", [1.0, 2.0, 3.0]),
            ("big", "int64", "record 4, column 'big': 9223372036854775808 does not fit", [1, 2, 3]),
        ]
        for column, kind, message, kept in cases:
            question = dict(ask="typed", path=path, columns=[[column, kind]])
            error, skipped = ask([question, dict(question, skip_bad_rows=True)])
            self.refused(error, path, message)
            self.assertEqual(skipped["values"], [kept])
        wrong = ask(
            [
                dict(ask="typed", path=path, columns=[["list", "string"]]),
                dict(ask="typed", path=path, columns=[["x", "int64"]]),
                dict(ask="typed", path=path, columns=[["null", "int64"]]),
            ]
        )
        self.refused(wrong[0], path, "column 'list' holds list<", "expected texts or numbers")
        self.refused(wrong[1], path, "column 'x' holds double; expected whole numbers")
        self.refused(wrong[2], path, "column 'null' holds string; expected whole numbers")

    def test_duplicate_columns_of_parquet_and_arrow(self):
        table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
        paths = [os.path.join(self.directory, name) for name in ("a.parquet", "a.arrow")]
        pyarrow.parquet.write_table(table, paths[0])
        with pa.OSFile(paths[1], "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        for path, answer in zip(paths, ask([dict(ask="text_table", path=path) for path in paths]), strict=True):
            self.refused(answer, path, "column 'text' stands twice")

    def test_damaged_parquet_and_arrow(self):
        """Cut off anywhere, or with any byte changed: an error or the rows, never a crash."""
        draw = random.Random(11)
        table = pa.table({"text": [f"text {i}" * 3 for i in range(3000)], "label": list(range(3000))})
        parquet, arrow, stream = (os.path.join(self.directory, n) for n in ("a.parquet", "a.arrow", "s.arrow"))
        pyarrow.parquet.write_table(table, parquet, row_group_size=1000, write_page_checksum=True)
        with pa.OSFile(arrow, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
        with pa.OSFile(stream, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
        for path in (parquet, arrow, stream):
            with open(path, "rb") as file:
                whole = file.read()
            extension = path.rsplit(".", 1)[1]
            cut = [
                self.put(f"cut{n}.{extension}", whole[:n])
                for n in [0, 3, 4, 5, 8, 12, len(whole) - 1, len(whole) - 5, *draw.choices(range(len(whole)), k=12)]
            ]
            changed = []
            for n in range(60):
                place = draw.randrange(len(whole))
                changed.append(
                    self.put(f"changed{n}.{extension}", whole[:place] + bytes([whole[place] ^ draw.randrange(1, 256)]) + whole[place + 1 :])
                )
            columns = [["text", "string"], ["label", "int64"]]
            for name, answer in zip(cut, ask([dict(ask="typed", path=p, columns=columns) for p in cut]), strict=True):
                if path != stream:  # a stream may end between two batches
                    self.refused(answer, name)
            ask([dict(ask="typed", path=p, columns=columns) for p in changed])

    def test_random_bytes_never_crash(self):
        draw = random.Random(12)
        pieces = [b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"\n", b"\r", b"a", b"1", b"null", b"\xc3", b"\0", b"\\u", b"d800"]
        paths = []
        for i in range(300):
            body = b"".join(draw.choice(pieces) for _ in range(draw.randint(0, 60)))
            paths.append(self.put(f"{i}.jsonl", b'{"a": 1}\n' + body))
            paths.append(self.put(f"{i}.csv", b"a,b\n" + body))
        for path, answer in zip(paths, ask([dict(ask="text_table", path=path, skip_bad_rows=True) for path in paths]), strict=True):
            if path.endswith(".jsonl"):
                self.assertNotIsInstance(answer, Exception, path)
                with open(path, "rb") as file:
                    good = 0
                    for line in file.read().split(b"\n"):
                        try:
                            good += isinstance(json.loads(line.decode("utf-8", "strict"), parse_constant=float)["a"], int)
                        except (ValueError, KeyError, TypeError):
                            pass
                self.assertLessEqual(1, len(answer["columns"][0]))
                self.assertLessEqual(len(answer["columns"][0]), good)

    def test_random_objects_and_lists_never_crash(self):
        """Each good row is one that Python reads with these values."""
        draw = random.Random(15)
        pieces = [b'{"l":', b'["x"]', b'"o":', b'{"k":', b'"v"', b"}", b"]", b"[", b",", b":", b'"', b"null", b"1", b'"k":{"j":', b"\\n", b"{", b" "]
        first = b'{"l": ["x"], "o": {"k": "v"}}\n'
        whole = [b'{"l": ["x", "y"], "o": {"k": "w", "z": [{}]}}\n', b'{"o": {"z": {"k": 1}, "k": ""}, "l": []}\n']
        paths = []
        for i in range(300):
            lines = [first]
            for _ in range(8):
                line = bytearray(draw.choice(whole))
                for _ in range(draw.choice([0, 1, 2])):
                    at = draw.randrange(len(line) - 1)
                    line[at : at + draw.choice([0, 1, 4])] = draw.choice(pieces)
                lines.append(bytes(line))
            paths.append(self.put(f"{i}.jsonl", b"".join(lines)))
        columns = [["l", "list"], ["o.k", "string"]]
        for path, answer in zip(paths, ask([dict(ask="typed", path=path, columns=columns, skip_bad_rows=True) for path in paths]), strict=True):
            self.assertNotIsInstance(answer, Exception, path)
            with open(path, "rb") as file:
                rows = [line for line in file.read().split(b"\n")]
            for lists, text, (_, line) in zip(*answer["values"], answer["records"], strict=True):
                row = json.loads(rows[line - 1])
                self.assertEqual((lists, text), (row["l"], row["o"]["k"]), (path, line))

    def test_a_first_line_longer_than_a_block(self):
        """Wherever the file ends then."""
        path = self.put("a.jsonl", b'{"a": "' + b"x" * 40 + b'"}\n{"a": "y"}\n')
        for answer in ask([dict(ask="typed", path=path, columns=[["a", "string"]], block_bytes=size) for size in range(1, 70)]):
            self.assertNotIsInstance(answer, Exception)
            self.assertEqual(answer["values"], [["x" * 40, "y"]])

    def test_a_record_without_end(self):
        path = self.put("long.jsonl", b'{"a": 1}\n{"a": "' + b"x" * 5000)
        quote = self.put("long.csv", b'a,b\n1,2\n"' + b"x" * 5000)
        for name in (path, quote):
            (answer,) = ask([dict(ask="typed", path=name, columns=[["a", "string"]], block_bytes=16, max_record_bytes=1024)])
            self.refused(answer, name, "longer than")


if __name__ == "__main__":
    unittest.main()
