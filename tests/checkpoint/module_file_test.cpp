#include "lockstep/checkpoint/module_file.h"

#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/checkpoint/tied_module.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class ModuleFileTest : public testing::Test {
 protected:
  ModuleFileTest() {
    std::string name = (fs::temp_directory_path() / "lockstep-module-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    file_ = directory_ / "model.safetensors";
  }
  ~ModuleFileTest() override { fs::remove_all(directory_); }

  std::string error_of(const std::function<void()>& call) const {
    try {
      call();
    } catch (const ValueError& error) {
      const std::string text = error.what();
      const std::string start = file_.string() + " does not fit the module: ";
      return text.starts_with(start) ? text.substr(start.size()) : text;
    }
    return "";
  }

  /// A file of `from` in which `change` has changed tensors.
  void write(const torch::nn::Module& from,
             const std::function<void(std::map<std::string, at::Tensor>&)>& change) const {
    save_module(from, file_);
    auto file = checkpoint::load_safetensors(file_);
    change(file.tensors);
    checkpoint::save_safetensors(file_, file.tensors, file.metadata);
  }

  fs::path directory_, file_;
};

void fill(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) item.value().copy_(at::rand(item.value().sizes()));
  for (const auto& item : module.named_buffers()) item.value().fill_(5);
}

TEST_F(ModuleFileTest, WhatIsSavedIsLoaded) {
  TiedModule from, to;
  fill(from);
  save_module(from, file_);
  const auto memory = to.embedding->weight.const_data_ptr();
  const auto result = load_module(to, file_);
  EXPECT_TRUE(result.missing.empty() && result.unexpected.empty());
  for (const auto& item : from.named_parameters()) {
    EXPECT_TRUE(to.named_parameters()[item.key()].equal(item.value())) << item.key();
  }
  for (const auto& item : from.named_buffers()) {
    EXPECT_TRUE(to.named_buffers()[item.key()].equal(item.value())) << item.key();
  }
  EXPECT_EQ(to.embedding->weight.const_data_ptr(), memory);
  EXPECT_TRUE(to.embedding->weight.requires_grad());
}

TEST_F(ModuleFileTest, TiedTensorsAreWrittenOnceAndAnyNameWillDo) {
  TiedModule from, to;
  fill(from);
  save_module(from, file_);
  const auto file = checkpoint::load_safetensors(file_);
  EXPECT_TRUE(file.tensors.contains("decoder.weight"));
  EXPECT_FALSE(file.tensors.contains("embedding.weight"));
  EXPECT_EQ(file.metadata.at("embedding.weight"), "decoder.weight");
  EXPECT_EQ(file.metadata.at("format"), "pt");

  write(from,
        [](auto& tensors) { tensors["embedding.weight"] = tensors.extract("decoder.weight").mapped(); });
  load_module(to, file_);
  EXPECT_TRUE(to.embedding->weight.equal(from.embedding->weight));

  write(from, [](auto& tensors) { tensors["embedding.weight"] = tensors.at("decoder.weight"); });
  EXPECT_NO_THROW(load_module(to, file_));
}

TEST_F(ModuleFileTest, OneErrorNamesAllThatDoesNotFitAndChangesNothing) {
  TiedModule from, to;
  fill(from);
  fill(to);
  const at::Tensor before = to.embedding->weight.detach().clone();
  write(from, [](auto& tensors) {
    tensors.erase("norm.running_var");
    tensors.erase("small");
    tensors["nobody"] = at::ones(1);
    tensors["norm.weight"] = at::ones(4);
    tensors["norm.bias"] = tensors["norm.bias"].to(at::kDouble);
  });
  EXPECT_EQ(error_of([&] { load_module(to, file_); }),
            "norm.bias has dtype F64, the module's F32; norm.weight has shape [4], the module's [3]; "
            "missing: norm.running_var, small; unexpected: nobody");
  EXPECT_TRUE(to.embedding->weight.equal(before));
  EXPECT_EQ(error_of([&] { load_module(to, file_, {.strict = false}); }),
            "norm.bias has dtype F64, the module's F32; norm.weight has shape [4], the module's [3]");
}

TEST_F(ModuleFileTest, MissingAndUnexpectedAreListedWhenNotStrict) {
  TiedModule from, to;
  fill(from);
  write(from, [](auto& tensors) {
    tensors.erase("decoder.weight");
    tensors["nobody"] = at::ones(1);
  });
  const auto result = load_module(to, file_, {.strict = false});
  EXPECT_EQ(result.missing, std::vector<std::string>{"decoder.weight"});
  EXPECT_EQ(result.unexpected, std::vector<std::string>{"nobody"});
  EXPECT_TRUE(to.norm->weight.equal(from.norm->weight));
}

TEST_F(ModuleFileTest, FilesThatCannotBeReadOrWritten) {
  TiedModule module;
  EXPECT_THROW(load_module(module, directory_ / "absent"), FileError);
  write_file_atomically(file_, "nonsense");
  EXPECT_THROW(load_module(module, file_), FileError);
  EXPECT_THROW(save_module(module, directory_ / "absent/model"), FileError);
}

}  // namespace
}  // namespace lockstep
