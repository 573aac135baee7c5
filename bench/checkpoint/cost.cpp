// What a checkpoint costs the training that it is taken of.
//
//   checkpoint_cost FOLDER [MEGABYTES [ROUNDS]]    prints JSON, in seconds
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/places.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/cli/command_line.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

double seconds_of(const auto& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto in = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return in(used.ru_utime) + in(used.ru_stime);
}

/// As a BERT has them: many of a few megabytes.
std::map<std::string, at::Tensor> make_tensors(int64_t megabytes) {
  std::map<std::string, at::Tensor> tensors;
  constexpr int64_t kEach = 4;
  for (int64_t i = 0; i < megabytes / kEach; ++i) {
    at::Tensor tensor = at::empty({kEach * 1'000'000 / 4}, at::kFloat);
    tensor.fill_(static_cast<double>(i) * 0.001);
    tensors[fmt::format("layer.{:04}.weight", i)] = tensor;
  }
  return tensors;
}

void finish(checkpoint::Writer& writer) {
  if (writer.wait(600s).state != checkpoint::WriterState::written) throw Error(writer.status().error);
  writer.commit();
  if (writer.wait(600s).state != checkpoint::WriterState::idle) throw Error(writer.status().error);
}

/// Steps of a training that keeps all cores busy. `after_step` is called after each; returns the seconds.
double train(int steps, const auto& after_step) {
  const at::Tensor weight = at::full({1024, 1024}, 1e-3);
  at::Tensor hidden = at::full({1024, 1024}, 1e-3);
  return seconds_of([&] {
    for (int step = 0; step < steps; ++step) {
      hidden = at::mm(hidden, weight);
      after_step();
    }
  });
}

struct Settings {
  std::filesystem::path folder{};
  int64_t megabytes = 0;
  int rounds = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("FOLDER", &Settings::folder,
                                "Folder that gets the checkpoints; it need not exist"),
    {.name = "MEGABYTES",
     .member = &Settings::megabytes,
     .preset = "1300",
     .check = FlagCheck::at_least(1, "1 or more"),
     .words = "Size of a checkpoint in MB",
     .is_place = true},
    {.name = "ROUNDS",
     .member = &Settings::rounds,
     .preset = "5",
     .check = FlagCheck::at_least(1, "1 or more"),
     .words = "Rounds that are measured",
     .is_place = true},
});

int run(int argc, char** argv) {
  const auto given = parse_table<Settings>("checkpoint_cost",
                                           "Prints what a checkpoint costs the training that it is taken of",
                                           kFlags, argc, argv);
  if (!given) return 0;
  const auto [folder, megabytes, rounds] = *given;
  const auto tensors = make_tensors(megabytes);
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();

  std::vector<double> copies, blocked, background, hash_and_write, slow_down;
  uint64_t hash = 0;  // printed, so that it is computed
  std::unique_ptr<char[]> target(new char[bytes]);
  const auto copy = [&] {
    char* to = target.get();
    for (const auto& [name, tensor] : tensors) {
      std::memcpy(to, tensor.const_data_ptr(), tensor.nbytes());
      to += tensor.nbytes();
    }
  };
  copy();  // touches it
  {
    checkpoint::Writer writer(folder, 0, 1, {.save_total_limit = 1});
    // A training three times as long as writing and hashing, so that a save ends within it.
    constexpr int kCalibration = 50;
    const double step_seconds = train(kCalibration, [] {}) / kCalibration;
    const auto steps = static_cast<int>(3 * static_cast<double>(bytes) / 1e9 / step_seconds) + 1;
    for (int round = -1; round < rounds; ++round) {
      const double copied = seconds_of(copy);
      const double before = processor_seconds();
      const double own = seconds_of([&] {
        auto snapshot = writer.snapshot();
        snapshot.add_tensors("model.safetensors", tensors);
        writer.begin(round + 1, std::move(snapshot));
      });
      const double snapshot_processor = processor_seconds() - before;
      finish(writer);
      const double all = processor_seconds() - before - snapshot_processor;
      const double peer_before = processor_seconds();
      {
        // Hash, write and sync the same bytes by hand.
        hash += XXH3_64bits(target.get(), bytes);
        const UniqueFd file(
            ::open((folder / "by_hand").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        for (size_t done = 0; done < bytes;) {
          const ssize_t count = ::write(file.get(), target.get() + done, bytes - done);
          if (count <= 0) throw Error("cannot write by_hand");
          done += static_cast<size_t>(count);
        }
        ::fsync(file.get());
      }
      const double by_hand = processor_seconds() - peer_before;
      std::filesystem::remove(folder / "by_hand");
      // Train for the same steps without a save and with one.
      const auto nothing = [] {};
      const double plain = train(steps, nothing);
      const double saving = seconds_of([&] {
        auto snapshot = writer.snapshot();
        snapshot.add_tensors("model.safetensors", tensors);
        writer.begin(1000 + round, std::move(snapshot));
        bool is_committed = false;
        train(steps, [&] {
          if (!is_committed && writer.status().state == checkpoint::WriterState::written) {
            writer.commit();
            is_committed = true;
          }
        });
        if (!is_committed) {
          finish(writer);
        } else if (writer.wait(600s).state != checkpoint::WriterState::idle) {
          throw Error(writer.status().error);
        }
      });
      if (round < 0) continue;  // touches the snapshot's memory
      copies.push_back(copied);
      blocked.push_back(own);
      background.push_back(all);
      hash_and_write.push_back(by_hand);
      slow_down.push_back(saving - plain);
    }
  }
  // Loading: every tensor touched, beside reading the file, both from the page cache.
  std::vector<double> loads, reads;
  const auto newest = checkpoint::latest(folder);
  for (int round = 0; round < rounds; ++round) {
    double sum = 0;
    loads.push_back(seconds_of([&] {
      const auto opened = checkpoint::open(newest->path(), {.verify = false});
      for (const auto& [name, tensor] : opened.read_tensors("model").tensors) {
        std::memcpy(target.get(), tensor.const_data_ptr(), tensor.nbytes());
        sum += target[0];
      }
    }));
    reads.push_back(seconds_of([&] {
      std::ifstream file(newest->path() / "model.safetensors", std::ios::binary);
      file.read(target.get(), static_cast<std::streamsize>(bytes));
    }));
    if (sum == 0.5) throw Error("unexpected");
  }
  fmt::print(
      "{{\"bytes\": {}, \"hash\": {}, \"memcpy\": [{}], \"blocked\": [{}], \"background_cpu\": [{}], \"hash_and_write_cpu\": [{}], "
      "\"slow_down\": [{}], \"load\": [{}], \"read\": [{}]}}\n",
      bytes, hash, fmt::join(copies, ", "), fmt::join(blocked, ", "), fmt::join(background, ", "),
      fmt::join(hash_and_write, ", "), fmt::join(slow_down, ", "), fmt::join(loads, ", "),
      fmt::join(reads, ", "));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("checkpoint_cost", [&] { return run(argc, argv); });
}
