"""transformers' Trainer on a small tagger in double precision: its log and its last weights for some arguments."""

import tempfile

import recorded

RECORD = recorded.Record("trainer", ["trainer/trainer_peer.py"], ["transformers", "accelerate", "torch"])
SAMPLES, LENGTH, WORDS, WIDTH, TAGS = 30, 7, 11, 6, 5


def inputs():
    """Ragged texts, whose padding has the label -100, and first weights. Two texts have no token at all."""
    import torch

    torch.manual_seed(4)
    tensors = {
        "tokens": torch.randint(WORDS, (SAMPLES, LENGTH)),
        "labels": torch.randint(TAGS, (SAMPLES, LENGTH)),
        "embedding.weight": torch.randn(WORDS, WIDTH, dtype=torch.float64),
        "out.weight": torch.randn(TAGS, WIDTH, dtype=torch.float64),
        "out.bias": torch.randn(TAGS, dtype=torch.float64),
    }
    lengths = torch.randint(0, LENGTH + 1, (SAMPLES,))
    lengths[3] = lengths[8] = 0
    tensors["labels"][torch.arange(LENGTH) >= lengths[:, None]] = -100
    return tensors


def train(arguments, momentum=None):
    """{"log": log_history, "weights": {name: list}}."""
    import torch
    import transformers

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(WORDS, WIDTH)
            self.out = torch.nn.Linear(WIDTH, TAGS)
            self.double()
            self.config = transformers.PretrainedConfig()  # which label smoothing looks into

        def forward(self, tokens):
            return {"logits": self.out(self.embedding(tokens))}

    tensors = inputs()
    model = Tagger()
    model.load_state_dict({name: value for name, value in tensors.items() if "." in name})

    def mean_over_all(outputs, labels, num_items_in_batch):
        return torch.nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch

    with tempfile.TemporaryDirectory() as folder:
        given = transformers.TrainingArguments(
            output_dir=folder,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            logging_nan_inf_filter=False,
            **arguments,
        )
        optimizers = {}
        if momentum is not None:
            optimizers["optimizers"] = (torch.optim.SGD(model.parameters(), given.learning_rate, **momentum), None)
        trainer = transformers.Trainer(
            model=model,
            args=given,
            compute_loss_func=None if "label_smoothing_factor" in arguments else mean_over_all,
            train_dataset=[{"tokens": tokens, "labels": labels} for tokens, labels in zip(tensors["tokens"], tensors["labels"])],
            **optimizers,
        )
        trainer.train()
        return {"log": trainer.state.log_history, "weights": {name: value.tolist() for name, value in model.state_dict().items()}}
