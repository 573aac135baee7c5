"""`lockstep checkpoint convert` on the files of torch.save(): what it reads, and what it refuses."""

import collections
import os
import pathlib
import pickle
import subprocess
import tempfile
import unittest
import zipfile

import safetensors.torch
import torch

LOCKSTEP = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockstep")
MUTATIONS = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "torch_file_mutations")
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


class Strange:
    """Its pickle would run a command."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class TorchFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file, self.output = self.folder / "model.pth", self.folder / "model.safetensors"

    def command(self, *arguments):
        return subprocess.run([LOCKSTEP, "checkpoint", "convert", *map(str, arguments)], capture_output=True, text=True, timeout=120)

    def convert(self, *arguments):
        result = self.command(self.file, "--output", self.output, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return safetensors.torch.load_file(self.output), result.stdout

    def refuses(self, expected, *arguments, code=1):
        result = self.command(self.file, "--output", self.output, *arguments)
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertRegex(result.stderr, r"^lockstep checkpoint convert: error: " + expected)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertFalse(self.output.exists())

    def check_equal(self, read, expected):
        self.assertEqual(sorted(read), sorted(expected))
        for name, tensor in expected.items():
            self.assertEqual((read[name].dtype, read[name].shape), (tensor.dtype, tensor.shape), name)
            flat = [value.detach().contiguous().clone().flatten().view(torch.uint8) for value in (read[name], tensor)]
            self.assertTrue(torch.equal(*flat), name)

    def zip_of(self, pickled, **records):
        with zipfile.ZipFile(self.file, "w") as archive:
            archive.writestr("archive/data.pkl", pickled)
            archive.writestr("archive/version", "3\n")
            for name, content in records.items():
                archive.writestr("archive/" + name.replace("_", "/"), content)

    def rewrite(self, tensors, old, new):
        """The file of `tensors` with other bytes in its pickle."""
        torch.save(tensors, self.file)
        with zipfile.ZipFile(self.file) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        pickled = next(name for name in records if name.endswith("/data.pkl"))
        self.assertEqual(records[pickled].count(old), 1)
        records[pickled] = records[pickled].replace(old, new)
        with zipfile.ZipFile(self.file, "w") as archive:
            for name, content in records.items():
                archive.writestr(name, content)

    def test_every_dtype_shape_and_stride(self):
        torch.manual_seed(1)
        tensors = {}
        for dtype in DTYPES:
            name = str(dtype).split(".")[1]
            values = torch.randint(0, 2, (5, 4, 3)).to(dtype)
            tensors[name], tensors[name + ".scalar"], tensors[name + ".empty"] = values, values[1, 1, 1].clone(), values[:0].clone()
            tensors[name + ".turned"] = values.permute(2, 0, 1)  # strides of its own, on the storage of the first
            tensors[name + ".part"] = values[1:4, ::2, 1]
        torch.save(tensors, self.file)
        self.check_equal(self.convert()[0], tensors)
        for protocol in (3, 4, 5):
            torch.save(tensors, self.file, pickle_protocol=protocol)
            self.check_equal(self.convert()[0], tensors)

    def test_conjugates_and_negatives(self):
        z, other = torch.complex(torch.rand(2, 3, 2), torch.rand(2, 3, 2))
        saved = {"z": z, "conjugate": z.conj(), "imaginary": other.clone().conj().imag}
        torch.save(saved, self.file)
        read = self.convert()[0]
        for name, tensor in saved.items():
            self.assertTrue(torch.equal(read[name], tensor.resolve_conj().resolve_neg()), name)

    def test_state_dicts_of_modules(self):
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        for saved in (module.state_dict(), dict(module.named_parameters()), module.to(memory_format=torch.channels_last).state_dict()):
            torch.save(saved, self.file)
            self.check_equal(self.convert()[0], saved)

    def test_the_prefix_of_data_parallel(self):
        module = torch.nn.Linear(3, 2)
        torch.save(torch.nn.DataParallel(module).state_dict(), self.file)
        self.check_equal(self.convert()[0], {"module." + name: value for name, value in module.state_dict().items()})
        self.check_equal(self.convert("--strip-prefix", "module.")[0], module.state_dict())
        self.output.unlink()
        self.refuses('--strip-prefix: no tensor\'s name begins with "model."; the first one is module.bias', "--strip-prefix", "model.", code=2)
        torch.save({"a.x": torch.ones(1), "x": torch.ones(2)}, self.file)
        self.refuses('without the prefix "a.", the tensor (a.)?x has the name of another one', "--strip-prefix", "a.", code=2)

    def test_tied_weights_are_written_once(self):
        shared = torch.rand(4, 3)
        torch.save({"output": shared, "embedding": shared, "half": shared[:2]}, self.file)
        read, told = self.convert()
        self.check_equal(read, {"embedding": shared, "half": shared[:2]})
        self.assertIn("output is the same tensor as embedding: written once\n", told)

        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.output = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False)
                self.output.weight = self.embedding.weight

        first, second = Tied(), Tied()
        torch.save(first.state_dict(), self.file)
        self.convert()
        safetensors.torch.load_model(second, self.output)
        self.assertTrue(torch.equal(second.output.weight, first.output.weight))

    def test_a_dict_of_several_things_needs_a_key(self):
        module = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(module.parameters())
        torch.save({"epoch": 3, "model": module.state_dict(), "optimizer": optimizer.state_dict(), "best": 0.5, "note": "x"}, self.file)
        self.refuses(r'\S+model.pth holds no tensors beside its dicts; choose one with lockstep checkpoint convert --key: "model", "optimizer"\n')
        self.refuses(r'\S+model.pth has no dict "modle"; it has: "model", "optimizer"\n', "--key", "modle", code=2)
        self.check_equal(self.convert("--key", "model")[0], module.state_dict())
        torch.save({"weight": torch.ones(2), "epoch": 3, "names": ["a"], "big": 2**60, "negative": -5}, self.file)
        read, told = self.convert()
        self.check_equal(read, {"weight": torch.ones(2)})
        self.assertIn('left out, as they are no tensors: "epoch" (int), "names" (list), "big" (int), "negative" (int)\n', told)

    def test_nothing_is_executed(self):
        trace = self.folder / "trace"
        for saved, named in (
            (Strange(trace), "posix.system"),
            ({"a": torch.ones(1), "b": Strange(trace)}, "posix.system"),
            (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
            ({"a": collections.Counter("x")}, "collections.Counter"),
            ({"a": torch.ones(2).to_sparse()}, "torch.(sparse_coo|_utils._rebuild_sparse_tensor)"),
        ):
            torch.save(saved, self.file)
            self.refuses(
                rf'\S+model.pth is refused: its pickle names "{named}"; only tensors, numbers and texts in dicts, lists and '
                r"tuples are read, and nothing is executed: save model.state_dict\(\)\n"
            )
        self.assertFalse(trace.exists())
        for pickled, expected in (
            (b"\x80\x02cos\nsystem\n.", 'names "os.system"'),
            (b"\x80\x02(S'x'\nios\nsystem\n.", r"has the opcode 0x53 STRING, at byte 3"),
            (b"\x80\x02(ios\nsystem\n.", r"has the opcode 0x69 INST, at byte 3"),
            (b"\x80\x02)\x81.", "has the opcode 0x81 NEWOBJ"),
            (b"\x80\x02\x82\x01.", "has the opcode 0x82 EXT1"),
            (b"\x80\x02ctorch\nFloatStorage\n)R.", 'calls "torch.FloatStorage"'),
            (b"\x80\x02}}R.", "calls what is no function"),
            (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", 'names "os.system"'),
            (b"\x80\x01}.", "has protocol 1, expected 2 to 5"),
            (b"\x80\x02\xff.", "has the opcode 0xff, at byte 2"),
            (b"\x80\x02" + b"N" * (2**22 + 1) + b".", "has more than 4194304 values"),
        ):
            self.zip_of(pickled)
            self.refuses(r"\S+model.pth is refused: its pickle " + expected)

    def test_damaged_files(self):
        for pickled, expected in (
            (b"", "truncated"),
            (b"\x80\x02", "truncated"),
            (b"\x80\x02}", "truncated"),
            (b"\x80\x02X\xff\xff\xff\xffabc.", "truncated"),
            (b"\x80\x02.", "other than one object"),
            (b"\x80\x02h\x07.", "an object is used that it has not made"),
            (b"\x80\x02u.", "a mark is missing"),
            (b"\x80\x02(}u.", "a dict is missing|other than"),
            (b"\x80\x02\x85.", "the stack is empty"),
            (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor is described otherwise"),
            (b"\x80\x02)Q.", "a storage is described otherwise"),
            # One item too many.
            (
                b"\x80\x02(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0kX\3\0\0\0cpuK\1K\1tQ.",
                "a storage is described otherwise",
            ),
        ):
            self.zip_of(pickled)
            self.refuses(r"\S+model.pth is damaged: at byte \d+ of its pickle, .*(" + expected + ")")
        for content in (b"", b"x", b"PK\x03\x04", os.urandom(1000), b"PK\x03\x04" + bytes(1000)):
            self.file.write_bytes(content)
            self.refuses(r"\S+model.pth is (damaged: |not in the zip format of torch.save\(\))")
        torch.save(torch.nn.Linear(1, 1).state_dict(), self.file, _use_new_zipfile_serialization=False)
        self.refuses(r"\S+model.pth is not in the zip format of torch.save\(\) \(PyTorch 1.6 and later\)")
        self.zip_of(pickle.dumps([1], protocol=2))
        self.refuses(r"\S+model.pth holds a list; expected a dict of tensors")
        self.zip_of(pickle.dumps({}, protocol=2), byteorder="big")
        self.refuses(r"\S+model.pth was saved on a big-endian machine")
        self.file.unlink()
        self.refuses(r"cannot read \S+model.pth: No such file or directory")

    def test_tensors_outside_their_storage(self):
        sizes = b"K\x05K\x07\x86"  # the tuple (5, 7)
        tensors = {"x": torch.zeros(5, 7)}
        for other in (
            b"K\x05K\x08\x86",
            b"K\x06K\x07\x86",
            b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86",
            b"J\xff\xff\xff\xffK\x07\x86",
            b"K\x05\x85",
            b"\x8a\x08" + b"\xff" * 7 + b"\x7fK\x02\x86",
        ):
            self.rewrite(tensors, sizes, other)
            self.refuses(r'\S+model.pth is damaged: tensor "x": ')
        self.rewrite({"x": torch.zeros(1).expand(5, 7)}, sizes, sizes)
        self.refuses(r'\S+model.pth is damaged: tensor "x": sizes \[5, 7\] with strides \[0, 0\] at 0 do not fit into its storage of 1 elements')
        self.rewrite({"x": torch.ones(3, dtype=torch.bool)}, b"BoolStorage", b"BoolStorage")
        with zipfile.ZipFile(self.file) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(self.file, "w") as archive:
            for name, content in records.items():
                archive.writestr(name, b"\x01\x02\x00" if name.endswith("/data/0") else content)
        self.refuses(r'\S+model.pth is damaged: tensor "x": a bool is neither 0 nor 1')

    def test_thousands_of_damaged_files(self):
        layer = torch.rand(4, 3)
        torch.save(
            {
                "weight": layer,
                "tied": layer,
                "part": layer[1:, ::2],
                "count": torch.tensor(3),
                "flags": torch.ones(3, dtype=torch.bool),
                "small": torch.ones(2, dtype=torch.uint16),
                "parameter": torch.nn.Parameter(torch.rand(2)),
                "epoch": 3,
                "rate": 0.5,
            },
            self.file,
        )
        result = subprocess.run([MUTATIONS, self.file, "2000"], capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        words = result.stdout.split()
        self.assertEqual(words[::3], ["files", "pickles", "noise"])
        for read, refused in zip(words[1::3], words[2::3]):
            self.assertGreater(int(read), 0, result.stdout)
            self.assertGreater(int(refused), 500, result.stdout)

    def test_mistakes_on_the_command_line(self):
        torch.save({"x": torch.ones(1)}, self.file)
        for arguments, expected in (
            ((self.file,), "--output is missing"),
            ((self.folder,), "is a directory: give --to trainer"),
            ((self.file, "--to", "trainer"), "is a file; --to trainer converts a checkpoint directory"),
            ((self.folder, "--to", "trainer", "--key", "x"), "--key and --strip-prefix are for files"),
            ((self.file, "--to", "onnx"), "safetensors"),
        ):
            result = self.command(*arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(expected, result.stderr)
        self.assertIn("--strip-prefix", self.command("--help").stdout)


if __name__ == "__main__":
    unittest.main()
