"""BERT for the classification of tokens and for question answering, against transformers' for the same weights."""

import os
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "bert_runner")
HEADS = {
    "tokens": (BertForTokenClassification, AutoModelForTokenClassification, "classifier"),
    "answers": (BertForQuestionAnswering, AutoModelForQuestionAnswering, "qa_outputs"),
}

torch.set_num_threads(1)


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
        initializer_range=0.2,
    )
    fields.update(changes)
    return BertConfig(**fields)


def random_inputs(config, padding, batch=5, length=17):
    torch.manual_seed(3)
    ids, mask = torch.randint(1, config.vocab_size, (batch, length)), torch.ones(batch, length, dtype=torch.int64)
    for row in range(batch):
        count = length - (row * 3) % (length - 1)
        if padding == "right":
            mask[row, count:] = 0
        elif padding == "left":
            mask[row, : length - count] = 0
        elif padding == "holes" and row % 2:
            mask[row, 1::3] = 0
    ids[mask == 0] = config.pad_token_id
    return {"input_ids": ids, "token_type_ids": torch.randint(0, 2, (batch, length)), "attention_mask": mask}


class BertHeads(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="lockstep_heads_")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def path(self, name):
        return os.path.join(self.directory, name)

    def run_it(self, *arguments):
        return subprocess.run([RUNNER, *arguments], capture_output=True, text=True, timeout=60)

    def saved(self, model_class, config, name="model"):
        torch.manual_seed(1)
        model = model_class(config)
        with torch.no_grad():  # biases and LayerNorm start at constants that would hide mistakes
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(self.path(name))
        return model

    def assert_close(self, ours, theirs, tolerance, what=""):
        self.assertEqual(ours.shape, theirs.shape, what)
        self.assertLess((ours - theirs).abs().max().item(), tolerance * max(1.0, theirs.abs().max().item()), what)

    def test_logits_loss_and_gradients(self):
        for mode, (model_class, _, _) in HEADS.items():
            for padding in ("right", "left", "holes", "none"):
                for layers in (0, 1, 2):
                    what = f"{mode}, {padding}, {layers}"
                    config = small_config(num_hidden_layers=layers, **({"num_labels": 5} if mode == "tokens" else {}))
                    model = self.saved(model_class, config).train()
                    inputs = random_inputs(config, padding)
                    mask = inputs["attention_mask"]
                    labels = torch.randint(0, 5, mask.shape).masked_fill((mask == 0) | (torch.rand(mask.shape) < 0.3), -100)
                    targets = (
                        {"labels": labels}
                        if mode == "tokens"
                        else {"start_positions": torch.randint(0, 17, (5,)), "end_positions": torch.randint(0, 17, (5,))}
                    )
                    found = model(**inputs, **targets)
                    found.loss.backward()
                    save_file({**inputs, **targets}, self.path("inputs"))
                    done = self.run_it(mode, self.path("model"), self.path("inputs"), self.path("outputs"))
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    ours = load_file(self.path("outputs"))
                    if mode == "tokens":  # what the model makes of padding is not computed
                        self.assert_close(ours["logits"][mask == 1], found.logits[mask == 1].detach(), 1e-5, what)
                    else:
                        theirs = torch.stack([found.start_logits, found.end_logits], 2).detach()
                        self.assert_close(ours["logits"], theirs, 1e-5, what)
                    self.assert_close(ours["loss"], found.loss.detach(), 1e-5, what)
                    for name, parameter in model.named_parameters():
                        self.assert_close(ours["grad." + name], parameter.grad, 2e-5, f"{what}: {name}")

    def test_files_are_transformers(self):
        for mode, (model_class, auto_class, head) in HEADS.items():
            names = {0: "O", 1: "B-PER", 2: "I-PER"}
            config = small_config(id2label=names, label2id={name: id for id, name in names.items()}) if mode == "tokens" else small_config()
            model = self.saved(model_class, config).eval()
            done = self.run_it(f"resave_{mode}", self.path("model"), self.path("resaved"))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            loaded, info = auto_class.from_pretrained(self.path("resaved"), output_loading_info=True)
            self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"], info)
            self.assertEqual((type(loaded), loaded.config.architectures), (model_class, [model_class.__name__]))
            self.assertEqual(loaded.config.id2label, config.id2label)
            ours, theirs = (dict(one.named_parameters()) for one in (loaded, model))
            self.assertEqual(list(ours), list(theirs))
            self.assertIn(f"{head}.weight", ours)
            for name, value in ours.items():
                self.assertTrue(torch.equal(value, theirs[name]), name)

    def test_a_checkpoint_without_the_head(self):
        for mode, (_, auto_class, head) in HEADS.items():
            for source in (BertModel, BertForSequenceClassification):
                model = self.saved(source, small_config(num_labels=2), "source")
                encoder = model if source is BertModel else model.bert
                done = self.run_it(f"resave_{mode}", self.path("source"), self.path("resaved"))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"{head}.weight", done.stderr)
                self.assertIn("newly initialized", done.stderr)
                loaded = auto_class.from_pretrained(self.path("resaved"))
                for name, value in loaded.bert.named_parameters():
                    self.assertTrue(torch.equal(value, encoder.get_parameter(name)), name)
                if source is BertForSequenceClassification and mode == "tokens":
                    self.assertIn("trained as a head of BertForSequenceClassification", done.stderr)
                    self.assertFalse(torch.equal(loaded.classifier.weight, model.classifier.weight))


if __name__ == "__main__":
    unittest.main()
