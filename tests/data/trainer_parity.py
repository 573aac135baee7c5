"""TrainSampler against the samples that transformers' Trainer really feeds to its model, alone and under torchrun.

With arguments, this file is also the training program, which writes down the samples of its rank."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch

from probe import ask

EPOCHS = 3
SEED = 42


def lengths_of(size):
    return torch.randint(1, 30, (size,), generator=torch.Generator().manual_seed(7)).tolist()


def train(output, size, batch_size, accumulation, strategy, reseed):
    """Runs the Trainer on a toy model and writes the ids of this rank's samples by epoch to the file `output`."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    lengths, epochs = lengths_of(size), []

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return size

        def __getitem__(self, i):
            return {"input_ids": [i] * lengths[i]}

    def collate(samples):
        epochs[-1] += [sample["input_ids"][0] for sample in samples]
        return {"x": torch.ones(len(samples), 4)}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.dropout = torch.nn.Linear(4, 1), torch.nn.Dropout(0.5)

        def forward(self, x):
            return {"loss": self.linear(self.dropout(x)).mean()}

    class EpochBegins(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            if reseed:
                torch.manual_seed(args.seed + len(epochs))
            epochs.append([])

    arguments = TrainingArguments(
        os.path.dirname(output), per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation,
        num_train_epochs=EPOCHS, seed=SEED, train_sampling_strategy=strategy, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )
    Trainer(Model(), arguments, train_dataset=Samples(), data_collator=collate, callbacks=[EpochBegins()]).train()
    with open(output, "w") as file:
        json.dump(epochs, file)


class TrainerParity(unittest.TestCase):
    def compare(self, world_size, jobs):
        """jobs: (size, batch size, accumulation steps, strategy, reseed, epochs to compare)."""
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable]
            if world_size > 1:
                command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
            command += [__file__, directory, json.dumps([job[:5] for job in jobs])]
            run = subprocess.run(command, capture_output=True, text=True, timeout=240)
            self.assertEqual(run.returncode, 0, run.stderr)
            for rank in range(world_size):
                for number, (size, batch_size, accumulation, strategy, _, epochs) in enumerate(jobs):
                    with open(os.path.join(directory, f"{number}-{rank}.json")) as file:
                        trained = json.load(file)
                    self.assertEqual(len(trained), EPOCHS)
                    questions = [
                        dict(ask="train_sampler", size=size, lengths=lengths_of(size), strategy=strategy,
                             batch_size=batch_size, gradient_accumulation_steps=accumulation,
                             num_replicas=world_size, rank=rank, seed=SEED, drop_last=False, epoch=epoch)
                        for epoch in range(epochs)
                    ]
                    for epoch, answer in enumerate(ask(questions)):
                        self.assertEqual(answer, trained[epoch], (strategy, size, f"rank {rank}, epoch {epoch}"))

    def test_alone(self):
        self.compare(1, [
            (37, 4, 1, "random", False, EPOCHS),
            (37, 4, 2, "group_by_length", False, 1),  # an unchanged Trainer: the first epoch
            (37, 4, 2, "group_by_length", True, EPOCHS),
        ])

    def test_two_ranks(self):
        self.compare(2, [
            (101, 4, 2, "random", False, EPOCHS),
            (50, 8, 1, "sequential", False, EPOCHS),
            (203, 4, 2, "group_by_length", False, 1),
            (203, 4, 1, "group_by_length", True, EPOCHS),
        ])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        for number, job in enumerate(json.loads(sys.argv[2])):
            train(os.path.join(sys.argv[1], f"{number}-{os.environ.get('RANK', '0')}.json"), *job)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        sys.stdout.flush()
        # Gloo's tear-down aborts now and then ("terminate called without an active exception"): not what is tested.
        os._exit(0)
    else:
        unittest.main()
