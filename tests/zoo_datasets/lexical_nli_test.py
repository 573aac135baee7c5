"""zoo/datasets/lexical_nli.py on WordNet itself, beside a reading of its files that is written here."""

import csv
import os
import subprocess
import tempfile
import unittest

from programs import command

WORDNET = "/usr/share/wordnet"  # Debian's wordnet-base
SPLITS = ("train", "validation", "test")


def synsets(part):
    found = {}
    with open(os.path.join(WORDNET, "data." + part), encoding="ascii") as file:
        for line in file:
            if line.startswith(" "):
                continue
            fields = line.split()
            count = int(fields[3], 16)
            words = [word.replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
            rest = fields[4 + 2 * count :]
            pointers = [rest[1 + 4 * i : 5 + 4 * i] for i in range(int(rest[0]))]
            found[int(fields[0])] = (words, [p for p in pointers if p[2] == part[0]])
    return found


def relations(part):
    """All that a pair of words may be."""
    known = {}
    by_offset = synsets(part)
    parents = {}
    for offset, (words, pointers) in by_offset.items():
        for symbol, target, _, places in pointers:
            other = by_offset[int(target)][0]
            if symbol == "@":
                known.setdefault((words[0], other[0]), set()).add("entailment")
                parents.setdefault(words[0], set()).add(int(target))
            elif symbol == "!":
                pair = (words[int(places[:2], 16) - 1], other[int(places[2:], 16) - 1])
                known.setdefault(pair, set()).add("contradiction")
    return known, parents


class LexicalNli(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.output = os.path.join(self.directory, "deep", "nli")

    def make(self, *options):
        return subprocess.run(command("lexical_nli", "--output-dir", self.output, *options), capture_output=True, text=True, timeout=120)

    def read(self):
        rows = {}
        for split in SPLITS:
            with open(os.path.join(self.output, split + ".csv"), encoding="utf-8", newline="") as file:
                rows[split] = list(csv.DictReader(file))
        return rows

    def test_every_pair_is_in_wordnet(self):
        run = self.make()
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("generated from a lexicon", run.stdout)
        rows = self.read()
        synset = {split: {row["synset"] for row in rows[split]} for split in SPLITS}
        self.assertFalse(synset["train"] & (synset["validation"] | synset["test"]))
        self.assertFalse(synset["validation"] & synset["test"])
        every = [row for split in SPLITS for row in rows[split]]
        self.assertGreater(len(every), 5000)
        self.assertEqual(len(every), len({(row["premise"], row["hypothesis"], row["synset"][:4]) for row in every}))
        for part in ("noun", "verb"):
            known, parents = relations(part)
            of_part = [row for row in every if row["synset"].startswith(part)]
            labels = [row["label"] for row in of_part]
            self.assertEqual(labels.count("entailment"), labels.count("contradiction"))
            self.assertEqual(labels.count("entailment"), labels.count("neutral"))
            for row in of_part:
                pair = (row["premise"], row["hypothesis"])
                if row["label"] == "neutral":
                    self.assertNotIn(pair, known)
                    self.assertTrue(parents[pair[0]] & parents[pair[1]], pair)
                else:
                    self.assertEqual(known[pair], {row["label"]}, pair)

    def test_two_runs_write_the_same_and_the_number_is_chosen(self):
        self.assertEqual(self.make("--pairs-per-label", "50").returncode, 0)
        first = self.read()
        self.assertEqual(sum(map(len, first.values())), 50 * 3 * 2)
        self.assertEqual(self.make("--pairs-per-label", "50").returncode, 0)
        self.assertEqual(first, self.read())

    def test_errors(self):
        def refused(message, content=None):
            if content is not None:
                for part in ("noun", "verb"):
                    with open(os.path.join(self.directory, "data." + part), "w", encoding="ascii") as file:
                        file.write(content)
            run = self.make("--input", self.directory)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(message, run.stderr)
            self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
            self.assertFalse(os.path.exists(self.output))

        refused("data.noun is not there; WordNet's files are in Debian's package wordnet-base")
        refused("data.noun has no synsets", "  1 license\n")
        refused("data.noun:2: no line of a WordNet data file: 'x' is not a number", "  1 license\nx 03 n 01 a 0 000 |\n")
        refused("data.noun:1: no line of a WordNet data file: the line ends too early", "00000001 03 n 02 a 0\n")
        refused("synset 00000001 points to 00000002, which is not there", "00000001 03 n 01 a 0 001 @ 00000002 n 0000 |\n")
        refused("too few pairs: nothing is left for train.csv", "00000001 03 n 01 a 0 000 |\n")


if __name__ == "__main__":
    unittest.main()
