"""Files written here are read by the Python package and the other way round, byte for byte."""

import json
import os
import subprocess
import tempfile
import unittest

import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model

BIN = os.environ["LOCKSTEP_TEST_BIN_DIR"]
COPY = os.path.join(BIN, "safetensors_copy")

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]


def tensors_of_all_types():
    torch.manual_seed(0)
    tensors = {}
    for dtype in FLOATS:
        tensors[f"float.{dtype}"] = torch.randn(3, 5).to(dtype)
        tensors[f"scalar.{dtype}"] = torch.tensor(1.5).to(dtype)
    for dtype in INTEGERS:
        tensors[f"integer.{dtype}"] = torch.randint(0, 100, (2, 3, 4)).to(dtype)
        tensors[f"empty.{dtype}"] = torch.zeros(0, 7, dtype=dtype)
    tensors["bool"] = torch.tensor([[True, False], [False, True]])
    tensors["complex"] = torch.randn(4, dtype=torch.complex64)
    tensors['odd "name" \u00e9 \u4e2d'] = torch.arange(6.0)
    return tensors


class TiedModule(torch.nn.Module):
    """tests/checkpoint/tied_module.h"""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.decoder = torch.nn.Linear(3, 7, bias=False)
        self.decoder.weight = self.embedding.weight
        self.register_buffer("small", torch.randn(2, 2).to(torch.bfloat16))


def copy(source, target):
    return subprocess.run([COPY, source, target], capture_output=True, text=True)


class SafetensorsParity(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def test_copy_equals_the_package_file_byte_for_byte(self):
        save_file(tensors_of_all_types(), self.path("a"), metadata={"format": "pt"})
        done = copy(self.path("a"), self.path("b"))
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("a"), "rb") as a, open(self.path("b"), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_package_reads_the_copy(self):
        tensors = tensors_of_all_types()
        metadata = {"format": "pt", "step": "12", "text": "line\nbreak \u00e9"}
        save_file(tensors, self.path("a"), metadata=metadata)
        self.assertEqual(copy(self.path("a"), self.path("b")).returncode, 0)
        loaded = load_file(self.path("b"))
        self.assertEqual(set(loaded), set(tensors))
        for name, tensor in tensors.items():
            self.assertEqual(loaded[name].dtype, tensor.dtype)
            self.assertEqual(loaded[name].shape, tensor.shape)
            self.assertTrue(
                torch.equal(
                    loaded[name].view(torch.uint8) if tensor.dim() and tensor.numel() else loaded[name].to(torch.float64),
                    tensor.view(torch.uint8) if tensor.dim() and tensor.numel() else tensor.to(torch.float64),
                ),
                name,
            )
        with safe_open(self.path("b"), "pt") as file:
            self.assertEqual(file.metadata(), metadata)

    def test_no_tensors_and_no_metadata(self):
        save_file({}, self.path("a"))
        self.assertEqual(copy(self.path("a"), self.path("b")).returncode, 0)
        self.assertEqual(load_file(self.path("b")), {})

    def test_modules_go_both_ways(self):
        torch.manual_seed(1)
        ours, theirs = TiedModule(), TiedModule()
        ours.norm(torch.randn(4, 3))  # other statistics than new ones
        save_model(ours, self.path("a"))
        done = subprocess.run([os.path.join(BIN, "module_copy"), self.path("a"), self.path("b")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(load_model(theirs, self.path("b")), (set(), []))
        for name, tensor in ours.state_dict().items():
            self.assertTrue(torch.equal(theirs.state_dict()[name], tensor), name)
        with safe_open(self.path("a"), "pt") as a, safe_open(self.path("b"), "pt") as b:
            self.assertEqual(set(a.keys()), set(b.keys()))
            self.assertEqual({**a.metadata(), "format": "pt"}, b.metadata())

    def test_both_refuse_the_same_damage(self):
        def header(entries):
            text = json.dumps(entries).encode()
            return len(text).to_bytes(8, "little") + text

        def entry(dtype, shape, begin, end):
            return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

        damaged = {
            "hole": header({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}) + bytes(12),
            "overlap": header({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}) + bytes(8),
            "trailing": header({"a": entry("F32", [1], 0, 4)}) + bytes(5),
            "truncated": header({"a": entry("F32", [2], 0, 8)}) + bytes(7),
            "shape": header({"a": entry("F32", [3], 0, 8)}) + bytes(8),
            "dtype": header({"a": entry("F33", [1], 0, 4)}) + bytes(4),
            "negative": header({"a": entry("F32", [-1], 0, 4)}) + bytes(4),
            "text": (4).to_bytes(8, "little") + b"nope",
            "large": (100_000_001).to_bytes(8, "little") + b"{}",
        }
        for name, content in damaged.items():
            with self.subTest(name):
                with open(self.path(name), "wb") as file:
                    file.write(content)
                with self.assertRaises(Exception):
                    load_file(self.path(name))
                done = copy(self.path(name), self.path("never"))
                self.assertEqual(done.returncode, 1)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn(self.path(name), done.stderr)
                self.assertFalse(os.path.exists(self.path("never")))


if __name__ == "__main__":
    unittest.main()
