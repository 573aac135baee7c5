"""Splits against torch's random_split and WeightedRandomSampler and against train_test_split and shuffle of datasets."""

import random
import unittest

import recorded
import split_peer
from probe import ask

SEEDS = (0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**32 + 42, 2**53 + 1, 2**63, 2**64 - 1)


class SplitParity(unittest.TestCase):
    def compare(self, questions):
        ours = ["error" if isinstance(answer, Exception) else answer for answer in ask(questions)]
        expected = split_peer.recorded_hashes(self._testMethodName.removeprefix("test_"), questions)
        for block, (mine, theirs) in enumerate(zip(recorded.block_hashes(ours), expected, strict=True)):
            if mine != theirs:
                self.show_difference(questions[recorded.in_block(block)], ours[recorded.in_block(block)])
        return ours

    def show_difference(self, questions, ours):
        for question, answer in zip(questions, ours):
            self.assertEqual(answer, split_peer.answer(**question), {name: str(value)[:200] for name, value in question.items()})
        # Drawing without replacement uses MKL's exponential numbers where LibTorch has MKL, so a record can be of another build.
        if questions[0]["ask"] != "weighted":
            self.fail("the peer now gives what we give; what is recorded differs")

    def sizes_and_seeds(self):
        """1,000 different ones."""
        draw = random.Random(21)
        found = {(size, seed) for size in (0, 1, 2, 3, 100, 1025) for seed in SEEDS}
        while len(found) < 1000:
            found.add((draw.choice([draw.randrange(1, 20), draw.randrange(1, 3000)]), draw.choice([draw.randrange(1000), draw.randrange(2**64)])))
        return sorted(found)

    def test_train_test_split(self):
        draw = random.Random(3)
        pairs = self.sizes_and_seeds()
        self.assertEqual(len(pairs), 1000)
        self.assertGreater(sum(seed >= 2**32 for _, seed in pairs), 300)
        questions = [
            dict(ask="train_test_split", size=size, seed=seed, test_size=draw.choice([0.1, 0.07, 0.5, draw.random(), draw.randrange(1, size + 2)]))
            for size, seed in pairs
        ]
        refused = self.compare(questions).count("error")
        self.assertTrue(10 < refused < 500, refused)

    def test_shuffle(self):
        self.compare([dict(ask="shuffle", size=size, seed=seed) for size, seed in self.sizes_and_seeds()])

    def test_random_split(self):
        draw = random.Random(4)
        questions = []
        for size, seed in self.sizes_and_seeds():
            first = draw.randrange(size + 1)
            second = draw.randrange(size - first + 1)
            lengths = draw.choice(
                [
                    [first, size - first],
                    [first, second, size - first - second],
                    [0.5, 0.5],
                    [0.9, 0.1],
                    [0.25, 0.25, 0.5],
                    [1.0],
                    [0.125] * 8,
                    [0.0, 0.5, 0.5],
                    [first, size - first + 1],
                    [0.5, 0.25],
                    [-0.5, 1.5],
                    [0.5, 0.625],
                ]
            )
            if sum(lengths) != 1 or isinstance(lengths[0], float):  # torch takes whole numbers that sum to 1 for shares
                questions.append(dict(ask="random_split", size=size, seed=seed, lengths=lengths))
        self.assertGreater(len(questions), 950)
        self.compare(questions)

    def test_weighted(self):
        draw = random.Random(5)
        questions = []
        for _ in range(1000):
            count = draw.choice([1, 2, 10, 100, 1000])
            weights = [draw.choice([0.0, draw.random(), draw.random() ** 9, 100 * draw.random()]) for _ in range(count)]
            positive = sum(weight > 0 for weight in weights)
            replacement = draw.random() < 0.5
            if positive:
                questions.append(
                    dict(
                        ask="weighted",
                        weights=weights,
                        num_samples=draw.randrange(1, (3 * count if replacement else positive) + 1),
                        replacement=replacement,
                        seed=draw.choice([*SEEDS, draw.randrange(2**64)]),
                    )
                )
        questions += [
            dict(ask="weighted", weights=weights, num_samples=2, replacement=replacement, seed=0)
            for replacement in (False, True)
            for weights in ([0.0, 0.0], [1.0, -1.0])
        ] + [dict(ask="weighted", weights=[1.0], num_samples=2, replacement=False, seed=0)]
        self.assertGreater(len(questions), 900)
        self.compare(questions)

    def test_the_rows_of_multinli(self):
        """392,702 rows, seed 42 and a tenth, as in the tutorial; .07 of 100 are 8 for both."""
        ours = self.compare(
            [dict(ask="train_test_split", size=392702, seed=42, test_size=0.1), dict(ask="train_test_split", size=100, seed=42, test_size=0.07)]
        )
        self.assertEqual([[len(part) for part in parts] for parts in ours], [[353431, 39271], [92, 8]])


if __name__ == "__main__":
    unittest.main()
