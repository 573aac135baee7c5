"""The peer: the same fine-tuning with transformers' Trainer, under torchrun and Gloo.

    torchrun --nproc-per-node 2 peer_transformers.py --model-name-or-path DIR --train-file F --order-file F
        --log-sample-ids F --output-file F

Every rank takes the samples that --order-file gives it, step by step: JSON lines {"step", "rank", "ids"}, as
`bert_classify --log-sample-ids` writes them (ids are row numbers of the training file, from 0). What was really used is
logged to --log-sample-ids in the same form, from inside the training step.
"""

import argparse
import csv
import json
import os
import time

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainerCallback, TrainingArguments


def parse_arguments():
    parser = argparse.ArgumentParser()
    for name in ("model-name-or-path", "train-file", "order-file", "log-sample-ids", "output-file"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--label-column", default="label")
    parser.add_argument("--label-names", type=lambda text: text.split(","), required=True)
    parser.add_argument("--max-seq-length", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--warmup-steps", type=float, default=0.1)
    parser.add_argument("--logging-steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args()


def read_order(path, rank):
    """This rank's sample ids, one list a step."""
    with open(path) as file:
        mine = [line for line in map(json.loads, file) if line["rank"] == rank]
    return [line["ids"] for line in sorted(mine, key=lambda line: line["step"])]


def read_dataset(args):
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    with open(args.train_file, newline="") as file:
        rows = list(csv.DictReader(file))
    tokens = tokenizer([row[args.text_column] for row in rows], truncation=True, max_length=args.max_seq_length)
    dataset = []
    for index, row in enumerate(rows):
        label = row[args.label_column]
        sample = {key: values[index] for key, values in tokens.items()}
        sample["labels"] = int(label) if label.isdecimal() else args.label_names.index(label)
        sample["sample_ids"] = index
        dataset.append(sample)
    return tokenizer, dataset


class OrderedTrainer(Trainer):
    """Trains on given batches, and logs which samples each training step was given."""

    def __init__(self, order, sample_log, **arguments):
        super().__init__(**arguments)
        self.order = order
        self.sample_log = open(sample_log, "a")

    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_sampler=self.order, collate_fn=self.data_collator)

    def training_step(self, model, inputs, *rest):
        ids = inputs.pop("sample_ids").tolist()
        record = {"step": self.state.global_step + 1, "rank": self.args.process_index, "ids": ids}
        self.sample_log.write(json.dumps(record) + "\n")
        self.sample_log.flush()
        return super().training_step(model, inputs, *rest)


class StepClock(TrainerCallback):
    def __init__(self):
        self.times = []

    def on_epoch_begin(self, *_, **__):
        self.times.append(time.perf_counter())

    def on_step_end(self, *_, **__):
        self.times.append(time.perf_counter())

    def step_seconds(self):
        return [after - before for before, after in zip(self.times, self.times[1:])]


def main():
    args = parse_arguments()
    order = read_order(args.order_file, int(os.environ["RANK"]))
    tokenizer, dataset = read_dataset(args)
    torch.manual_seed(args.seed)
    model = AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path, num_labels=len(args.label_names))
    clock = StepClock()
    trainer = OrderedTrainer(
        order,
        args.log_sample_ids,
        model=model,
        train_dataset=dataset,
        callbacks=[clock],
        data_collator=DataCollatorWithPadding(tokenizer),
        args=TrainingArguments(
            output_dir=os.path.dirname(os.path.abspath(args.output_file)),
            use_cpu=True,
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
            optim="adamw_torch_fused",
            bf16=args.bf16,
            per_device_train_batch_size=max(map(len, order)),
            num_train_epochs=1,
            learning_rate=args.learning_rate,
            warmup_steps=args.warmup_steps,
            logging_steps=args.logging_steps,
            seed=args.seed,
            # Otherwise it multiplies a loss that is a mean already by the number of processes.
            average_tokens_across_devices=False,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    if trainer.is_world_process_zero():
        with open(args.output_file, "w") as file:
            json.dump({"threads": torch.get_num_threads(), "step_seconds": clock.step_seconds(), "log_history": trainer.state.log_history}, file)
    torch.distributed.barrier()
    # Gloo's tear-down aborts now and then ("terminate called without an active exception").
    os._exit(0)


if __name__ == "__main__":
    main()
