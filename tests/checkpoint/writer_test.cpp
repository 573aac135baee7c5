#include "lockstep/checkpoint/writer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/checkpoint/tied_module.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
/// Every test case has its folder, which does not exist yet.
class WriterTest : public testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : posix_files()->list(folder)) found.push_back(entry.name);
    return found;
  }

  TemporaryFolder temporary;
  fs::path folder = temporary.path() / "run";
};

using Names = std::vector<std::string>;

Snapshot small_snapshot(const Writer& writer, int64_t value) {
  Snapshot snapshot = writer.snapshot();
  snapshot.add_tensors("model.safetensors", {{"w", at::full({3}, value)}});
  snapshot.add_text("trainer_state.json", "{}");
  return snapshot;
}

void save(Writer& writer, int64_t step, std::set<std::string> kept = {}) {
  writer.begin(step, small_snapshot(writer, step));
  ASSERT_EQ(writer.wait(write_deadline).state, WriterState::written) << writer.status().error;
  writer.commit(std::move(kept));
  ASSERT_EQ(writer.wait(write_deadline).state, WriterState::idle) << writer.status().error;
  EXPECT_EQ(writer.status().warning, "");
}

void flip(const fs::path& path, size_t at) {
  std::string content = read_file(path);
  content.at(at) = static_cast<char>(content[at] ^ 1);
  std::ofstream(path, std::ios::binary) << content;
}

struct Refusals {
  std::vector<std::string> all;
  OnRefused call() {
    return [this](const fs::path& path, const std::string& reason) {
      all.push_back(path.filename().string() + ": " + reason);
    };
  }
};

TEST_F(WriterTest, WhatIsSavedIsRead) {
  Writer writer(folder, 0, 1);
  TiedModule module;
  StateDict state{{{"exp_avg", at::arange(6).view({2, 3}).t()}, {"empty", at::empty({0, 2})}},
                  {{"step", int64_t{7}}, {"lr", 0.1}, {"on", true}, {"name", std::string("adamw")}}};
  Snapshot snapshot = writer.snapshot();
  snapshot.add_module("model", *std::make_shared<TiedModule>(module));
  snapshot.add_state("optimizer", state);
  snapshot.add_text("config.json", "{\"a\": 1}\n");
  state.tensors["exp_avg"].zero_();  // the snapshot is a copy
  writer.begin(7, std::move(snapshot));
  ASSERT_EQ(writer.wait(write_deadline).state, WriterState::written) << writer.status().error;
  EXPECT_FALSE(latest(folder));
  writer.commit();
  ASSERT_EQ(writer.wait(write_deadline).state, WriterState::idle) << writer.status().error;

  EXPECT_EQ(names(), (Names{"checkpoint-7", "latest"}));
  EXPECT_EQ(read_file(folder / "latest"), "checkpoint-7\n");
  Refusals refusals;
  const auto checkpoint = latest(folder, refusals.call());
  ASSERT_TRUE(checkpoint);
  EXPECT_TRUE(refusals.all.empty()) << refusals.all.front();
  EXPECT_EQ(checkpoint->step(), 7);
  EXPECT_EQ(checkpoint->path(), folder / "checkpoint-7");
  EXPECT_EQ(checkpoint->name(), "checkpoint-7");
  EXPECT_EQ(checkpoint->read_text("config.json"), "{\"a\": 1}\n");
  EXPECT_TRUE(checkpoint->has("optimizer.safetensors"));
  EXPECT_TRUE(checkpoint->has_tensors("model"));
  EXPECT_FALSE(checkpoint->has_tensors("scheduler"));
  const StateDict read = checkpoint->read_state("optimizer");
  EXPECT_TRUE(read.tensors.at("exp_avg").equal(at::arange(6).view({2, 3}).t()));
  EXPECT_EQ(read.tensors.at("empty").sizes(), at::IntArrayRef({0, 2}));
  EXPECT_EQ(read.scalars, state.scalars);
  EXPECT_THROW(checkpoint->read_text("nothing"), FileError);
  EXPECT_THROW(checkpoint->read_state("model"), FileError);
}

TEST_F(WriterTest, ReadTensorsMayBeWrittenAndTheFileStays) {
  Writer writer(folder, 0, 1);
  save(writer, 1);
  const auto checkpoint = *latest(folder);
  at::Tensor tensor = checkpoint.read_tensors("model").tensors.at("w");
  tensor.fill_(5);
  EXPECT_TRUE(tensor.equal(at::full({3}, 5, at::kLong)));
  EXPECT_NO_THROW(open(checkpoint.path()));
}

TEST_F(WriterTest, LargeFilesAreShardedAsTransformersDoes) {
  Writer writer(folder, 0, 1, {.max_shard_bytes = 1000});
  std::map<std::string, at::Tensor> tensors;
  for (int i = 0; i < 6; ++i) tensors["t" + std::to_string(i)] = at::full({100}, i, at::kFloat);
  tensors["large"] = at::full({300}, 9, at::kFloat);
  Snapshot snapshot = writer.snapshot();
  snapshot.add_tensors("model.safetensors", tensors);
  writer.begin(1, std::move(snapshot));
  writer.wait(write_deadline);
  writer.commit();
  ASSERT_EQ(writer.wait(write_deadline).state, WriterState::idle) << writer.status().error;
  const auto checkpoint = *latest(folder);
  EXPECT_TRUE(checkpoint.has("model-00001-of-00004.safetensors"));
  EXPECT_EQ(load_safetensors(checkpoint.path() / "model-00001-of-00004.safetensors").tensors.size(), 1);
  EXPECT_EQ(load_safetensors(checkpoint.path() / "model-00002-of-00004.safetensors").tensors.size(), 2);
  EXPECT_FALSE(checkpoint.has("model.safetensors"));
  const std::string index = checkpoint.read_text("model.safetensors.index.json");
  EXPECT_NE(index.find("\"total_size\": 3600"), std::string::npos) << index;
  EXPECT_NE(index.find("\"total_parameters\": 900"), std::string::npos) << index;
  EXPECT_NE(index.find("\"t3\": \"model-00003-of-00004.safetensors\""), std::string::npos) << index;
  const auto read = checkpoint.read_tensors("model").tensors;
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(read.at(name).equal(tensor)) << name;
}

TEST_F(WriterTest, TwoRanksWriteOneCheckpoint) {
  Writer first(folder, 0, 2), second(folder, 1, 2);
  second.begin(4, [&] {
    Snapshot snapshot = second.snapshot();
    snapshot.add_text("rng_state_1.json", "1");
    return snapshot;
  }());
  ASSERT_EQ(second.wait(write_deadline).state, WriterState::written);
  first.begin(4, small_snapshot(first, 4));
  ASSERT_EQ(first.wait(write_deadline).state, WriterState::written);
  second.commit();
  EXPECT_EQ(second.status().state, WriterState::idle);
  first.commit();
  ASSERT_EQ(first.wait(write_deadline).state, WriterState::idle) << first.status().error;
  const auto checkpoint = *latest(folder);
  EXPECT_EQ(checkpoint.world_size(), 2);
  EXPECT_EQ(checkpoint.read_text("rng_state_1.json"), "1");
  EXPECT_EQ(checkpoint.manifest().files.size(), 3);
  Names files;
  for (const auto& entry : posix_files()->list(checkpoint.path())) files.push_back(entry.name);
  EXPECT_EQ(files, (Names{"manifest.json", "model.safetensors", "rng_state_1.json", "trainer_state.json"}));
}

TEST_F(WriterTest, ARankThatHasNotWrittenAndOneFileOfTwoRanksAreErrors) {
  Writer first(folder, 0, 2), second(folder, 1, 2);
  first.begin(4, small_snapshot(first, 4));
  ASSERT_EQ(first.wait(write_deadline).state, WriterState::written);
  first.commit();
  EXPECT_EQ(first.wait(write_deadline).state, WriterState::failed);
  EXPECT_NE(first.status().error.find(".rank-1.json"), std::string::npos) << first.status().error;
  first.discard();
  EXPECT_TRUE(names().empty());

  first.begin(4, small_snapshot(first, 4));
  ASSERT_EQ(first.wait(write_deadline).state, WriterState::written);
  second.begin(4, small_snapshot(second, 4));
  ASSERT_EQ(second.wait(write_deadline).state, WriterState::written);
  first.commit();
  EXPECT_EQ(first.wait(write_deadline).state, WriterState::failed);
  EXPECT_NE(first.status().error.find("each file is one rank's"), std::string::npos) << first.status().error;
  second.discard();
  first.discard();
  EXPECT_TRUE(names().empty());
}

TEST_F(WriterTest, OldOnesArePrunedButNotTheKept) {
  Writer writer(folder, 0, 1, {.save_total_limit = 2});
  for (const int64_t step : {10, 20, 30, 40, 100}) save(writer, step, {"checkpoint-20"});
  EXPECT_EQ(names(), (Names{"checkpoint-100", "checkpoint-20", "latest"}));
}

TEST_F(WriterTest, TheCheckpointsOfAnAbandonedContinuationAreTheFirstToGo) {
  {
    Writer writer(folder, 0, 1);
    for (const int64_t step : {10, 20, 30}) save(writer, step);
  }
  Writer writer(folder, 0, 1, {.save_total_limit = 2});
  save(writer, 15);
  EXPECT_EQ(names(), (Names{"checkpoint-10", "checkpoint-15", "latest"}));
}

TEST_F(WriterTest, ASecondSaveOfAStepReplacesTheFirst) {
  Writer writer(folder, 0, 1);
  save(writer, 3);
  Snapshot snapshot = writer.snapshot();
  snapshot.add_text("other.json", "2");
  writer.begin(3, std::move(snapshot));
  writer.wait(write_deadline);
  writer.commit();
  ASSERT_EQ(writer.wait(write_deadline).state, WriterState::idle) << writer.status().error;
  EXPECT_EQ(names(), (Names{"checkpoint-3", "latest"}));
  EXPECT_TRUE(latest(folder)->has("other.json"));
  EXPECT_FALSE(latest(folder)->has("trainer_state.json"));
}

TEST_F(WriterTest, ADamagedOneIsRefusedByNameAndTheOneBeforeIsUsed) {
  Writer writer(folder, 0, 1);
  for (const int64_t step : {10, 20, 30}) save(writer, step);
  flip(folder / "checkpoint-30" / "model.safetensors", 90);
  fs::remove(folder / "checkpoint-20" / "trainer_state.json");
  Refusals refusals;
  const auto checkpoint = latest(folder, refusals.call());
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->step(), 10);
  ASSERT_EQ(refusals.all.size(), 2);
  EXPECT_NE(refusals.all[0].find("checkpoint-30/model.safetensors is damaged: its hash is"),
            std::string::npos)
      << refusals.all[0];
  EXPECT_NE(refusals.all[1].find("checkpoint-20/trainer_state.json: No such file"), std::string::npos)
      << refusals.all[1];
  EXPECT_THROW(open(folder / "checkpoint-30"), FileError);
  EXPECT_NO_THROW(open(folder / "checkpoint-30", {.verify = false}));
}

TEST_F(WriterTest, TheLatestFileIsNotNeeded) {
  Writer writer(folder, 0, 1);
  for (const int64_t step : {10, 20}) save(writer, step);
  std::ofstream(folder / "latest") << "checkpoint-10\n";
  Refusals refusals;
  EXPECT_EQ(latest(folder, refusals.call())->step(), 20);
  ASSERT_EQ(refusals.all.size(), 1);
  EXPECT_NE(refusals.all[0].find("latest says \"checkpoint-10\\n\"; the newest complete checkpoint is "
                                 "checkpoint-20"),
            std::string::npos)
      << refusals.all[0];
  fs::remove(folder / "latest");
  EXPECT_EQ(latest(folder)->step(), 20);
  EXPECT_FALSE(latest(temporary.path() / "nothing"));
}

TEST_F(WriterTest, MemoryIsUsedAgain) {
  Writer writer(folder, 0, 1);
  const at::Tensor large = at::full({1 << 20}, 1, at::kFloat);
  const auto memory_of = [&] {
    Snapshot snapshot = writer.snapshot();
    snapshot.add_tensors("model.safetensors", {{"w", large}});
    const char* memory = snapshot.files().front().data.memory.get();
    writer.begin(1, std::move(snapshot));
    writer.wait(write_deadline);
    writer.discard();
    return memory;
  };
  const char* const first = memory_of();
  EXPECT_EQ(memory_of(), first);
}

TEST_F(WriterTest, AtMostOneIsInFlightAndTheOrderOfCallsIsChecked) {
  Writer writer(folder, 0, 1);
  EXPECT_THROW(writer.commit(), Error);
  writer.begin(1, small_snapshot(writer, 1));
  EXPECT_THROW(writer.begin(2, small_snapshot(writer, 2)), Error);
  writer.discard();
  EXPECT_THROW(writer.begin(-1, small_snapshot(writer, 2)), ValueError);
  EXPECT_THROW(Writer(folder, 2, 2), ValueError);
  Snapshot snapshot;
  snapshot.add_text("a.json", "");
  EXPECT_THROW(snapshot.add_text("a.json", ""), ValueError);
  EXPECT_THROW(snapshot.add_text("manifest.json", ""), ValueError);
  EXPECT_THROW(snapshot.add_text("../a", ""), ValueError);
  EXPECT_THROW(snapshot.add_tensors("a.bin", {}), ValueError);
}

}  // namespace
}  // namespace lockstep::checkpoint
