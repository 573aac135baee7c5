"""Programs that are wrong as people write them: the compiler's first error is one sentence that says what to write instead."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]).parent
COMMON = """
#include "lockstep/lockstep.h"
#include <torch/script.h>
#include <torch/torch.h>
struct Plain : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(2, 2));
  torch::Tensor forward(torch::Tensor x) { return linear(x); }
};
struct Fields { torch::Tensor a, b; };
struct PairImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(2, 2));
  Fields forward(torch::Tensor x) { return {linear(x), x}; }
};
TORCH_MODULE(Pair);
struct NoForward : torch::nn::Module {};
using Wrapped = lockstep::DistributedDataParallel<torch::nn::Linear>;
"""
WRAPS = r"DistributedDataParallel takes a module holder \(TORCH_MODULE\), a std::shared_ptr"
# By what is wrong: a line, and what the first error of it says.
WRONG = {
    "a module on the stack": ("void f1() { Plain net; lockstep::DistributedDataParallel ddp(net); }", WRAPS),
    "a TorchScript module": ("void f2(torch::jit::Module net) { lockstep::DistributedDataParallel ddp(net); }", WRAPS),
    "a module on the stack in DataParallel": (
        "void f3() { Plain net; lockstep::DataParallel parallel(net); }",
        r"DataParallel takes a module holder \(TORCH_MODULE\) or a std::shared_ptr",
    ),
    "a struct as a result": (
        "void f4() { Pair net; lockstep::DistributedDataParallel ddp(net); ddp(torch::rand({2, 2})); }",
        r"must find the tensors in what forward returns: give the struct a member",
    ),
    "our sampler in LibTorch's loader": (
        "void f5(lockstep::DistributedSampler s) { auto d = torch::data::datasets::TensorDataset(torch::rand({4, 2}))"
        ".map(torch::data::transforms::Stack<torch::data::TensorExample>()); torch::data::make_data_loader(std::move(d), s, 2); }",
        r"copies its sampler: give it lockstep::TorchDataSampler\(sampler\)",
    ),
    "an input that is no tensor": (
        "void f6() { lockstep::activation_checkpoint([](torch::Tensor x, int) { return x; }, torch::rand(2), 3); }",
        r"activation_checkpoint: pass tensors only",
    ),
    "LBFGS in parts": (
        "void f7(const std::vector<torch::Tensor>& p) { lockstep::ZeroRedundancyOptimizer<torch::optim::LBFGS> o(p); }",
        r"an optimizer whose step needs a closure \(LBFGS\)",
    ),
    "a module without forward": (
        "void f8() { lockstep::DistributedDataParallel ddp(std::make_shared<NoForward>()); ddp(torch::rand(2)); }",
        r"this module's class has no forward\(\)",
    ),
    "arguments that forward does not take": (
        "void f9(Wrapped& ddp) { ddp(std::vector<int>{1}, torch::rand(2)); }",
        r"forward\(\) does not take these arguments",
    ),
    "a sampler of LibTorch's data set": (
        "void f10() { lockstep::DistributedSampler s(torch::data::datasets::TensorDataset(torch::rand({4, 2}))); }",
        r"of LibTorch's data sets write DistributedSampler\(dataset\.size\(\)\.value\(\)\)",
    ),
    "a loader of a container": (
        "void f11(lockstep::DistributedSampler s) { lockstep::DataLoader d(std::vector<float>{1}, s, {.batch_size = 2}); }",
        r"DataLoader takes a lockstep::Dataset: make one",
    ),
    "a loader without an order": (
        "void f12(const lockstep::Dataset& set) { lockstep::DataLoader d(set, {.batch_size = 2}); }",
        r"DataLoader takes the samples' order before its options",
    ),
    "an optimizer to be divided": (
        "void f13(torch::optim::AdamW& made) { lockstep::ZeroRedundancyOptimizer o(made); }",
        r"ZeroRedundancyOptimizer takes an optimizer's class, not the optimizer",
    ),
    "another optimizer's options": (
        "void f14(Wrapped& ddp) { lockstep::FusedZeroRedundancyOptimizer<torch::optim::AdamW> o(ddp, 0.1); }",
        r"FusedZeroRedundancyOptimizer takes the DistributedDataParallel and the optimizer's options",
    ),
    "batch normalization of a tensor": ("void f15() { lockstep::convert_sync_batchnorm(torch::rand(2)); }", r"convert_sync_batchnorm takes a module"),
}
# What once did not compile and does.
RIGHT = """
void no_sync_in_optional() {
  torch::nn::Linear model(2, 2);
  lockstep::DistributedDataParallel ddp(model);
  std::optional<decltype(ddp.no_sync())> guard;
  guard.emplace(ddp.no_sync());
  guard.reset();
}
void sync_batch_norm_of_a_holder() {
  torch::nn::Linear model(2, 2);
  lockstep::convert_sync_batchnorm(model);
}
"""


def command():
    """As a test with LibTorch is compiled, with its precompiled header, but for the source."""
    units = json.loads((BUILD / "compile_commands.json").read_text())
    unit = next(unit for unit in units if "/ddp_cases.dir/" in unit["command"] and "pch" not in unit["file"])
    words = shlex.split(unit["command"])
    return words[: words.index("-o")], unit["directory"]


class WrongPrograms(unittest.TestCase):
    def test_the_first_error_says_what_to_write(self):
        words, folder = command()
        first = (COMMON + RIGHT).count("\n") + 1
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch) / "wrong.cpp"
            file.write_text(COMMON + RIGHT + "\n".join(line for line, _ in WRONG.values()) + "\n")
            said = subprocess.run(
                [*words, "-fsyntax-only", "-ferror-limit=0", "-fno-caret-diagnostics", file], cwd=folder, capture_output=True, text=True, timeout=300
            ).stderr
        # Each error begins with its place, and the notes behind it name the lines that led there.
        errors = re.split(r"^(?=[^\n]*: (?:fatal )?error: )", said, flags=re.M)[1:]
        # What clang instantiates at the end of the source it does not trace to a line: the wrapped type names it.
        of_line = {"a struct as a result": "DistributedDataParallel<Pair>"}
        for number, (name, (line, expected)) in enumerate(WRONG.items(), first):
            with self.subTest(name):
                mine = [error for error in errors if f"wrong.cpp:{number}:" in error or of_line.get(name, "\0") in error]
                self.assertTrue(mine, f"{line} compiles")
                self.assertRegex(mine[0].splitlines()[0], expected)
        self.assertEqual([], [error for error in errors if any(int(n) < first for n in re.findall(r"wrong\.cpp:(\d+):\d+: ", error))])


if __name__ == "__main__":
    unittest.main()
