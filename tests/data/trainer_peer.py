"""The samples that transformers' Trainer really feeds to its model, alone and under torchrun; recorded (tests/recorded.py).

As a program, this file writes down the samples of its rank."""

import json
import os
import random
import subprocess
import sys
import tempfile

import recorded

EPOCHS = 3
SEED = 42
RECORD = recorded.Record("trainer_samples", ["data/trainer_peer.py"], ["transformers", "accelerate", "torch"])


def lengths_of(size):
    """Of the samples: 1 to 29, alike everywhere."""
    draw = random.Random(7)
    return [draw.randrange(1, 30) for _ in range(size)]


def train(output, size, batch_size, accumulation, strategy, reseed):
    """Runs the Trainer on a toy model and writes the ids of this rank's samples by epoch to the file `output`."""
    import torch
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
        os.path.dirname(output),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=EPOCHS,
        seed=SEED,
        train_sampling_strategy=strategy,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )
    Trainer(Model(), arguments, train_dataset=Samples(), data_collator=collate, callbacks=[EpochBegins()]).train()
    with open(output, "w") as file:
        json.dump(epochs, file)


def samples(world_size, jobs):
    """[rank][job][epoch]: the samples in their order. jobs: the arguments of train() after `output`."""

    def compute():
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable]
            if world_size > 1:
                command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
            run = subprocess.run([*command, __file__, directory, json.dumps(jobs)], capture_output=True, text=True, timeout=240)
            if run.returncode != 0:
                raise AssertionError(run.stderr)
            found = []
            for rank in range(world_size):
                found.append([])
                for number in range(len(jobs)):
                    with open(os.path.join(directory, f"{number}-{rank}.json")) as file:
                        found[rank].append(json.load(file))
            return found

    return RECORD.value(f"{world_size} ranks", recorded.hash_of(jobs), compute)


if __name__ == "__main__":
    import torch

    for number, job in enumerate(json.loads(sys.argv[2])):
        train(os.path.join(sys.argv[1], f"{number}-{os.environ.get('RANK', '0')}.json"), *job)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    sys.stdout.flush()
    # Gloo's tear-down aborts now and then ("terminate called without an active exception"): not what is tested.
    os._exit(0)
