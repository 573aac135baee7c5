"""zoo/datasets/sentiment.py as its users meet it: files in, files and a table out, errors in one line."""

import csv
import os
import random
import subprocess
import tempfile
import unittest

from programs import command

FILES = {"movie": "movieReviewSnippets", "amazon": "amazonReviewSnippets", "tweets": "tweets", "nyt": "nytEditorialSnippets"}


def ratings(count, seed, encoding="utf-8"):
    draw = random.Random(seed)
    lines = []
    for i in range(count):
        rating = draw.choice([-3.5, -0.5, -0.49, 0.0, 0.2, 0.5, 2.25])
        lines.append(f'{i // 4}_{i % 4}\t{rating}\tcafé {seed}-{i}, "quoted", {draw.random()}\r\n')
    return "".join(lines).encode(encoding)


class Sentiment(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.input = os.path.join(self.directory, "vader")
        self.output = os.path.join(self.directory, "deep", "sentiment")
        os.mkdir(self.input)

    def put(self, part, content):
        with open(os.path.join(self.input, FILES[part] + "_GroundTruth.txt"), "wb") as file:
            file.write(content)

    def make(self, *options):
        return subprocess.run(
            command("sentiment", "--input", self.input, "--output-dir", self.output, *options), capture_output=True, text=True, timeout=60
        )

    def read(self):
        rows = {}
        for split in ("train", "validation", "test"):
            with open(os.path.join(self.output, split + ".csv"), encoding="utf-8", newline="") as file:
                rows[split] = list(csv.DictReader(file))
        return rows

    def test_makes_the_splits(self):
        self.put("movie", ratings(2000, 1))
        self.put("amazon", ratings(1000, 2, "cp1252"))
        run = self.make()
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = self.read()
        documents = {split: {row["document"] for row in rows[split]} for split in rows}
        self.assertFalse(documents["train"] & documents["validation"])
        self.assertFalse((documents["train"] | documents["validation"]) & documents["test"])

        wanted = {}
        for part, content in (("movie", ratings(2000, 1)), ("amazon", ratings(1000, 2))):
            for line in content.decode().splitlines():
                identifier, rating, text = line.split("\t")
                if abs(float(rating)) >= 0.5:
                    label = "positive" if float(rating) > 0 else "negative"
                    wanted[text] = (label, part, f"{part}-{identifier.split('_')[0]}")
        got = {row["text"]: (row["label"], row["source"], row["document"]) for split in rows.values() for row in split}
        self.assertEqual(got, wanted)
        self.assertEqual(sum(map(len, rows.values())), len(wanted))
        for split, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
            self.assertAlmostEqual(len(rows[split]) / len(wanted), share, delta=0.05)

        table = {tuple(line.split()[:2]): line.split()[2:] for line in run.stdout.splitlines()}
        for split in rows:
            for part in ("movie", "amazon", "all"):
                labels = [row["label"] for row in rows[split] if part in ("all", row["source"])]
                counts = [labels.count("positive"), labels.count("negative"), len(labels)]
                self.assertEqual(table[part, split], [str(count) for count in counts])

    def test_parts_and_rating_are_chosen(self):
        self.put("movie", ratings(1000, 1))
        self.put("tweets", ratings(1000, 2))
        run = self.make("--parts", "tweets", "--min-rating", "2")
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = [row for split in self.read().values() for row in split]
        self.assertEqual({row["source"] for row in rows}, {"tweets"})
        chosen = [line for line in ratings(1000, 2).decode().splitlines() if abs(float(line.split("\t")[1])) >= 2]
        self.assertEqual(len(rows), len(chosen))

    def test_two_runs_write_the_same(self):
        self.put("nyt", ratings(500, 5))
        contents = []
        for _ in range(2):
            self.assertEqual(self.make().returncode, 0)
            self.assertEqual(sorted(os.listdir(self.output)), ["test.csv", "train.csv", "validation.csv"])
            contents.append(self.read())
        self.assertEqual(contents[0], contents[1])

    def test_a_byte_order_mark_changes_nothing(self):
        contents = []
        for mark in (b"", b"\xef\xbb\xbf"):
            self.put("movie", mark + ratings(200, 1))
            self.assertEqual(self.make().returncode, 0)
            contents.append(self.read())
        self.assertEqual(*contents)

    def refused(self, message, *options):
        run = self.make(*options)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(message, run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        self.assertFalse(os.path.exists(self.output))

    def test_errors(self):
        self.refused("vader has no *_GroundTruth.txt")
        self.put("movie", b"1\t2.0\tgood\n2\tbad\n")
        self.refused("movieReviewSnippets_GroundTruth.txt:2: expected id TAB mean rating TAB text")
        self.put("movie", b"")
        self.refused("movieReviewSnippets_GroundTruth.txt is empty")
        self.put("movie", b"1\t2.0\tgood\n")
        self.refused("too few sentences")
        self.refused("tweets_GroundTruth.txt: No such file", "--parts", "movie,tweets")
        self.refused("min-rating is 0", "--min-rating", "0")
        self.refused("unknown part 'books'; expected movie, amazon, tweets or nyt", "--parts", "movie,books")


if __name__ == "__main__":
    unittest.main()
