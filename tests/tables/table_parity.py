"""Tables against Python's csv and json modules, pyarrow and pandas."""

import csv
import gzip
import io
import json
import os
import random
import unittest

import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc  # noqa: F401  # pa.ipc
import pyarrow.parquet
from table_files import FilesTest, ask

NASTY = [
    "",
    " ",
    "a",
    "one two",
    "a,b",
    "a\tb",
    'say "hi"',
    '"',
    '""',
    "line\nbreak",
    "crlf\r\nbreak",
    "\n",
    ",",
    "é€𝄞",
    "\u2028",
    "'",
    "\\",
    "\\n",
    "NULL",
    "nan",
    "1.50",
    "true",
    "2024-01-01",
    "# no comment",
    " lead",
    "trail ",
    "x" * 5000,
    "\ufeff",
    "\x01",
    "\x7f",
]


def written(rows, delimiter, terminator, quoting):
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, lineterminator=terminator, quoting=quoting).writerows(rows)
    return out.getvalue().encode()


def json_line(draw, row):
    """One line, in any of the ways in which JSON can be written."""
    separators = draw.choice([(",", ":"), (", ", ": "), (" ,\t", " : ")])
    text = json.dumps(row, ensure_ascii=draw.random() < 0.5, separators=separators)
    return draw.choice(["", " "]) + text + draw.choice(["", " ", "\r"])


class TableParity(FilesTest):
    def compare(self, contents):
        """contents: (extension, bytes). All must be read, as Python's csv reads them."""
        questions, expected = [], []
        for i, (extension, content) in enumerate(contents):
            path = self.put(f"{i}.{extension}", content)
            text = io.StringIO(content.decode("utf-8-sig"), newline="")
            header, *rows = (row for row in csv.reader(text, delimiter="," if extension == "csv" else "\t") if row)
            questions.append(dict(ask="text_table", path=path))
            expected.append({"names": header, "columns": [list(column) for column in zip(*rows, strict=True)]})
        for (extension, content), answer, wanted in zip(contents, ask(questions), expected, strict=True):
            self.assertFalse(isinstance(answer, Exception), (extension, content[:300], answer))
            self.assertTrue(answer == wanted, (extension, content[:300]))

    def test_random_csv_as_pythons_csv_reads_it(self):
        draw = random.Random(3)
        contents = []
        for _ in range(150):
            columns, rows = draw.randint(2, 5), draw.choice([1, 2, 7, 300])
            header = [f"column {n}" for n in range(columns - 1)] + [draw.choice(["", "x,y", 'q"q', "a\nb", "last"])]
            table = [header] + [[draw.choice(NASTY) for _ in range(columns)] for _ in range(rows)]
            extension = draw.choice(["csv", "tsv", "txt"])
            contents.append(
                (
                    extension,
                    written(table, "," if extension == "csv" else "\t", draw.choice(["\n", "\r\n"]), draw.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])),
                )
            )
        self.compare(contents)

    def test_larger_than_a_block(self):
        draw = random.Random(4)
        rows = [["text", "label"]] + [[draw.choice(NASTY) * draw.randint(1, 4), str(i)] for i in range(12000)]
        content = written(rows, ",", "\n", csv.QUOTE_MINIMAL)
        self.assertGreater(len(content), 9 << 19)
        self.compare([("csv", content)])

    def test_csv_by_hand(self):
        self.compare(
            [
                ("csv", b"a,b\n1,2"),  # no line end at the end
                ("csv", b"a,b\r\n1,2\r\n\r\n3,4\r\n\r\n"),  # empty lines
                ("csv", b"\xef\xbb\xbfa,b\n1,2\n"),  # byte order mark
                ("csv", b'\xef\xbb\xbf"a",b\n1,2\n'),
                ("csv", b"\n\na,b\n\n1,2\n"),  # empty lines before the header
                ("csv", b"a\n1\n\n2\n"),  # one column: an empty line is no row
                ("csv", b'a\n""\nx\n'),  # but an empty quoted field is
                ("csv", b'a,b\n5" disk,2\n'),  # a quote inside an unquoted field
                ("csv", b'a,b\n"x""y",""\n'),
                ("csv", b'a,b\n"x\n\ny",1\n'),
                ("csv", b"a,b\n ,\n,\n"),
                ("tsv", b'a\tb\n"x\ty"\tz\n"x\ny"\tz\n'),  # a tab or a line end in quotes, not both
                ("csv", b'a,b\n1,""""'),
                ("csv", b'"a","b"\n"1","2"'),
                ("csv", b'a,b\r1,2\r3,"4"'),  # old Macintosh line ends
                ("tsv", b'a\tb\nit, "so"\tz\n'),
                ("txt", b"a\tb\n1\t2\n"),
            ]
        )

    def test_blocks_of_any_size_give_the_same(self):
        draw = random.Random(5)
        rows = [["t", "n"]] + [[draw.choice(NASTY), str(draw.randint(-99, 99))] for _ in range(60)]
        paths = [
            self.put("a.csv", written(rows, ",", "\r\n", csv.QUOTE_MINIMAL)),
            self.put("a.jsonl", "".join(json_line(draw, {"t": t, "n": int(n)}) + "\n" for t, n in rows[1:]).encode()),
        ]
        for path in paths:
            answers = ask(
                [
                    dict(ask="typed", path=path, columns=[["n", "int64"], ["t", "string"]], block_bytes=size)
                    for size in (1, 2, 3, 7, 64, 1000, 5001, 1 << 20)
                ]
            )
            for answer in answers:
                self.assertNotIsInstance(answer, Exception)
                answer = {key: answer[key] for key in ("values", "records", "hash")}
                self.assertEqual(answer["values"], [[int(n) for _, n in rows[1:]], [t for t, _ in rows[1:]]])
                self.assertEqual(answer, {key: answers[-1][key] for key in answer})
            self.assertGreater(answers[0]["blocks"], 2)
            self.assertEqual(answers[-1]["blocks"], 1)

    def test_random_json_lines_as_pythons_json_reads_them(self):
        draw = random.Random(6)
        questions, wanted = [], []
        for i in range(80):
            kinds = [draw.choice(["text", "whole", "number", "bool"]) for _ in range(draw.randint(1, 4))]
            rows = []
            for _ in range(draw.choice([1, 3, 100])):
                row = {}
                for n, kind in enumerate(kinds):
                    row[f"{kind} {n} é\n"] = {
                        "text": lambda: draw.choice(NASTY + ["\0", "\u2029", "a\x00b", "😀"]),
                        "whole": lambda: draw.choice([0, -1, 2**63 - 1, -(2**63), draw.randint(-999, 999)]),
                        "number": lambda: draw.choice([0.5, 1e300, -2.5e-8, draw.random(), 3]),
                        "bool": lambda: draw.random() < 0.5,
                    }[kind]()
                items = list(row.items()) + [("more", draw.choice([None, [1, {"text 0": "x"}], {"a": [[]]}, 7]))]
                draw.shuffle(items)
                rows.append(dict(items))
            path = self.put(
                f"{i}.{draw.choice(['jsonl', 'json', 'ndjson'])}",
                "".join(json_line(draw, row) + draw.choice(["\n", "\n\n"]) for row in rows).encode(),
            )
            names = [name for name in rows[0] if name != "more"]
            types = {"text": "string", "whole": "int64", "number": "float64", "bool": "string"}
            questions.append(dict(ask="typed", path=path, columns=[[name, types[name.split()[0]]] for name in names]))
            wanted.append([[row[name] if not isinstance(row[name], bool) else json.dumps(row[name]) for row in rows] for name in names])
        for question, answer, values in zip(questions, ask(questions), wanted, strict=True):
            self.assertNotIsInstance(answer, Exception, question)
            self.assertEqual(answer["values"], values)

    def test_numbers_of_json_as_texts_are_as_written(self):
        path = self.put("a.jsonl", b'{"n": 1.50, "b": true}\n{"n": 7, "b": false}\n{"n": -1E2, "b": true}\n')
        (answer,) = ask([dict(ask="text_table", path=path)])
        self.assertEqual(answer, {"names": ["n", "b"], "columns": [["1.50", "7", "-1E2"], ["true", "false", "true"]]})

    def test_numbers_of_csv_as_pyarrow_reads_them(self):
        draw = random.Random(7)
        rows = [
            [
                draw.choice([str(draw.randint(-(2**63), 2**63 - 1)), "0", "-0", "007"]),
                draw.choice([repr(draw.uniform(-1e9, 1e9)), "1e-300", "1E5", "3", "-0.0", "inf", "-inf", "5e-324"]),
            ]
            for _ in range(2000)
        ]
        path = self.put("n.csv", written([["i", "x"]] + rows, ",", "\n", csv.QUOTE_MINIMAL))
        peer = pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types={"i": pa.int64(), "x": pa.float64()}))
        (answer,) = ask([dict(ask="typed", path=path, columns=[["x", "float64"], ["i", "int64"]])])
        infinite = {float("inf"), float("-inf")}  # JSON has none: null
        self.assertEqual(answer["values"], [[None if x in infinite else x for x in peer["x"].to_pylist()], peer["i"].to_pylist()])

    def test_parquet_and_arrow_of_every_type(self):
        draw = random.Random(8)
        count = 20000
        texts = [draw.choice(NASTY) for _ in range(count)]
        whole = [draw.randint(0, 100) for _ in range(count)]
        table = pa.table(
            {
                "text": pa.array(texts),
                "large": pa.array(texts, pa.large_string()),
                "view": pa.array(texts, pa.string_view()),
                "bytes": pa.array([t.encode() for t in texts], pa.binary()),
                "category": pa.array(texts).dictionary_encode(),
                **{f"i{bits}": pa.array(whole, getattr(pa, f"int{bits}")()) for bits in (8, 16, 32, 64)},
                **{f"u{bits}": pa.array(whole, getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)},
                "f32": pa.array([w / 4 for w in whole], pa.float32()),
                "f64": pa.array([w / 10 for w in whole], pa.float64()),
                "bool": pa.array([w > 50 for w in whole]),
                "list": pa.array([[w] for w in whole]),
                "struct": pa.array([{"a": w, "b": "x"} for w in whole]),
                "date": pa.array(whole, pa.date32()),
            }
        )
        paths = []
        for i, codec in enumerate(["snappy", "gzip", "zstd", "brotli", "lz4", "none"]):
            paths.append(os.path.join(self.directory, f"{i}.parquet"))
            pyarrow.parquet.write_table(
                table,
                paths[-1],
                compression=codec,
                row_group_size=draw.choice([777, 8192, 10**6]),
                data_page_version=draw.choice(["1.0", "2.0"]),
                write_page_checksum=i % 2 == 0,
            )
        file, stream = (os.path.join(self.directory, name) for name in ("file.arrow", "stream.arrow"))
        with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3000)
        with pa.OSFile(stream, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3000)
        paths += [file, stream]
        columns = [
            ["f64", "float64"],
            ["text", "string"],
            ["large", "string"],
            ["view", "string"],
            ["bytes", "string"],
            ["category", "string"],
            ["i8", "int64"],
            ["u64", "int64"],
            ["i16", "string"],
            ["f32", "float64"],
            ["i32", "float64"],
            ["bool", "string"],
        ]
        wanted = [
            [w / 10 for w in whole],
            texts,
            texts,
            texts,
            texts,
            texts,
            whole,
            whole,
            [str(w) for w in whole],
            [w / 4 for w in whole],
            [float(w) for w in whole],
            ["true" if w > 50 else "false" for w in whole],
        ]
        for path, answer in zip(paths, ask([dict(ask="typed", path=path, columns=columns) for path in paths]), strict=True):
            self.assertNotIsInstance(answer, Exception, path)
            self.assertTrue(answer["values"] == wanted, path)
            self.assertEqual([r for r, _ in answer["records"]], list(range(count)))
        (everything,) = ask([dict(ask="text_table", path=paths[0])])
        self.assertEqual(everything["names"], [name for name in table.column_names if name not in ("list", "struct")])
        self.assertEqual(everything["columns"][-1][0], str(table["date"][0].as_py()))

    def test_tables_whose_quotes_are_text_as_pandas_reads_them(self):
        """quoting=csv.QUOTE_NONE: the TSV files of GLUE and MultiNLI."""
        draw = random.Random(13)
        pieces = ['"', '""', "a", " ", "'", ",", "\\", 'said "no"', "é", "x" * 300]
        for extension, delimiter in (("tsv", "\t"), ("csv", ",")):
            mine = [piece for piece in pieces if delimiter not in piece]
            rows = [["text", 'la"bel', "n"]] + [["".join(draw.choices(mine, k=draw.randint(1, 6))) for _ in range(2)] + [str(i)] for i in range(700)]
            path = self.put(f"quotes.{extension}", "".join(delimiter.join(row) + "\n" for row in rows).encode())
            frame = pandas.read_csv(path, sep=delimiter, quoting=csv.QUOTE_NONE, keep_default_na=False, dtype=str)
            whole, blocks, cached = ask(
                [
                    dict(ask="text_table", path=path, quoting="none"),
                    dict(ask="typed", path=path, quoting="none", block_bytes=7, columns=[[name, "string"] for name in rows[0]]),
                    dict(ask="text_table", path=path, quoting="none", cache_dir=self.directory + "/cache"),
                ]
            )
            for answer in (whole, blocks, cached):
                self.assertNotIsInstance(answer, Exception)
                self.assertEqual(answer.get("columns") or answer["values"], [frame[name].tolist() for name in frame])
            self.assertEqual(whole["names"], rows[0])

    def test_fields_of_objects_and_lists(self):
        """translation.en and lists of tokens, as `datasets` stores them, in Parquet, Arrow and JSON lines."""
        draw = random.Random(14)
        rows = [
            {
                "translation": {"en": draw.choice(NASTY), "it": draw.choice(NASTY), "more": {"n": i, "t": [str(i)]}},
                "tokens": [draw.choice(NASTY) for _ in range(draw.choice([0, 1, 5]))],
                "tags": [draw.randint(0, 8) for _ in range(draw.choice([0, 2]))],
                "a.b": f"dotted {i}",
                "id": i,
            }
            for i in range(9000)
        ]
        table = pa.Table.from_pylist(rows)
        table = table.set_column(2, "tags", table["tags"].cast(pa.large_list(pa.int8())))
        paths = [os.path.join(self.directory, name) for name in ("t.parquet", "t.arrow")]
        pyarrow.parquet.write_table(table, paths[0], row_group_size=1700)
        with pa.OSFile(paths[1], "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
        paths.append(self.put("t.jsonl", "".join(json_line(draw, row) + "\n" for row in rows).encode()))
        columns = [
            ["translation.it", "string"],
            ["tokens", "list"],
            ["translation.more.n", "int64"],
            ["tags", "list"],
            ["a.b", "string"],
            ["translation.more.t", "list"],
            ["translation.en", "string"],
        ]
        wanted = [
            [row["translation"]["it"] for row in rows],
            [row["tokens"] for row in rows],
            list(range(len(rows))),
            [[str(tag) for tag in row["tags"]] for row in rows],
            [row["a.b"] for row in rows],
            [[str(i)] for i in range(len(rows))],
            [row["translation"]["en"] for row in rows],
        ]
        hashes = set()
        for path, answer in zip(paths, ask([dict(ask="typed", path=path, columns=columns, block_bytes=50000) for path in paths]), strict=True):
            self.assertNotIsInstance(answer, Exception, path)
            self.assertGreater(answer["blocks"], 1)
            for column, values, expected in zip(columns, answer["values"], wanted, strict=True):
                self.assertTrue(values == expected, (path, column))
            hashes.add(answer["hash"])
        self.assertEqual(len(hashes), 1)
        names = ["translation.en", "translation.it", "translation.more.n", "translation.more.t", "tokens", "tags", "a.b", "id"]
        for path, answer in zip(paths, ask([dict(ask="columns", path=path) for path in paths]), strict=True):
            self.assertEqual(answer, names, path)
        for path, answer in zip(paths, ask([dict(ask="text_table", path=path) for path in paths]), strict=True):
            self.assertEqual(answer["names"], ["a.b", "id"], path)  # as before: objects and lists only where they are named

    def test_class_names_of_datasets(self):
        """ClassLabel in the schema's metadata: texts are the names, numbers the numbers."""
        label = {"names": ["ham", "spam", "1"], "_type": "ClassLabel"}
        features = {
            "text": {"dtype": "string", "_type": "Value"},
            "label": label,
            "tags": {"feature": {"names": ["O", "B"], "_type": "ClassLabel"}, "_type": "List"},
            "old": [{"names": ["x", "y"], "_type": "ClassLabel"}],
            "in": {"side": label},
        }
        table = pa.table(
            {
                "text": ["a", "b", "c", "d"],
                "label": [1, 0, 2, -1],
                "tags": [[0, 1], [], [1], [0]],
                "old": [[1], [0], [], [5]],
                "in": [{"side": i} for i in (0, 1, 2, 0)],
            }
        )
        table = table.replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": features}}).encode()})
        paths = [os.path.join(self.directory, name) for name in ("c.parquet", "c.arrow")]
        pyarrow.parquet.write_table(table, paths[0])
        with pa.OSFile(paths[1], "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        for path in paths:
            texts, numbers, lists, kept = ask(
                [
                    dict(ask="text_table", path=path, places=True, columns=["label", "in.side", "text"]),
                    dict(ask="typed", path=path, columns=[["label", "int64"]]),
                    dict(ask="typed", path=path, columns=[["tags", "list"], ["old", "list"]]),
                    dict(ask="text_table", path=path, places=True, columns=["label"], cache_dir=self.directory + "/cache"),
                ]
            )
            self.assertEqual(texts["columns"], [["spam", "ham", "1", "-1"], ["ham", "spam", "1", "ham"], ["a", "b", "c", "d"]])
            self.assertEqual(texts["class_names"], [label["names"], label["names"], []])
            self.assertEqual(kept["class_names"], [label["names"]])
            self.assertEqual(numbers["values"], [[1, 0, 2, -1]])
            self.assertEqual(lists["values"], [[["O", "B"], [], ["B"], ["O"]], [["y"], ["x"], [], ["5"]]])
        for metadata in (b"", b"{", b"[]", b'{"info": 1}', b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": [1]}}}}'):
            pyarrow.parquet.write_table(table.replace_schema_metadata({b"huggingface": metadata}), paths[0])
            (answer,) = ask([dict(ask="text_table", path=paths[0], columns=["label"])])
            self.assertEqual(answer["columns"], [["1", "0", "2", "-1"]], metadata)

    def test_fingerprints_tell_values_and_nothing_else(self):
        rows = [["text", "n"]] + [[draw, str(i)] for i, draw in enumerate(NASTY * 40) if "\0" not in draw]
        table = pa.table({"text": [text for text, _ in rows[1:]], "n": [int(n) for _, n in rows[1:]]})
        paths = [
            self.put("f.csv", written(rows, ",", "\n", csv.QUOTE_MINIMAL)),
            self.put("f.tsv", written(rows, "\t", "\r\n", csv.QUOTE_ALL)),
            self.put("f.jsonl", "".join(json.dumps({"n": int(n), "text": text}) + "\n" for text, n in rows[1:]).encode()),
            os.path.join(self.directory, "f.parquet"),
        ]
        pyarrow.parquet.write_table(table, paths[3], row_group_size=77)
        bad = self.put("g.csv", written(rows + [["one", "field", "more"]], ",", "\n", csv.QUOTE_MINIMAL))
        question = dict(ask="text_table", columns=["text", "n"], places=True)
        cache = os.path.join(self.directory, "cache")
        answers = ask(
            [dict(question, path=path) for path in paths]
            + [dict(question, path=bad, skip_bad_rows=True)]
            + 2 * [dict(question, path=paths[1], cache_dir=cache)]
        )
        self.assertEqual(answers[0]["fingerprint"][:2], [len(rows) - 1, ["text", "n"]])
        for answer in answers[1:]:
            self.assertEqual(answer["fingerprint"], answers[0]["fingerprint"])
        other = self.put("o.csv", written(rows[:-1] + [[rows[-1][0] + "x", rows[-1][1]]], ",", "\n", csv.QUOTE_MINIMAL))
        (answer,) = ask([dict(question, path=other)])
        self.assertNotEqual(answer["fingerprint"], answers[0]["fingerprint"])

    def test_pandas_files(self):
        draw = random.Random(9)
        frame = pandas.DataFrame(
            {
                "text": [draw.choice(NASTY) for _ in range(500)],
                "label": [draw.randint(0, 3) for _ in range(500)],
                "score": [draw.random() for _ in range(500)],
            }
        )
        writers = {
            "f.csv": lambda p: frame.to_csv(p, index=False),
            "f.tsv": lambda p: frame.to_csv(p, index=False, sep="\t"),
            "f.csv.gz": lambda p: frame.to_csv(p, index=False),
            "f.parquet": frame.to_parquet,
            "f.jsonl": lambda p: frame.to_json(p, orient="records", lines=True, double_precision=15),
        }
        for name, write in writers.items():
            path = os.path.join(self.directory, name)
            write(path)
            (answer,) = ask([dict(ask="typed", path=path, columns=[["text", "string"], ["label", "int64"], ["score", "float64"]])])
            self.assertNotIsInstance(answer, Exception, name)
            self.assertEqual(answer["values"][:2], [frame["text"].tolist(), frame["label"].tolist()], name)
            for got, score in zip(answer["values"][2], frame["score"], strict=True):
                self.assertAlmostEqual(got, score, places=14)

    def test_compressed_texts(self):
        content = "".join(json.dumps({"text": f"row {i}", "label": i % 3}) + "\n" for i in range(20000)).encode()
        for end, codec in (("gz", "gzip"), ("bz2", "bz2"), ("zst", "zstd"), ("lz4", "lz4")):
            name = "a.jsonl." + end
            path = os.path.join(self.directory, name)
            with pa.CompressedOutputStream(path, codec) as out:
                out.write(content)
            (answer,) = ask([dict(ask="typed", path=path, columns=[["label", "int64"]])])
            self.assertNotIsInstance(answer, Exception, name)
            self.assertEqual(answer["values"], [[i % 3 for i in range(20000)]], name)
            with open(path, "rb") as file:
                whole = file.read()
            for cut in (whole[:-200], whole[:-1], whole[:-9] if end == "gz" else whole[:5]):
                cut = self.put("cut." + name, cut)
                (answer,) = ask([dict(ask="typed", path=cut, columns=[["label", "int64"]])])
                self.assertIsInstance(answer, Exception, name)
                self.assertIn("cut." + name + " cannot be unpacked; is it whole?", str(answer))
            twice = self.put("twice." + name, whole + whole)  # one stream behind the other
            (answer,) = ask([dict(ask="typed", path=twice, columns=[["label", "int64"]], block_bytes=1000)])
            self.assertNotIsInstance(answer, Exception, name)
            self.assertEqual(answer["values"], [[i % 3 for i in range(20000)] * 2], name)

    def test_zeros_behind_gzip_as_python_reads_them(self):
        member = [gzip.compress(f"a,b\n{i},{i}\n".encode()) if i == 0 else gzip.compress(f"{i},{i}\n".encode()) for i in range(3)]
        for zeros in (1, 512, 65535, 65536, 200000):
            contents = [member[0] + member[1] + b"\0" * zeros, member[0] + b"\0" * zeros + member[1] + b"\0" + member[2]]
            for i, content in enumerate(contents):
                path = self.put(f"{i}.csv.gz", content)
                rows = list(csv.reader(io.StringIO(gzip.decompress(content).decode())))[1:]
                (answer,) = ask([dict(ask="text_table", path=path)])
                self.assertEqual(answer["columns"], [[a for a, _ in rows], [b for _, b in rows]], (zeros, i))
        for garbage in (b"x", b"\0\0x", b"\x1f", b"\x1f\x8b"):
            path = self.put("garbage.csv.gz", member[0] + garbage)
            (answer,) = ask([dict(ask="text_table", path=path)])
            self.assertIn("cannot be unpacked", str(answer))
            with self.assertRaises((OSError, EOFError)):
                with gzip.open(path) as file:
                    file.read()

    def test_the_mapped_table_is_the_one_in_memory(self):
        draw = random.Random(10)
        rows = [{"text": draw.choice(NASTY), "n": i} for i in range(3000)]
        content = "".join(json.dumps(row) + "\n" for row in rows) + '{"text": null, "n": 1}\n'
        paths = [self.put("m.jsonl", content.encode())]
        paths.append(os.path.join(self.directory, "m.parquet"))
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows + [{"text": None, "n": 1}]), paths[1])
        for path in paths:
            question = dict(ask="text_table", path=path, skip_bad_rows=True, places=True)
            cache = os.path.join(self.directory, "cache")
            memory, made, found = ask([question, dict(question, cache_dir=cache), dict(question, cache_dir=cache)])
            self.assertNotIsInstance(memory, Exception)
            self.assertEqual(memory["columns"], [[row["text"] for row in rows], [str(row["n"]) for row in rows]])
            self.assertEqual(memory["skipped"], 1)
            self.assertEqual(made, memory)
            self.assertEqual(found, memory)
        self.assertEqual(len(os.listdir(cache)), 2)
        os.utime(paths[0], ns=(1, 1))  # a changed file is read again
        ask([dict(ask="text_table", path=paths[0], cache_dir=cache, skip_bad_rows=True)])
        self.assertEqual(len(os.listdir(cache)), 3)


if __name__ == "__main__":
    unittest.main()
