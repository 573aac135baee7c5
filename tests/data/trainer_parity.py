"""TrainSampler against the samples that transformers' Trainer really feeds to its model, alone and under torchrun."""

import unittest

from probe import ask
from trainer_peer import EPOCHS, SEED, lengths_of, samples


class TrainerParity(unittest.TestCase):
    def compare(self, world_size, jobs):
        """jobs: (size, batch size, accumulation steps, strategy, reseed, epochs to compare)."""
        everybodys = samples(world_size, [job[:5] for job in jobs])
        self.assertEqual(len(everybodys), world_size)
        questions, expected = [], []
        for rank, of_jobs in enumerate(everybodys):
            for (size, batch_size, accumulation, strategy, _, epochs), trained in zip(jobs, of_jobs, strict=True):
                self.assertEqual(len(trained), EPOCHS)
                questions += [
                    dict(
                        ask="train_sampler",
                        size=size,
                        lengths=lengths_of(size),
                        strategy=strategy,
                        batch_size=batch_size,
                        gradient_accumulation_steps=accumulation,
                        num_replicas=world_size,
                        rank=rank,
                        seed=SEED,
                        drop_last=False,
                        epoch=epoch,
                    )
                    for epoch in range(epochs)
                ]
                expected += trained[:epochs]
        for question, answer, samples_of_peer in zip(questions, ask(questions), expected, strict=True):
            self.assertEqual(answer, samples_of_peer, {key: value for key, value in question.items() if key != "lengths"})

    def test_alone(self):
        self.compare(
            1,
            [
                (37, 4, 1, "random", False, EPOCHS),
                (37, 4, 2, "group_by_length", False, 1),  # an unchanged Trainer: the first epoch
                (37, 4, 2, "group_by_length", True, EPOCHS),
            ],
        )

    def test_two_ranks(self):
        self.compare(
            2,
            [
                (101, 4, 2, "random", False, EPOCHS),
                (50, 8, 1, "sequential", False, EPOCHS),
                (203, 4, 2, "group_by_length", False, 1),
                (203, 4, 1, "group_by_length", True, EPOCHS),
            ],
        )


if __name__ == "__main__":
    unittest.main()
