// Proof that saving survives a crash at any moment: everything that the file system may have kept of what was
// recorded is written out, and a checkpoint is looked for in it.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/parts.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/state/counters.h"
#include "tests/checkpoint/recorded_files.h"
#include "tests/checkpoint/temporary_folder.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t small_shards = 1000;
const std::string best = "checkpoint-10";

/// A recorded run: what was there at first, and what was done.
struct Recording {
  fs::path root;
  Tree before;
  std::vector<Operation> operations;
  int64_t returned_before = -1;  // the newest step whose save had returned at first
};

/// Every file of a checkpoint says which save has written it; several saves may be of one step.
int64_t save_number = 0;

/// Throws where the files of a checkpoint are not all of one save. Returns its number.
int64_t number_of(const Checkpoint& checkpoint) {
  std::set<int64_t> numbers;
  for (const char* const stem : {"model", "optimizer", "counters"}) {
    if (!checkpoint.has_tensors(stem)) continue;
    const auto read = checkpoint.read_tensors(stem);
    for (const auto& [name, tensor] : read.tensors) {
      numbers.insert(tensor.min().item<int64_t>());
      numbers.insert(tensor.max().item<int64_t>());
    }
    if (read.metadata.contains("scalars")) {
      numbers.insert(checkpoint.read_state(stem).get<int64_t>("test", "number"));
    }
  }
  for (const char* const file : {"trainer_state.json", "rng_state_1.json"}) {
    if (checkpoint.has(file)) numbers.insert(std::stoll(checkpoint.read_text(file)));
  }
  if (numbers.size() != 1) throw Error(checkpoint.path().string() + " has files of several saves");
  return *numbers.begin();
}

Snapshot snapshot_of(const Writer& writer, int rank, int64_t number) {
  Snapshot snapshot = writer.snapshot();
  if (rank == 1) {
    snapshot.add_text("rng_state_1.json", std::to_string(number));
    snapshot.add_state("optimizer", {{{"b", at::full({40}, number)}}, {{"number", number}}});
  } else {
    snapshot.add_tensors("model.safetensors",
                         {{"a", at::full({100}, number)}, {"c", at::full({90}, number)}});
    snapshot.add_text("trainer_state.json", std::to_string(number));
  }
  return snapshot;
}

/// Some ranks that save with a Writer each, all in this process.
struct Ranks {
  Ranks(const fs::path& folder, int count, WriterOptions options) : recorded(static_cast<size_t>(count)) {
    for (int rank = 0; rank < count; ++rank) {
      recorded[static_cast<size_t>(rank)] = std::make_shared<RecordedFiles>();
      options.files = recorded[static_cast<size_t>(rank)];
      writers.push_back(std::make_unique<Writer>(folder, rank, count, options));
    }
    collect();
  }

  /// The ranks write at the same time: their operations alternate.
  void collect() {
    size_t longest = 0;
    for (const auto& files : recorded) longest = std::max(longest, files->operations.size());
    for (size_t i = 0; i < longest; ++i) {
      for (const auto& files : recorded) {
        if (i < files->operations.size()) operations.push_back(files->operations[i]);
      }
    }
    for (const auto& files : recorded) files->operations.clear();
  }

  void write(int64_t step) {
    ++save_number;
    for (size_t rank = 0; rank < writers.size(); ++rank) {
      writers[rank]->begin(step, snapshot_of(*writers[rank], static_cast<int>(rank), save_number));
      if (writers[rank]->wait(write_deadline).state != WriterState::written) {
        throw Error(writers[rank]->status().error);
      }
    }
    collect();
  }

  void save(int64_t step) {
    write(step);
    for (size_t rank = writers.size(); rank-- > 0;) writers[rank]->commit({best});
    const auto status = writers[0]->wait(write_deadline);
    if (status.state != WriterState::idle || !status.warning.empty()) {
      throw Error(status.error + status.warning);
    }
    collect();
    operations.push_back({.kind = Operation::returned, .step = step});
  }

  std::vector<std::shared_ptr<RecordedFiles>> recorded;
  std::vector<std::unique_ptr<Writer>> writers;
  std::vector<Operation> operations{};
};

/// Several saves with pruning; killed when the ranks have written one more. Then a resume, which saves that
/// step again, replaces one, and goes on.
std::vector<Recording> record_writers(const fs::path& root, int ranks, uint64_t max_shard_bytes) {
  const WriterOptions options{.save_total_limit = 2, .max_shard_bytes = max_shard_bytes};
  const fs::path first = root / "first", second = root / "second";
  std::vector<Recording> recordings;
  fs::create_directories(first);
  Tree left;
  {
    Ranks run(first / "run", ranks, options);
    for (const int64_t step : {10, 20, 30}) run.save(step);
    run.write(40);
    left = read_tree(first);
    recordings.push_back({first, {}, run.operations});
  }
  write_tree(left, second);
  Ranks run(second / "run", ranks, options);
  for (const int64_t step : {40, 40, 50}) run.save(step);
  recordings.push_back({second, left, run.operations, 30});
  return recordings;
}

/// The calls of a loop of one's own, in one process.
Recording record_parts(const fs::path& root) {
  fs::create_directories(root);
  auto files = std::make_shared<RecordedFiles>();
  Counters counters;
  for (const int64_t step : {10, 20, 30}) {
    counters["number"] = ++save_number;
    save(root / "run" / checkpoint_name(step), {{"counters", counters}},
         {.save_total_limit = 1, .kept = {best}, .files = files});
    files->operations.push_back({.kind = Operation::returned, .step = step});
  }
  return {root, {}, files->operations};
}

/// All subsets of a few; of many some, always the same ones.
std::vector<std::vector<bool>> subsets(size_t count, uint32_t seed) {
  std::vector<std::vector<bool>> all;
  if (count <= 6) {
    for (size_t bits = 0; bits < size_t{1} << count; ++bits) {
      std::vector<bool> kept(count);
      for (size_t i = 0; i < count; ++i) kept[i] = (bits >> i & 1) != 0;
      all.push_back(std::move(kept));
    }
    return all;
  }
  for (const bool most : {false, true}) {
    all.emplace_back(count, most);
    for (size_t i = 0; i < count; ++i) {
      all.emplace_back(count, most);
      all.back()[i] = !most;
    }
  }
  std::mt19937 random(seed);
  for (int i = 0; i < 32; ++i) {
    std::vector<bool> kept(count);
    for (size_t j = 0; j < count; ++j) kept[j] = random() % 2 != 0;
    all.push_back(std::move(kept));
  }
  return all;
}

std::string signature(const Tree& tree) {
  Hash hash;
  for (const auto& [name, content] : tree) {
    hash.update(name + '\0' + std::to_string(content.size()) + '\0' + content);
  }
  return hash.hex();
}

std::string list_of(const Tree& tree) {
  std::string text;
  for (const auto& [name, content] : tree) text += "  " + name + " " + std::to_string(content.size()) + "\n";
  return text;
}

class CrashTest : public testing::Test {
 protected:
  /// Looks at every state that a crash can leave. Returns how many that nobody has seen before.
  size_t crash_everywhere(const Recording& recording) {
    Disk disk(recording.root, recording.before);
    int64_t returned = recording.returned_before;
    bool best_returned = returned >= 10;
    const size_t before = seen_.size();
    for (size_t done = 0; done <= recording.operations.size(); ++done) {
      for (const auto& kept : subsets(disk.pending(), static_cast<uint32_t>(done))) {
        const Tree tree = disk.after_crash(kept);
        if (!seen_.insert(signature(tree)).second) continue;
        look_at(tree, returned, best_returned);
        if (HasFailure()) {
          ADD_FAILURE() << "after operation " << done << " of " << recording.operations.size() << ":\n"
                        << list_of(tree);
          return seen_.size() - before;
        }
      }
      if (done == recording.operations.size()) break;
      const Operation& next = recording.operations[done];
      disk.apply(next);
      if (next.kind == Operation::returned) {
        returned = next.step;
        best_returned = true;
      }
    }
    return seen_.size() - before;
  }

  void look_at(const Tree& tree, int64_t returned, bool best_returned) {
    const fs::path root = temporary.path() / "state";
    write_tree(tree, root, there_);
    there_ = tree;
    const fs::path folder = root / "run";
    const auto refuse = [](const fs::path&, const std::string&) {};
    try {
      const auto found = latest(folder, refuse);
      if (returned >= 0) {
        ASSERT_TRUE(found) << "nothing was found, though the save of step " << returned << " had returned";
        EXPECT_GE(found->step(), returned);
      }
      if (best_returned) open(folder / best);
      const int64_t number = found ? number_of(*found) : -1;
      if (seen_.size() % 16 == 0) {
        there_.clear();
        go_on(folder, found, number);
        fs::remove_all(root);
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }

  /// A resume there finds the same checkpoint, cleans up, and saves.
  void go_on(const fs::path& folder, const std::optional<Checkpoint>& found, int64_t number) {
    Writer writer(folder, 0, 1,
                  {.max_shard_bytes = small_shards, .files = std::make_shared<RecordedFiles>()});
    const auto refuse = [](const fs::path&, const std::string&) {};
    const auto again = latest(folder, refuse);
    ASSERT_EQ(again.has_value(), found.has_value());
    if (again) {
      EXPECT_EQ(number_of(*again), number);
      EXPECT_EQ(again->name(), checkpoint_name(again->step()));
    }
    const int64_t next = again ? again->step() + 1 : 1;
    writer.begin(next, snapshot_of(writer, 0, 1000));
    ASSERT_EQ(writer.wait(write_deadline).state, WriterState::written) << writer.status().error;
    writer.commit();
    ASSERT_EQ(writer.wait(write_deadline).state, WriterState::idle) << writer.status().error;
    std::vector<std::string> problems;
    const auto newest =
        latest(folder, [&](const fs::path&, const std::string& reason) { problems.push_back(reason); });
    ASSERT_TRUE(newest);
    EXPECT_GE(newest->step(), next);
    for (const auto& entry : posix_files()->list(folder))
      EXPECT_FALSE(entry.name.starts_with('.')) << entry.name;
  }

  TemporaryFolder temporary;
  std::set<std::string> seen_;
  Tree there_;  // what look_at() has written
};

TEST_F(CrashTest, ACompleteCheckpointIsFoundAfterACrashAtAnyMoment) {
  std::vector<Recording> recordings{record_parts(temporary.path() / "parts")};
  const auto add = [&](std::vector<Recording> more) {
    std::move(more.begin(), more.end(), std::back_inserter(recordings));
  };
  add(record_writers(temporary.path() / "one", 1, 1 << 20));
  add(record_writers(temporary.path() / "two", 2, small_shards));
  for (const Recording& recording : recordings) {
    const size_t states = crash_everywhere(recording);
    std::printf("%zu operations, %zu distinct states\n", recording.operations.size(), states);
    ASSERT_FALSE(HasFailure());
  }
  std::printf("%zu distinct states of the folder\n", seen_.size());
  EXPECT_GE(seen_.size(), 1000);
}

/// The proof proves something: saving that leaves out one sort of sync is found out.
TEST_F(CrashTest, EverySyncIsNeeded) {
  const Recording recording = record_parts(temporary.path() / "parts");
  const auto newest_without = [&](const std::function<bool(const Operation&)>& left_out) -> int64_t {
    Disk disk(recording.root, {});
    for (const Operation& each : recording.operations) {
      if (!left_out(each)) disk.apply(each);
    }
    const fs::path root = temporary.path() / "state";
    fs::remove_all(root);
    write_tree(disk.after_crash(std::vector<bool>(disk.pending(), false)), root);
    const auto found = latest(root / "run", [](const fs::path&, const std::string&) {});
    return found ? found->step() : -1;
  };
  const auto syncs = [](Operation::Kind kind, std::string name) {
    return [=](const Operation& each) { return each.kind == kind && each.path.filename() == name; };
  };
  EXPECT_EQ(newest_without([](const Operation&) { return false; }), 30);
  EXPECT_EQ(newest_without(syncs(Operation::sync, "counters.safetensors")), -1);
  EXPECT_EQ(newest_without(syncs(Operation::sync, "manifest.json")), -1);
  EXPECT_EQ(newest_without(syncs(Operation::sync_directory, ".checkpoint-30.tmp")), 10);
  EXPECT_EQ(newest_without(syncs(Operation::sync_directory, "run")), -1);
  EXPECT_EQ(newest_without(syncs(Operation::sync_directory, "parts")), -1);
}

}  // namespace
}  // namespace lockstep::checkpoint
