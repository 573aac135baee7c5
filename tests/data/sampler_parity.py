"""Lists of indices against torch's DistributedSampler, transformers' length grouping and accelerate's batch shards."""

import random
import unittest

import recorded
import sampler_peer
from probe import ask


class SamplerParity(unittest.TestCase):
    def compare(self, questions):
        ours = [{"error": str(answer)} if isinstance(answer, Exception) else answer for answer in ask(questions)]
        expected = sampler_peer.recorded_hashes(self._testMethodName.removeprefix("test_"), questions)
        for block, (mine, theirs) in enumerate(zip(recorded.block_hashes(ours), expected, strict=True)):
            if mine != theirs:
                self.show_difference(questions[recorded.in_block(block)], ours[recorded.in_block(block)])

    def show_difference(self, questions, ours):
        for question, answer in zip(questions, ours):
            shown = {key: value for key, value in question.items() if key not in ("lengths", "indices")}
            self.assertEqual(answer, sampler_peer.answer(**question), shown)
        self.fail("the peer now gives what we give; what is recorded differs")

    def test_distributed_sampler(self):
        questions = []
        for size in (1, 2, 3, 5, 7, 8, 64, 101, 1000, 30011):
            for num_replicas in (1, 2, 3, 4, 8, 13):
                for shuffle in (True, False):
                    for drop_last in (True, False):
                        for seed, epoch in ((0, 0), (0, 1), (42, 3), (2**40 + 5, 7)):
                            for rank in {0, num_replicas // 2, num_replicas - 1}:
                                questions.append(
                                    dict(
                                        ask="distributed_sampler",
                                        size=size,
                                        num_replicas=num_replicas,
                                        rank=rank,
                                        shuffle=shuffle,
                                        seed=seed,
                                        drop_last=drop_last,
                                        epoch=epoch,
                                    )
                                )
        self.assertGreater(len(questions), 2000)
        self.compare(questions)

    def test_length_grouped_indices(self):
        draw = random.Random(1)
        questions = []
        for size in (1, 2, 3, 15, 16, 17, 63, 64, 65, 799, 800, 1601, 20000):
            for batch_size in (1, 3, 4, 8, 16, 64, 1000):
                for seed, longest in ((0, 3), (7, 60), (42, 100000)):
                    lengths = [draw.randint(1, longest) for _ in range(size)]
                    questions.append(dict(ask="length_grouped_indices", lengths=lengths, batch_size=batch_size, seed=seed))
        self.compare(questions)

    def test_batch_shard(self):
        questions = []
        for num_replicas in (1, 2, 3, 4, 7):
            for batch_size in (1, 2, 3, 8):
                for size in list(range(0, 40)) + [100, 101, 167]:
                    for drop_last in (True, False):
                        indices = [10 * i + 3 for i in range(size)]
                        for rank in range(num_replicas):
                            questions.append(
                                dict(
                                    ask="batch_shard",
                                    indices=indices,
                                    batch_size=batch_size,
                                    num_replicas=num_replicas,
                                    rank=rank,
                                    drop_last=drop_last,
                                )
                            )
        self.compare(questions)

    def test_errors_are_pythons(self):
        questions = [
            dict(ask="distributed_sampler", size=8, num_replicas=num_replicas, rank=rank, shuffle=True, seed=0, drop_last=False, epoch=0)
            for rank, num_replicas in ((2, 2), (-1, 2), (5, 3))
        ]
        self.assertTrue(all(isinstance(answer, Exception) for answer in ask(questions)))
        self.compare(questions)


if __name__ == "__main__":
    unittest.main()
