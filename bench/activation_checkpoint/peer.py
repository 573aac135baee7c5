"""The peer of activation_checkpoint_cost, with its arguments: transformers' BERT of the same sizes and torch.utils.checkpoint."""

import json
import sys
import time

import torch
import transformers


def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name + ":"))


def main():
    layers, batch, length, steps, checkpoints = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=layers, hidden_size=384, num_attention_heads=12, intermediate_size=1536)
    model = transformers.BertForSequenceClassification(config)
    model.train()
    if checkpoints:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = torch.randint(1, config.vocab_size, (batch, length))
    mask, labels = torch.ones_like(ids), torch.randint(0, 2, (batch,))
    seconds, before = [], 0
    for step in range(-1, steps):
        if step == 0:
            before = status("VmRSS")
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        start = time.perf_counter()
        model.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(model(input_ids=ids, attention_mask=mask).logits, labels).backward()
        if step >= 0:
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "activations_mib": status("VmHWM") - before}))


if __name__ == "__main__":
    main()
