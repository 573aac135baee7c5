"""The peer of bert_nli: transformers' model under Python's DDP on Gloo, or DataParallel on GPUs; the same batches, the same result file."""

import argparse
import csv
import json
import os
import time

import torch
import torch.distributed as dist
from transformers import AutoModelForSequenceClassification, BertTokenizerFast

LABELS = ("entailment", "neutral", "contradiction")


def parse_arguments():
    parser = argparse.ArgumentParser()
    for name in ("model-name-or-path", "train-file", "validation-file", "result-file", "strategy"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("batch-size", 128), ("max-steps", 10), ("seed", 42)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    return parser.parse_args()


def pss():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def main():
    args = parse_arguments()
    ddp = args.strategy == "ddp"
    if ddp:
        dist.init_process_group("gloo")
    rank, size = (dist.get_rank(), dist.get_world_size()) if ddp else (0, 1)
    device = "cpu" if ddp else "cuda:0"
    with open(args.train_file, newline="") as file:
        rows = list(csv.DictReader(file))
    tokenizer = BertTokenizerFast.from_pretrained(args.model_name_or_path)
    torch.manual_seed(args.seed)
    module = AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path, num_labels=3, ignore_mismatched_sizes=True).to(device)
    module.train()
    model = torch.nn.parallel.DistributedDataParallel(module) if ddp else torch.nn.DataParallel(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=args.learning_rate, fused=True)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(args.seed)).tolist()
    each = args.batch_size // size

    def batch_of(step):
        first = step * args.batch_size + rank * each
        mine = [rows[i] for i in order[first : first + each]]
        tokens = tokenizer(
            [row["premise"] for row in mine], [row["hypothesis"] for row in mine], padding=True, truncation=True, max_length=128, return_tensors="pt"
        )
        return tokens.to(device), torch.tensor([LABELS.index(row["label"]) for row in mine], device=device)

    batches = [batch_of(step) for step in range(args.max_steps)]
    start = None
    for number, (tokens, labels) in enumerate(batches):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(**tokens).logits, labels).backward()
        optimizer.step()
        if number == 0:
            if ddp:
                dist.barrier()
            start = time.perf_counter()
    seconds = time.perf_counter() - start
    memory = torch.tensor(float(pss()), dtype=torch.float64)
    if ddp:
        dist.all_reduce(memory)
    if rank == 0:
        with open(args.result_file, "w") as file:
            json.dump(
                {
                    "strategy": f"python {args.strategy}",
                    "samples_per_second": (args.max_steps - 1) * args.batch_size / seconds,
                    "seconds": seconds,
                    "pss_bytes": memory.item(),
                },
                file,
            )
    if ddp:
        dist.barrier()
    os._exit(0)  # Gloo's tear-down aborts now and then


if __name__ == "__main__":
    main()
