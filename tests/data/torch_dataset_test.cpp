// LibTorch's data sets in our DataLoader, beside LibTorch's own loader.
#include "lockstep/data/torch_dataset.h"

#include <gtest/gtest.h>
#include <torch/data.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/sampler.h"
#include "tests/text/temporary_directory.h"

namespace lockstep {
namespace {

namespace datasets = torch::data::datasets;
namespace samplers = torch::data::samplers;
namespace transforms = torch::data::transforms;
using torch::data::Example;

constexpr BatchSharding kOneRank{.num_replicas = 1, .rank = 0};

struct Numbers : datasets::Dataset<Numbers> {
  explicit Numbers(size_t of) : count(of) {}
  Example<> get(size_t i) override {
    const auto number = static_cast<double>(i);
    return {torch::full({2}, number), torch::tensor(static_cast<int64_t>(i))};
  }
  std::optional<size_t> size() const override { return count; }
  size_t count;
};

std::vector<double> flat(const at::Tensor& tensor) {
  const auto values = tensor.to(torch::kDouble).flatten().contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

using Seen = std::vector<std::vector<double>>;  // of each batch: data, then target

template <class Loader>
Seen of_libtorch(Loader& loader) {
  Seen seen;
  for (auto& batch : *loader) seen.push_back(flat(batch.data)), seen.push_back(flat(batch.target));
  return seen;
}

Seen of_ours(DataLoader& loader) {
  Seen seen;
  for (const auto& batch : loader) seen.push_back(flat(batch["data"])), seen.push_back(flat(batch["target"]));
  return seen;
}

class TorchDataset : public testing::TestWithParam<int> {
 protected:
  static DataLoaderOptions options(int64_t batch_size) {
    return {.batch_size = batch_size, .num_workers = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, TorchDataset, testing::Values(0, 1, 3));

auto transformed(size_t size) {
  return Numbers(size)
      .map(transforms::Normalize<>(3., .5))
      .map(transforms::Lambda<Example<>>(
          [](Example<> example) { return Example<>(example.data * 2, example.target + 1); }))
      .map(transforms::Stack<>());
}

TEST_P(TorchDataset, GivesTheBatchesOfLibTorchsLoader) {
  for (const int ranks : {1, 2, 3}) {
    for (int rank = 0; rank < ranks; ++rank) {
      DistributedSampler sampler(23, {.num_replicas = ranks, .rank = rank, .seed = 5});
      auto theirs = torch::data::make_data_loader(transformed(23), TorchDataSampler(sampler), 4);
      DataLoader ours(torch_dataset(transformed(23)), sampler, options(4));
      for (const int epoch : {0, 1}) {
        sampler.set_epoch(epoch);
        EXPECT_EQ(of_ours(ours), of_libtorch(theirs));
      }
    }
  }
}

TEST_P(TorchDataset, StacksWhatNoTransformHasStacked) {
  auto theirs =
      torch::data::make_data_loader<samplers::SequentialSampler>(Numbers(7).map(transforms::Stack<>()), 3);
  const Dataset dataset = torch_dataset(Numbers(7));
  EXPECT_EQ(dataset.size, 7);
  DataLoader ours(dataset, {0, 1, 2, 3, 4, 5, 6}, options(3));
  EXPECT_EQ(of_ours(ours), of_libtorch(theirs));
  DataLoader unlabeled(torch_dataset(datasets::TensorDataset(torch::arange(6).view({3, 2}))), {2, 0},
                       options(2));
  const auto batch = unlabeled.next();
  EXPECT_EQ(flat((*batch)["data"]), (std::vector<double>{4, 5, 0, 1}));
  EXPECT_FALSE(batch->contains("target"));
}

struct Labeled : datasets::Dataset<Labeled, Example<float, int>> {
  Example<float, int> get(size_t i) override { return {static_cast<float>(i) / 2, static_cast<int>(i)}; }
  std::optional<size_t> size() const override { return 3; }
};

TEST_P(TorchDataset, NumbersBecomeTensors) {
  DataLoader loader(torch_dataset(Labeled()), {2, 1}, options(2));
  const auto batch = *loader.next();
  EXPECT_EQ(batch["data"].scalar_type(), torch::kFloat);
  EXPECT_EQ(flat(batch["data"]), (std::vector<double>{1, .5}));
  EXPECT_EQ(batch["target"].scalar_type(), torch::kLong);
  EXPECT_EQ(flat(batch["target"]), (std::vector<double>{2, 1}));
}

TEST_P(TorchDataset, AFunctionMakesABatchOfAnythingElse) {
  struct Words : datasets::BatchDataset<Words, std::vector<std::string>> {
    std::vector<std::string> get_batch(c10::ArrayRef<size_t> numbers) override {
      std::vector<std::string> words;
      for (const size_t i : numbers) words.emplace_back(i + 1, 'x');
      return words;
    }
    std::optional<size_t> size() const override { return 4; }
  };
  const auto lengths = [](const std::vector<std::string>& words) {
    at::Tensor of_words = torch::zeros({static_cast<int64_t>(words.size())});
    for (size_t i = 0; i < words.size(); ++i) {
      of_words[static_cast<int64_t>(i)] = static_cast<double>(words[i].size());
    }
    return Batch{{"length", of_words}};
  };
  DataLoader loader(torch_dataset(Words(), lengths), {0, 1, 2, 3}, options(3));
  EXPECT_EQ(flat((*loader.next())["length"]), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(flat((*loader.next())["length"]), (std::vector<double>{4}));
}

TEST_P(TorchDataset, FilesOfMnist) {
  const TemporaryDirectory folder;
  const auto big_endian = [](std::ofstream& file, uint32_t value) {
    for (const int shift : {24, 16, 8, 0}) file.put(static_cast<char>(value >> shift));
  };
  std::ofstream images(folder.path() / "train-images-idx3-ubyte", std::ios::binary);
  std::ofstream labels(folder.path() / "train-labels-idx1-ubyte", std::ios::binary);
  for (const uint32_t value : {2051U, 60000U, 28U, 28U}) big_endian(images, value);
  for (const uint32_t value : {2049U, 60000U}) big_endian(labels, value);
  for (int i = 0; i < 60000; ++i) {
    images << std::string(784, static_cast<char>(i % 251));
    labels.put(static_cast<char>(i % 10));
  }
  images.close(), labels.close();
  const auto mnist = [&] {
    return datasets::MNIST(folder.path())
        .map(transforms::Normalize<>(.1307, .3081))
        .map(transforms::Stack<>());
  };
  DistributedSampler sampler(60000, {.num_replicas = 100, .rank = 7});
  auto theirs = torch::data::make_data_loader(mnist(), TorchDataSampler(sampler), 64);
  DataLoader ours(torch_dataset(mnist()), sampler, options(64));
  EXPECT_EQ(of_ours(ours), of_libtorch(theirs));
}

TEST_P(TorchDataset, AnExceptionComesOutAtItsBatch) {
  struct Bad : Numbers {
    using Numbers::Numbers;
    Example<> get(size_t i) override {
      if (i == 3) throw std::runtime_error("sample 3 is bad");
      return Numbers::get(i);
    }
  };
  DataLoader loader(torch_dataset(Bad(6)), {0, 1, 2, 3, 4, 5}, options(2));
  EXPECT_TRUE(loader.next());
  EXPECT_THROW(loader.next(), std::runtime_error);
  EXPECT_EQ(loader.samples(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(flat((*loader.next())["target"]), (std::vector<double>{4, 5}));
  EXPECT_FALSE(loader.next());
}

struct Endless : datasets::Dataset<Endless> {
  Example<> get(size_t /*i*/) override { return {}; }
  std::optional<size_t> size() const override { return std::nullopt; }
};

TEST(TorchDatasets, OneWithoutASizeIsRefused) {
  try {
    torch_dataset(Endless());
    FAIL() << "no exception";
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("size() of the data set is nullopt"), std::string::npos)
        << error.what();
  }
}

/// Not thread-safe; counts its copies, and the calls that met another one in the same object.
struct Counting : Numbers {
  using Numbers::Numbers;
  Counting(const Counting& other)
      : Numbers(other), copies(other.copies), met(other.met), inside(other.inside), most(other.most) {
    ++*copies;
  }
  Counting(Counting&&) = default;
  Counting& operator=(const Counting&) = delete;
  Counting& operator=(Counting&&) = delete;
  ~Counting() override = default;
  Example<> get(size_t i) override {
    if (busy.test_and_set()) ++*met;
    const int now = ++*inside;
    for (int before = *most; before < now && !most->compare_exchange_weak(before, now);) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    --*inside;
    busy.clear();
    return Numbers::get(i);
  }
  std::shared_ptr<std::atomic<int>> copies = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<int>> met = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<int>> inside = std::make_shared<std::atomic<int>>(0);  // calls of all copies
  std::shared_ptr<std::atomic<int>> most = std::make_shared<std::atomic<int>>(0);    // of them at once
  struct Flag : std::atomic_flag {
    Flag() = default;
    Flag(const Flag& /*other*/) : std::atomic_flag() {}
    Flag& operator=(const Flag&) = delete;
    ~Flag() = default;
  } busy{};
};

TEST_P(TorchDataset, EachWorkerHasADatasetOfItsOwnAndOneWorkerNone) {
  Counting counting(100);
  const auto copies = counting.copies, met = counting.met;
  DistributedSampler sampler(100, {.num_replicas = 1, .rank = 0, .shuffle = false});
  DataLoader loader(torch_dataset(std::move(counting)), sampler, options(2));
  EXPECT_EQ(of_ours(loader).size(), 100);
  EXPECT_EQ(*met, 0);
  EXPECT_LE(*copies, std::max(0, GetParam() - 1));
}

TEST(TorchDatasets, WorkersUseTheirCopiesAtTheSameTime) {
  Counting counting(4);
  const auto most = counting.most;
  // A worker that has to wait for a data set copies the one that comes back, so that it takes a while.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  DataLoader loader(torch_dataset(counting), std::vector<int64_t>(20), {.batch_size = 1, .num_workers = 3});
  while (*most < 2 && std::chrono::steady_clock::now() < deadline) EXPECT_EQ(of_ours(loader).size(), 40);
  EXPECT_GE(*most, 2);
}

TEST_P(TorchDataset, OneThatCannotBeCopiedServesOneWorkerAtATime) {
  struct Moved : Numbers {
    explicit Moved(size_t of) : Numbers(of) {}
    std::unique_ptr<int> inside = std::make_unique<int>(0);
    Example<> get(size_t i) override {
      EXPECT_EQ(++*inside, 1);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      --*inside;
      return Numbers::get(i);
    }
  };
  DistributedSampler sampler(30, {.num_replicas = 1, .rank = 0});
  DataLoader loader(torch_dataset(Moved(30)), sampler, options(3));
  EXPECT_EQ(of_ours(loader).size(), 20);
}

// --- one after the other -------------------------------------------------------------------------------

/// A StatefulDataset: numbers from 0 to `size`, and how often it was reset is added to the targets.
struct Stream : datasets::StatefulDataset<Stream> {
  explicit Stream(int64_t of, int64_t bad_one = -1) : size_of_pass(of), bad(bad_one) {}
  std::optional<std::vector<Example<>>> get_batch(size_t count) override {
    std::vector<Example<>> batch;
    const int64_t first = next;
    for (; batch.size() < count && next < size_of_pass; ++next) {
      batch.emplace_back(torch::full({1}, next), torch::tensor(100 * passes + next));
    }
    if (first <= bad && bad < next) throw std::runtime_error("sample " + std::to_string(bad) + " is bad");
    if (batch.empty()) return std::nullopt;
    return batch;
  }
  std::optional<size_t> size() const override { return std::nullopt; }
  void reset() override { next = 0, ++passes; }
  void save(torch::serialize::OutputArchive& /*archive*/) const override {}
  void load(torch::serialize::InputArchive& /*archive*/) override {}
  int64_t size_of_pass, bad, next = -1, passes = -1;
};

TEST_P(TorchDataset, AStatefulDatasetGivesWhatItGivesLibTorchsLoader) {
  const auto stream = [] {
    return Stream(11).map(transforms::Normalize<>(2., 4.)).map(transforms::Stack<>());
  };
  auto theirs = torch::data::make_data_loader(stream(), torch::data::DataLoaderOptions(4));
  DataLoader ours(torch_iterable_dataset(stream()), kOneRank, options(4));
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(of_ours(ours), of_libtorch(theirs)) << epoch;
  EXPECT_EQ(ours.num_batches(), 3);
}

TEST_P(TorchDataset, ALoopThatWasLeftIsOverAndNothingIsReadBeforeTheFirst) {
  auto stream = datasets::make_shared_dataset<Stream>(11);
  DataLoader loader(torch_iterable_dataset(stream), kOneRank, options(4));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(stream->passes, -1);
  EXPECT_THROW(loader.num_batches(), Error);
  for (const auto& batch : loader) {
    EXPECT_EQ(flat(batch["target"]), (std::vector<double>{0, 1, 2, 3}));
    EXPECT_TRUE(loader.samples().empty());
    break;
  }
  EXPECT_EQ(of_ours(loader).at(1), (std::vector<double>{100, 101, 102, 103}));
  EXPECT_FALSE(loader.next());
  EXPECT_FALSE(loader.next());
  EXPECT_EQ(stream->passes, 1);
  EXPECT_EQ(of_ours(loader).at(1), (std::vector<double>{200, 201, 202, 203}));
}

TEST_P(TorchDataset, RanksTakeTurnsAndTheLastRoundIsWhole) {
  // 11 samples in batches of 2: 0 1, 2 3, 4 5, 6 7, 8 9, 10.
  const std::vector<std::vector<std::vector<double>>> expected = {
      {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10}}, {{0, 1}, {4, 5}, {8, 9}}, {{0, 1}, {6, 7}}, {{0, 1}}};
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      DataLoader loader(torch_iterable_dataset(Stream(11)), {.num_replicas = ranks, .rank = rank},
                        options(2));
      std::vector<std::vector<double>> seen;
      for (const auto& batch : loader) seen.push_back(flat(batch["data"]));
      EXPECT_EQ(seen.size(), static_cast<size_t>(6 / ranks));
      if (rank == 0) EXPECT_EQ(seen, expected[static_cast<size_t>(ranks - 1)]);
      EXPECT_EQ(seen.front().front(), 2 * rank);
    }
  }
}

TEST_P(TorchDataset, FewerBatchesThanRanksAreAnErrorAndNoneIsAnEmptyPass) {
  DataLoader few(torch_iterable_dataset(Stream(5)), {.num_replicas = 4, .rank = 0}, options(2));
  try {
    few.next();
    FAIL() << "no exception";
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("the dataset ended after 3 of the 4 batches"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(few.next());
  DataLoader none(torch_iterable_dataset(Stream(0)), {.num_replicas = 4, .rank = 0}, options(2));
  EXPECT_FALSE(none.next());
}

TEST_P(TorchDataset, AnExceptionOfAStreamTakesThePlaceOfItsBatch) {
  DataLoader loader(torch_iterable_dataset(Stream(9, 4)), kOneRank, options(3));
  EXPECT_TRUE(loader.next());
  EXPECT_THROW(loader.next(), std::runtime_error);
  EXPECT_EQ(flat((*loader.next())["data"]), (std::vector<double>{6, 7, 8}));
  const StateDict behind = loader.state_dict();
  EXPECT_FALSE(loader.next());
  // On several ranks all of them meet it in the same round.
  for (int rank = 0; rank < 2; ++rank) {
    DataLoader one(torch_iterable_dataset(Stream(9, 4)), {.num_replicas = 2, .rank = rank}, options(3));
    EXPECT_THROW(one.next(), std::runtime_error) << rank;
  }
  DataLoader resumed(torch_iterable_dataset(Stream(9, 4)), kOneRank, options(3));
  resumed.load_state_dict(behind);
  EXPECT_FALSE(resumed.next());
}

TEST_P(TorchDataset, GoesOnInTheMiddleOfAPassAlsoWithAnotherNumberOfRanks) {
  for (const int before : {1, 2, 4}) {
    DataLoader saved(torch_iterable_dataset(Stream(100)), {.num_replicas = before, .rank = 0}, options(3));
    for (int given = 0; given < 8 / before; ++given) saved.next();
    const StateDict state = saved.state_dict();
    for (const int after : {1, 2, 4, 8}) {
      for (int rank = 0; rank < after; ++rank) {
        auto stream = datasets::make_shared_dataset<Stream>(100);
        DataLoader loader(torch_iterable_dataset(stream), {.num_replicas = after, .rank = rank}, options(3));
        loader.next();
        loader.load_state_dict(state);
        int batches = 0;
        for (const auto& batch : loader) {
          EXPECT_EQ(flat(batch["data"]).front(), 3 * (8 + batches++ * after + rank));
        }
        EXPECT_EQ(batches, (34 - 8) / after);
        EXPECT_EQ(stream->passes, 1);  // one for next(), one for the place
      }
    }
    DataLoader three(torch_iterable_dataset(Stream(100)), {.num_replicas = 3, .rank = 0}, options(3));
    EXPECT_THROW(three.load_state_dict(state), ValueError);
    DataLoader other_size(torch_iterable_dataset(Stream(100)), kOneRank, options(4));
    EXPECT_THROW(other_size.load_state_dict(state), ValueError);
    DataLoader shorter(torch_iterable_dataset(Stream(10)), kOneRank, options(3));
    shorter.load_state_dict(state);  // which reads nothing yet
    EXPECT_THROW(shorter.next(), ValueError);
    EXPECT_EQ(flat((*shorter.next())["data"]).front(), 0);  // a new pass
  }
}

TEST_P(TorchDataset, AStateOfThePlaceZeroBeginsOnce) {
  auto stream = datasets::make_shared_dataset<Stream>(6);
  DataLoader loader(torch_iterable_dataset(stream), kOneRank, options(3));
  loader.load_state_dict(loader.state_dict());
  EXPECT_EQ(of_ours(loader).size(), 4);
  EXPECT_EQ(stream->passes, 0);
  EXPECT_EQ(of_ours(loader).size(), 4);
  EXPECT_EQ(stream->passes, 1);
}

struct Chunks : datasets::ChunkDataReader<Example<>> {
  using BatchType = ChunkType;
  std::vector<Example<>> read_chunk(size_t chunk) override {
    std::vector<Example<>> read;
    for (int i = 0; i < 6; ++i) {
      const auto number = static_cast<int64_t>(chunk) * 6 + i;
      read.emplace_back(torch::full({1}, number), torch::tensor(number));
    }
    return read;
  }
  size_t chunk_count() override { return 5; }
  void reset() override {}
};

TEST_P(TorchDataset, ChunksOfARank) {
  for (const int ranks : {1, 2}) {
    std::vector<double> all;
    for (int rank = 0; rank < ranks; ++rank) {
      DistributedSampler sampler(5, {.num_replicas = ranks, .rank = rank, .drop_last = false});
      const auto chunks = [&] {
        using Dataset = datasets::ChunkDataset<Chunks, TorchDataSampler, samplers::SequentialSampler>;
        return datasets::make_shared_dataset<Dataset>(Chunks(), TorchDataSampler(sampler),
                                                      samplers::SequentialSampler(0),
                                                      datasets::ChunkDatasetOptions(1, 4))
            .map(transforms::Stack<>());
      };
      auto theirs = torch::data::make_data_loader(chunks(), torch::data::DataLoaderOptions(4));
      DataLoader ours(torch_iterable_dataset(chunks()), kOneRank, options(4));
      for (const int epoch : {0, 1}) {
        sampler.set_epoch(epoch);
        const Seen seen = of_ours(ours);
        EXPECT_EQ(seen, of_libtorch(theirs));
        std::vector<double> targets;
        for (size_t i = 1; i < seen.size(); i += 2)
          targets.insert(targets.end(), seen[i].begin(), seen[i].end());
        EXPECT_EQ(targets.size(), sampler.indices().size() * 6);
        EXPECT_EQ(targets.front(), static_cast<double>(sampler.indices().front()) * 6);
      }
    }
  }
}

TEST_P(TorchDataset, AStreamWithoutAnEnd) {
  struct Endless : datasets::StreamDataset<Endless> {
    std::vector<Example<>> get_batch(size_t count) override {
      std::vector<Example<>> batch;
      for (size_t i = 0; i < count; ++i, ++next)
        batch.emplace_back(torch::full({1}, next), torch::tensor(next));
      return batch;
    }
    std::optional<size_t> size() const override { return std::nullopt; }
    int64_t next = 0;
  };
  auto theirs = torch::data::make_data_loader(Endless().map(transforms::Stack<>()),
                                              samplers::StreamSampler(7), torch::data::DataLoaderOptions(3));
  DataLoader ours(torch_iterable_dataset(Endless().map(transforms::Stack<>()), {.epoch_size = 7}), kOneRank,
                  options(3));
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(of_ours(ours), of_libtorch(theirs));
  EXPECT_THROW(torch_iterable_dataset(Endless()), ValueError);
  EXPECT_THROW(torch_iterable_dataset(Stream(3), {.epoch_size = 3}), ValueError);
}

TEST(TorchDatasets, AnIterableDatasetOfOnesOwnIsRead) {
  int64_t next = 0;
  const IterableDataset own{.begin = [&] { next = 0; },
                            .next = [&](int64_t batch_size) -> std::function<Batch()> {
                              if (next >= 6) return {};
                              const int64_t first = std::exchange(next, next + batch_size);
                              return [=] { return Batch{{"x", torch::arange(first, first + batch_size)}}; };
                            }};
  DataLoader loader(own, {.num_replicas = 2, .rank = 1}, {.batch_size = 3, .num_workers = 2});
  EXPECT_EQ(flat((*loader.next())["x"]), (std::vector<double>{3, 4, 5}));
  EXPECT_FALSE(loader.next());
  EXPECT_THROW(DataLoader(own, kOneRank, {.drop_last = true}), ValueError);
  EXPECT_THROW(DataLoader(own, kOneRank, {.batch_size = 0}), ValueError);
  EXPECT_THROW(DataLoader(own, {.num_replicas = 2, .rank = 2}), ValueError);
  EXPECT_THROW(DataLoader(own, {.num_replicas = 0, .rank = 0}), ValueError);
  EXPECT_THROW(DataLoader(IterableDataset{}, kOneRank), ValueError);
  EXPECT_THROW(DataLoader(own, BatchSharding{}), Error);  // there is no job
}

TEST(TorchDatasets, BeginThatFailsIsCalledAgain) {
  int calls = 0, given = 0;
  DataLoader loader(IterableDataset{.begin =
                                        [&] {
                                          if (++calls == 1) throw std::runtime_error("no file");
                                          given = 0;
                                        },
                                    .next = [&](int64_t) -> std::function<Batch()> {
                                      if (given++ == 2) return {};
                                      return [] { return Batch{{"x", torch::zeros(1)}}; };
                                    }},
                    kOneRank, {.num_workers = 2});
  EXPECT_THROW(loader.begin(), std::runtime_error);
  int batches = 0;
  for (const auto& batch : loader) batches += static_cast<int>(batch.size());
  EXPECT_EQ(batches, 2);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace lockstep
