"""Lists of indices against torch's DistributedSampler, transformers' length grouping and accelerate's batch shards."""

import random
import unittest

import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from probe import ask


class SamplerParity(unittest.TestCase):
    def compare(self, questions, expected):
        for question, answer, wanted in zip(questions, ask(questions), expected, strict=True):
            shown = {key: value for key, value in question.items() if key not in ("lengths", "indices")}
            self.assertEqual(answer, wanted, shown)

    def test_distributed_sampler(self):
        questions, expected = [], []
        for size in (1, 2, 3, 5, 7, 8, 64, 101, 1000, 30011):
            for num_replicas in (1, 2, 3, 4, 8, 13):
                for shuffle in (True, False):
                    for drop_last in (True, False):
                        for seed, epoch in ((0, 0), (0, 1), (42, 3), (2**40 + 5, 7)):
                            for rank in {0, num_replicas // 2, num_replicas - 1}:
                                sampler = DistributedSampler(
                                    range(size), num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
                                )
                                sampler.set_epoch(epoch)
                                questions.append(
                                    dict(ask="distributed_sampler", size=size, num_replicas=num_replicas, rank=rank,
                                         shuffle=shuffle, seed=seed, drop_last=drop_last, epoch=epoch)
                                )
                                expected.append({"indices": list(sampler), "num_samples": len(sampler)})
        self.assertGreater(len(questions), 2000)
        self.compare(questions, expected)

    def test_length_grouped_indices(self):
        draw = random.Random(1)
        questions, expected = [], []
        for size in (1, 2, 3, 15, 16, 17, 63, 64, 65, 799, 800, 1601, 20000):
            for batch_size in (1, 3, 4, 8, 16, 64, 1000):
                for seed, longest in ((0, 3), (7, 60), (42, 100000)):
                    lengths = [draw.randint(1, longest) for _ in range(size)]
                    generator = torch.Generator().manual_seed(seed)
                    questions.append(
                        dict(ask="length_grouped_indices", lengths=lengths, batch_size=batch_size, seed=seed)
                    )
                    expected.append(get_length_grouped_indices(lengths, batch_size, generator=generator))
        self.compare(questions, expected)

    def test_batch_shard(self):
        questions, expected = [], []
        for num_replicas in (1, 2, 3, 4, 7):
            for batch_size in (1, 2, 3, 8):
                for size in list(range(0, 40)) + [100, 101, 167]:
                    for drop_last in (True, False):
                        indices = [10 * i + 3 for i in range(size)]
                        for rank in range(num_replicas):
                            batches = BatchSampler(indices, batch_size, drop_last)
                            if num_replicas > 1:  # accelerate does not shard for one process
                                batches = BatchSamplerShard(batches, num_replicas, rank)
                            batches = list(batches)
                            self.assertTrue(all(len(batch) == batch_size for batch in batches[:-1]))
                            questions.append(
                                dict(ask="batch_shard", indices=indices, batch_size=batch_size,
                                     num_replicas=num_replicas, rank=rank, drop_last=drop_last)
                            )
                            expected.append([i for batch in batches for i in batch])
        self.compare(questions, expected)

    def test_errors_are_pythons(self):
        for rank, num_replicas in ((2, 2), (-1, 2), (5, 3)):
            question = dict(ask="distributed_sampler", size=8, num_replicas=num_replicas, rank=rank, shuffle=True,
                            seed=0, drop_last=False, epoch=0)
            with self.assertRaises(ValueError) as wanted:
                DistributedSampler(range(8), num_replicas, rank)
            self.assertEqual(str(ask([question])[0]), str(wanted.exception))


if __name__ == "__main__":
    unittest.main()
