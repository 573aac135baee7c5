"""Our transformer against original.py: logits, gradients, 20 steps on one rank and on two, generation."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import load_file, save_file

import beam_search_peer
import original

RUNNER = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "transformer_runner")
LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
SIZES = dict(source_vocab_size=61, target_vocab_size=53, seq_len=40, d_model=32, num_layers=2, num_heads=4, d_ff=64)
STEPS, BATCH = 20, 8

torch.set_num_threads(1)


def sentences(count, vocabulary, longest, generator):
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(4, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def padded(rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [original.PAD] * (longest - len(row)) for row in rows])


def samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    source = sentences(count, SIZES["source_vocab_size"], 17, generator)
    target = sentences(count, SIZES["target_vocab_size"], 15, generator)
    return {
        "source": padded([[original.SOS, *row, original.EOS] for row in source]),
        "target": padded([[original.SOS, *row] for row in target]),
        "labels": padded([[*row, original.EOS] for row in target]),
    }


class TransformerParityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name)

    def model(self, seed=0, gain=1.0):
        torch.manual_seed(seed)
        model = original.Transformer(**SIZES, dropout=0.0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("alpha", "bias")):
                    parameter.add_(torch.randn_like(parameter) * 0.1)
                elif gain != 1:
                    parameter.mul_(gain)
        directory = self.path / "model"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(
            json.dumps({"model_type": "lockstep_translation_transformer", **SIZES, "dropout": 0.0, "pad_token_id": original.PAD})
        )
        save_file(model.state_dict(), directory / "model.safetensors")
        return model.eval()

    def run_ours(self, *words, ranks=1):
        command = [RUNNER, *map(str, words)]
        if ranks > 1:
            command = [LOCKRUN, "--standalone", "--nproc-per-node", str(ranks), *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_logits_are_equal_where_there_is_no_padding(self):
        model = self.model()
        inputs = samples(9, 5)
        save_file(inputs, self.path / "inputs.safetensors")
        self.run_ours("logits", self.path / "model", self.path / "inputs.safetensors", self.path / "logits.safetensors")
        ours = load_file(self.path / "logits.safetensors")["logits"]
        with torch.no_grad():
            theirs = model(inputs["source"], inputs["target"])[inputs["target"] != original.PAD]
        self.assertEqual(ours.shape, theirs.shape)
        self.assertLess((ours - theirs).abs().max().item(), 1e-5)

    def theirs(self, inputs):
        model = self.model().train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-9)
        losses, first = [], None
        for step in range(STEPS):
            batch = {name: tensor[step * BATCH : (step + 1) * BATCH] for name, tensor in inputs.items()}
            loss = original.loss_of(model(batch["source"], batch["target"]), batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            if first is None:
                first = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
            optimizer.step()
            losses.append(loss.item())
        return losses, first, model

    def check_training(self, ranks):
        inputs = samples(STEPS * BATCH, 11)
        losses, first, model = self.theirs(inputs)
        self.model()
        save_file(inputs, self.path / "inputs.safetensors")
        (self.path / "arguments.json").write_text(
            json.dumps(
                {
                    "per_device_train_batch_size": BATCH // ranks,
                    "num_train_epochs": 1,
                    "learning_rate": 1e-3,
                    "lr_scheduler_type": "constant",
                    "adam_epsilon": 1e-9,
                    "max_grad_norm": 0,
                    "logging_steps": 1,
                    "save_strategy": "no",
                    "train_sampling_strategy": "sequential",
                    "disable_tqdm": True,
                }
            )
        )
        output = self.path / f"out-{ranks}"
        output.mkdir()
        self.run_ours("train", self.path / "model", self.path / "inputs.safetensors", self.path / "arguments.json", output, ranks=ranks)
        log = [entry for entry in json.loads((output / "trainer_state.json").read_text())["log_history"] if "loss" in entry]
        self.assertEqual(len(log), STEPS)
        for step, (entry, loss) in enumerate(zip(log, losses)):
            self.assertAlmostEqual(entry["loss"], loss, delta=1e-5, msg=f"step {step + 1}")
        gradients = load_file(output / "first_gradients.safetensors")
        self.assertEqual(set(gradients), set(first))
        for name, norm in first.items():
            ours = gradients[name].double().norm().item()
            # A key's or query's gradient may vanish; the others are compared by ratio.
            self.assertLess(abs(ours - norm), 1e-5 * norm + 1e-9, name)
        weights = load_file(output / "model.safetensors")
        ours = sum(weights[name].double().square().sum().item() for name, _ in model.named_parameters()) ** 0.5
        theirs = sum(p.detach().double().square().sum().item() for p in model.parameters()) ** 0.5
        self.assertLess(abs(ours / theirs - 1), 3e-7)

    def test_twenty_steps_on_one_rank(self):
        self.check_training(1)

    def test_twenty_steps_on_two_ranks(self):
        self.check_training(2)

    def test_greedy_search_gives_the_same_ids(self):
        model = self.model(seed=3, gain=2.0)
        inputs = {"source": samples(12, 7)["source"]}
        save_file(inputs, self.path / "inputs.safetensors")
        theirs = model.greedy(inputs["source"], 30)
        cached, _ = model.greedy_cached(inputs["source"], 30)
        self.assertEqual(cached, theirs)
        self.assertGreater(len({tuple(row) for row in theirs}), 3)
        for use_cache in ("true", "false"):
            output = self.path / "ids.safetensors"
            self.run_ours("generate", self.path / "model", self.path / "inputs.safetensors", output, 1, use_cache, 1)
            result = load_file(output)
            ours = [[word for word in row if word >= 0] for row in result["ids"].tolist()]
            self.assertEqual(ours, theirs)
            self.assertEqual(int(result["row_steps"]), sum(min(len(row) + 1, 30) for row in theirs))

    def test_beam_search_gives_the_ids_and_the_scores_of_transformers(self):
        model = self.model(seed=3, gain=2.0)
        with torch.no_grad():
            model.projection_layer.proj.bias[original.PAD] += 4  # padding is probable: its share belongs to no other word
        save_file(model.state_dict(), self.path / "model" / "model.safetensors")
        source = samples(12, 7)["source"]
        save_file({"source": source}, self.path / "inputs.safetensors")
        finished = 0
        for beams, penalty in ((2, 1.0), (4, 0.6), (5, 0.0)):
            theirs = beam_search_peer.beam_search(model, source, beams, penalty, 30)
            for use_cache in ("true", "false"):
                output = self.path / "ids.safetensors"
                self.run_ours("generate", self.path / "model", self.path / "inputs.safetensors", output, beams, use_cache, penalty)
                result = load_file(output)
                ours = [[word for word in row if word >= 0] for row in result["ids"].tolist()]
                self.assertEqual(ours, [ids for ids, _ in theirs])
                for our_score, (_, score) in zip(result["scores"].tolist(), theirs, strict=True):
                    self.assertLess(abs(our_score - score), 1e-4 * abs(score))
            finished += sum(len(ids) < 30 for ids, _ in theirs)
        self.assertGreater(finished, 10)


if __name__ == "__main__":
    unittest.main()
