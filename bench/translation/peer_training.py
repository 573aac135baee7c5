"""The peer: the original program's training loop in Python, under torchrun and Gloo.

    torchrun --nproc-per-node 2 peer_training.py --data-dir DIR --lang-src en-US --lang-tgt it --tokenizer-dir DIR
        --order-file F --output-file F --seq-len 22 [--tokens-per-batch N] [--pad-to-seq-len]

Every rank takes the samples that --order-file gives it, step by step: JSON lines {"step", "rank", "ids"}, as
`translate --log-sample-ids` writes them. With --tokens-per-batch an id is the number of a batch.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed
from tokenizers import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "translation"))
import original  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser()
    for name in ("data-dir", "lang-src", "lang-tgt", "tokenizer-dir", "order-file", "output-file"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seq-len", type=int, default=350)
    parser.add_argument("--tokens-per-batch", type=int, default=0)
    parser.add_argument("--pad-to-seq-len", action="store_true", help="as the original program does")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    for name, default in (("d-model", 512), ("num-layers", 6), ("num-heads", 8), ("d-ff", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--evaluate", action="store_true", help="translate the validation set; one process")
    return parser.parse_args()


def read_pairs(args, split, tokenizers):
    """Ids of the pairs that are short enough, and their texts."""
    sides = [
        pathlib.Path(args.data_dir, f"{split}.{language}").read_text(encoding="utf-8").splitlines() for language in (args.lang_src, args.lang_tgt)
    ]
    pairs = []
    for source, target in zip(*sides, strict=True):
        ids = [tokenizer.encode(text).ids for tokenizer, text in zip(tokenizers, (source, target))]
        if max(map(len, ids)) <= args.seq_len - 2:
            pairs.append((*ids, source, target))
    return pairs


def batches_by_tokens(lengths, most):
    batches = []
    for sample in sorted(range(len(lengths)), key=lengths.__getitem__):  # stable
        if not batches or (len(batches[-1]) + 1) * lengths[sample] > most:
            batches.append([])
        batches[-1].append(sample)
    return batches


def pad(rows, length=0):
    length = max(length, max(map(len, rows)))
    return torch.tensor([row + [original.PAD] * (length - len(row)) for row in rows])


def batch_of(args, pairs):
    length = args.seq_len if args.pad_to_seq_len else 0
    return (
        pad([[original.SOS, *pair[0], original.EOS] for pair in pairs], length),
        pad([[original.SOS, *pair[1]] for pair in pairs], length),
        pad([[*pair[1], original.EOS] for pair in pairs], length),
    )


def evaluate(args, model, tokenizers):
    """Nats per token, and the translations as words joined by spaces."""
    model.eval()
    pairs = read_pairs(args, "validation", tokenizers)
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]))
    loss, tokens, words = 0.0, 0, [None] * len(pairs)
    for begin in range(0, len(order), 32):
        some = order[begin : begin + 32]
        source, target, labels = batch_of(args, [pairs[i] for i in some])
        with torch.no_grad():
            count = int((labels != original.PAD).sum())
            loss += original.loss_of(model(source, target), labels).item() * count
            tokens += count
            rows, _ = model.greedy_cached(source, args.seq_len)
        for i, row in zip(some, rows):
            words[i] = tokenizers[1].decode(row[: 2 * len(pairs[i][0]) + 14])
    return {"loss": loss / tokens, "hypotheses": words, "references": [pair[3] for pair in pairs]}


def main():
    args = parse_arguments()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    tokenizers = [Tokenizer.from_file(os.path.join(args.tokenizer_dir, f"tokenizer_{language}.json")) for language in (args.lang_src, args.lang_tgt)]
    pairs = read_pairs(args, "train", tokenizers)
    batches = None
    if args.tokens_per_batch:
        batches = batches_by_tokens([max(len(pair[0]) + 2, len(pair[1]) + 1) for pair in pairs], args.tokens_per_batch)
    steps = {}
    for line in map(json.loads, open(args.order_file)):
        if line["rank"] == rank:
            steps.setdefault(line["step"], []).extend(line["ids"])
    torch.manual_seed(args.seed)
    model = original.Transformer(
        tokenizers[0].get_vocab_size(),
        tokenizers[1].get_vocab_size(),
        args.seq_len,
        args.d_model,
        args.num_layers,
        args.num_heads,
        args.d_ff,
        args.dropout,
    )
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=args.learning_rate, eps=1e-9)
    seconds, words, losses = [], 0, []
    for step in sorted(steps):
        begin = time.perf_counter()
        chosen = steps[step]
        if batches is not None:
            chosen = [sample for batch in chosen for sample in batches[batch]]
        source, target, labels = batch_of(args, [pairs[i] for i in chosen])
        loss = original.loss_of(ddp(source, target), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
        words += int((labels != original.PAD).sum())
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {sum(losses[-50:]) / len(losses[-50:]):.4f}", flush=True)
    total = torch.tensor([words], dtype=torch.float64)
    torch.distributed.all_reduce(total)
    if rank == 0:
        result = {"step_seconds": seconds, "words": int(total.item()), "losses": losses, "threads": torch.get_num_threads()}
        if args.evaluate:
            result["evaluation"] = evaluate(args, model, tokenizers)
        pathlib.Path(args.output_file).write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
