"""What zoo/datasets/sentiment.py is made of: its parser, its splits and its CSV."""

import unittest

import programs  # noqa: F401

import sentiment
from common.program import Error
from common.tables import SPLITS, csv_row, split_of


class ParseRatings(unittest.TestCase):
    def test_reads_id_rating_and_text(self):
        ratings = sentiment.parse_ratings(b'1_1\t-0.9\t  bad, "really"\tbad \r\n\r\n2\t2.5\tcaf\xe9\n3\t1e-1\tend', "r.txt")
        self.assertEqual(ratings, [(b"1_1", -0.9, b'bad, "really"\tbad'), (b"2", 2.5, "café".encode()), (b"3", 0.1, b"end")])

    def test_names_file_and_line(self):
        for content, message in (
            (b"1\t1\tgood\n2\tfine\n", "ratings.txt:2: expected id TAB mean rating TAB text"),
            (b"1\t1.0x\tgood\n", "ratings.txt:1: the rating '1.0x' is not a number"),
            (b"1\tnan\tgood\n", "ratings.txt:1: the rating 'nan' is not a number"),
            (b"1\t1_0\tgood\n", "ratings.txt:1: the rating '1_0' is not a number"),
            (b"1\t1e999\tgood\n", "ratings.txt:1: the rating '1e999' is not a number"),
            (b"\n \t1\tgood\n", "ratings.txt:2: expected id TAB mean rating TAB text"),
            (b"1\t1\tgood \x81 \xe9\n", "ratings.txt:1: byte 0x81 is neither UTF-8 nor Windows-1252"),
            (b"\n\n", "ratings.txt is empty: expected lines of id TAB mean rating TAB text"),
        ):
            with self.subTest(content):
                with self.assertRaises(Error) as caught:
                    sentiment.parse_ratings(content, "ratings.txt")
                self.assertEqual(str(caught.exception), message)


class Split(unittest.TestCase):
    def test_is_fixed_for_ever(self):
        """The demo's figures depend on these: a change of the hash or of the names would change the test set."""
        found = [split_of(f"movie-{i}".encode()) for i in range(10000)]
        self.assertEqual([found.count(split) for split in SPLITS], [8020, 993, 987])

    def test_a_document_is_the_id_up_to_the_underscore(self):
        self.assertEqual(sentiment.document_of("amazon", b"12_3"), b"amazon-12")
        self.assertEqual(sentiment.document_of("movie", b"12"), b"movie-12")


class Corpus(unittest.TestCase):
    def test_leaves_out_neutral_and_duplicate_sentences(self):
        corpus = sentiment.Corpus(0.5)
        corpus.add("movie", [(b"1", 0.5, b"Good film"), (b"2", -0.5, b"bad film"), (b"3", 0.49, b"a film"), (b"4", -0.4, b"film")])
        corpus.add("nyt", [(b"1_1", -3, b"good \t FILM"), (b"1_2", 3, b"good film!")])
        self.assertEqual((corpus.neutral, corpus.duplicates), (2, 1))
        labels = {(row[0], row[1]) for rows in corpus.rows.values() for row in rows}
        self.assertEqual(labels, {(b"Good film", b"positive"), (b"bad film", b"negative"), (b"good film!", b"positive")})

    def test_a_document_is_in_one_split(self):
        corpus = sentiment.Corpus(0.5)
        ids = [f"{document}_{sentence}".encode() for document in range(200) for sentence in range(5)]
        corpus.add("amazon", [(identifier, 1, b"sentence " + identifier) for identifier in ids])
        documents = [{row[3] for row in corpus.rows[split]} for split in SPLITS]
        self.assertTrue(all(documents))
        self.assertEqual(sum(map(len, documents)), 200)
        self.assertEqual(len(set.union(*documents)), 200)


class Csv(unittest.TestCase):
    def test_quotes_what_needs_it(self):
        self.assertEqual(csv_row([b"plain", b"", b"a,b", b'say "hi"', b"two\nlines", b" tab\t"]), b'plain,,"a,b","say ""hi""","two\nlines", tab\t\n')
        self.assertEqual(csv_row([b""]), b'""\n')

    def test_the_columns_of_the_demo(self):
        rows = [sentiment.COLUMNS, (b"a, b", b"positive", b"movie", b"movie-1"), (b"c", b"negative", b"nyt", b"nyt-2")]
        self.assertEqual(b"".join(map(csv_row, rows)), b'text,label,source,document\n"a, b",positive,movie,movie-1\nc,negative,nyt,nyt-2\n')


if __name__ == "__main__":
    unittest.main()
