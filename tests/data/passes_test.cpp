// What the passes over one sampler give that follow each other: with set_epoch() and without, after a resume, by several loaders.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/data.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/random_key.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/train_sampler.h"

namespace lockstep::passes {
namespace {

using Indices = std::vector<int64_t>;
using Pass = std::vector<Indices>;

constexpr int64_t kSize = 22;
constexpr int64_t kBatch = 4;
// One rank of two: 11 samples, in batches of 4, 4 and 3.
const DistributedSamplerOptions kHalf{.num_replicas = 2, .rank = 1, .seed = 3};

Dataset numbers() {
  return {.size = kSize, .lengths = {}, .collate = [](const Indices& indices) {
            return Batch{{"number", at::tensor(indices, at::kLong)}};
          }};
}

Indices numbers_in(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

Indices flat(const Pass& pass) {
  Indices all;
  for (const auto& batch : pass) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

Indices rest(const Indices& order, int64_t from) { return {order.begin() + from, order.end()}; }

/// As LibTorch's MNIST.
struct Numbers : torch::data::datasets::BatchDataset<Numbers, Indices> {
  Indices get_batch(c10::ArrayRef<size_t> chosen) override { return {chosen.begin(), chosen.end()}; }
  std::optional<size_t> size() const override { return kSize; }
};

/// The ways to iterate over a sampler. A way makes a pass, of at most `most` batches, and counts each batch if it `counts`.
class Way {
 public:
  Way() = default;
  virtual ~Way() = default;
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  virtual Pass pass(bool counts = true, size_t most = 100) = 0;
};

class OneLoader : public Way {
 public:
  OneLoader(DistributedSampler& sampler, DataLoaderOptions options)
      : sampler_(sampler), loader_(numbers(), sampler, options) {}
  Pass pass(bool counts, size_t most) override {
    Pass seen;
    for (const Batch& batch : loader_) {
      seen.push_back(numbers_in(batch["number"]));
      if (counts) sampler_.advance(batch.size());
      if (seen.size() == most) break;
    }
    return seen;
  }

 private:
  DistributedSampler& sampler_;
  DataLoader loader_;
};

class LoaderForEachPass : public Way {
 public:
  LoaderForEachPass(DistributedSampler& sampler, DataLoaderOptions options)
      : sampler_(sampler), options_(options) {}
  Pass pass(bool counts, size_t most) override { return OneLoader(sampler_, options_).pass(counts, most); }

 private:
  DistributedSampler& sampler_;
  DataLoaderOptions options_;
};

class IndicesForEachPass : public Way {
 public:
  IndicesForEachPass(DistributedSampler& sampler, DataLoaderOptions options)
      : sampler_(sampler), options_(options) {}
  Pass pass(bool counts, size_t most) override {
    DataLoader loader(numbers(), sampler_.indices(), options_);
    Pass seen;
    while (const auto batch = loader.next()) {
      seen.push_back(numbers_in((*batch)["number"]));
      if (counts) sampler_.advance(batch->size());
      if (seen.size() == most) break;
    }
    return seen;
  }

 private:
  DistributedSampler& sampler_;
  DataLoaderOptions options_;
};

class LibTorchsLoader : public Way {
 public:
  LibTorchsLoader(DistributedSampler& sampler, DataLoaderOptions options)
      : sampler_(sampler),
        loader_(torch::data::make_data_loader(
            Numbers(), TorchDataSampler(sampler),
            torch::data::DataLoaderOptions(static_cast<size_t>(options.batch_size))
                .workers(static_cast<size_t>(options.num_workers))
                .drop_last(options.drop_last))) {}
  Pass pass(bool counts, size_t most) override {
    Pass seen;
    for (const Indices& batch : *loader_) {
      seen.push_back(batch);
      if (counts) sampler_.advance(static_cast<int64_t>(batch.size()));
      if (seen.size() == most) break;
    }
    return seen;
  }

 private:
  DistributedSampler& sampler_;
  std::unique_ptr<torch::data::StatelessDataLoader<Numbers, TorchDataSampler>> loader_;
};

class LibTorchsLoaderForEachPass : public Way {
 public:
  LibTorchsLoaderForEachPass(DistributedSampler& sampler, DataLoaderOptions options)
      : sampler_(sampler), options_(options) {}
  Pass pass(bool counts, size_t most) override {
    return LibTorchsLoader(sampler_, options_).pass(counts, most);
  }

 private:
  DistributedSampler& sampler_;
  DataLoaderOptions options_;
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Way>(DistributedSampler&, DataLoaderOptions)> make;
  bool is_told_of_ends = true;  ///< the sampler learns that a pass without advance() is over
};

template <class W>
Kind kind(std::string name, bool is_told_of_ends = true) {
  return {std::move(name),
          [](DistributedSampler& sampler, DataLoaderOptions options) -> std::unique_ptr<Way> {
            return std::make_unique<W>(sampler, options);
          },
          is_told_of_ends};
}

class Passes : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  static const Kind& kind() { return std::get<0>(GetParam()); }
  static DataLoaderOptions options() {
    return {.batch_size = kBatch, .num_workers = std::get<1>(GetParam())};
  }
  std::unique_ptr<Way> over(DistributedSampler& sampler) { return kind().make(sampler, options()); }
};
std::string name_of(const testing::TestParamInfo<std::tuple<Kind, int>>& info) {
  return std::get<0>(info.param).name + "With" + std::to_string(std::get<1>(info.param)) + "Workers";
}

/// Those whose sampler learns that a pass is over.
class PassesWithAnEnd : public Passes {};
/// Those whose sampler learns that a batch was dropped.
class PassesThatDrop : public Passes {};

const Kind kOneLoader = kind<OneLoader>("OneLoader");
const Kind kLoaderForEachPass = kind<LoaderForEachPass>("LoaderForEachPass", false);
const Kind kIndicesForEachPass = kind<IndicesForEachPass>("IndicesForEachPass", false);
const Kind kLibTorchsLoader = kind<LibTorchsLoader>("LibTorchsLoader");
const Kind kLibTorchsLoaderForEachPass =
    kind<LibTorchsLoaderForEachPass>("LibTorchsLoaderForEachPass", false);
INSTANTIATE_TEST_SUITE_P(Ways, Passes,
                         testing::Combine(testing::Values(kOneLoader, kLoaderForEachPass, kIndicesForEachPass,
                                                          kLibTorchsLoader, kLibTorchsLoaderForEachPass),
                                          testing::Values(0, 2)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Ways, PassesWithAnEnd,
                         testing::Combine(testing::Values(kOneLoader, kLibTorchsLoader),
                                          testing::Values(0, 2)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Ways, PassesThatDrop,
                         testing::Combine(testing::Values(kOneLoader, kLoaderForEachPass, kLibTorchsLoader),
                                          testing::Values(0, 2)),
                         name_of);

Indices whole_order(int64_t epoch = 0) {
  DistributedSampler sampler(kSize, kHalf);
  sampler.set_epoch(epoch);
  return sampler.indices();
}

/// What a training saves that has used so many batches of `epoch`.
StateDict state_after(int64_t epoch, size_t batches) {
  DistributedSampler sampler(kSize, kHalf);
  sampler.set_epoch(epoch);
  sampler.indices();
  for (size_t i = 0; i < batches; ++i) sampler.advance(i == 2 ? 3 : 4);
  return sampler.state_dict();
}

TEST_P(Passes, AreWholeWithoutSetEpoch) {
  for (const bool counts : {false, true}) {
    DistributedSampler sampler(kSize, kHalf);
    const auto way = over(sampler);
    for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(flat(way->pass(counts)), whole_order()) << pass << counts;
  }
}

TEST_P(Passes, AreWholeWithTheSameEpochAgain) {
  DistributedSampler sampler(kSize, kHalf);
  const auto way = over(sampler);
  for (int pass = 0; pass < 3; ++pass) {
    sampler.set_epoch(4);
    EXPECT_EQ(flat(way->pass()), whole_order(4)) << pass;
  }
}

TEST_P(Passes, BeginOnceWhereTheStateIsAndAreWholeThen) {
  for (const bool names_epoch : {false, true}) {
    for (const size_t used : {0, 1, 2}) {
      DistributedSampler sampler(kSize, kHalf);
      const auto way = over(sampler);
      sampler.load_state_dict(state_after(2, used));
      if (names_epoch) sampler.set_epoch(2);
      EXPECT_EQ(flat(way->pass()), rest(whole_order(2), static_cast<int64_t>(used) * kBatch));
      for (int pass = 0; pass < 2; ++pass)
        EXPECT_EQ(flat(way->pass()), whole_order(2)) << used << names_epoch;
    }
  }
}

TEST_P(PassesWithAnEnd, BeginOnceWhereTheStateIsAlsoIfNobodyCounts) {
  DistributedSampler sampler(kSize, kHalf);
  const auto way = over(sampler);
  sampler.load_state_dict(state_after(2, 1));
  EXPECT_EQ(flat(way->pass(false)), rest(whole_order(2), kBatch));
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(flat(way->pass(false)), whole_order(2)) << pass;
}

/// The rest of an epoch that is over is nothing, once.
TEST_P(Passes, AnEpochThatWasOverHasOneEmptyPass) {
  for (const bool names_epoch : {false, true}) {
    DistributedSampler sampler(kSize, kHalf);
    const auto way = over(sampler);
    sampler.load_state_dict(state_after(2, 3));
    if (names_epoch) sampler.set_epoch(2);
    EXPECT_TRUE(flat(way->pass()).empty());
    if (names_epoch) sampler.set_epoch(3);
    if (!names_epoch && !kind().is_told_of_ends) {
      // Nothing says whether this is the next pass: not in silence.
      EXPECT_THROW(way->pass(), Error);
      continue;
    }
    for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(flat(way->pass()), whole_order(names_epoch ? 3 : 2));
  }
}

/// A loader's drop_last leaves samples that advance() never passes.
TEST_P(PassesThatDrop, AreWholeIfTheLoaderDropsTheLastBatch) {
  DistributedSampler sampler(kSize, kHalf);
  const auto way =
      kind().make(sampler, {.batch_size = kBatch, .drop_last = true, .num_workers = options().num_workers});
  const Indices order = whole_order();
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_EQ(flat(way->pass()), Indices(order.begin(), order.begin() + 8)) << pass;
    EXPECT_EQ(sampler.state_dict().get<int64_t>("test", "samples"), 16) << pass;
  }
}

/// What a rank that takes part from here on would do: the same as the others.
TEST_P(Passes, TheStateSaysWhereEachOfThemIs) {
  DistributedSampler sampler(kSize, kHalf);
  const auto way = over(sampler);
  for (int pass = 0; pass < 2; ++pass) {
    way->pass();
    EXPECT_EQ(sampler.state_dict().get<int64_t>("test", "samples"), kSize);
  }
  way->pass(true, 1);
  EXPECT_EQ(sampler.state_dict().get<int64_t>("test", "samples"), 2 * kBatch);
  // A pass that was left is gone on with. LibTorch's loader cannot be left with workers.
  EXPECT_EQ(flat(over(sampler)->pass()), rest(whole_order(), kBatch));
}

TEST_P(PassesWithAnEnd, AnotherLoaderOfTheSamplerSeesAWholePassAndChangesNothing) {
  DistributedSampler sampler(kSize, kHalf);
  const auto train = over(sampler), measure = over(sampler);
  for (const int64_t epoch : {0, 1, 2}) {
    sampler.set_epoch(epoch);
    EXPECT_EQ(flat(measure->pass(false)), whole_order(epoch));
    EXPECT_EQ(flat(train->pass()), whole_order(epoch));
    EXPECT_EQ(flat(measure->pass(false)), whole_order(epoch));
    EXPECT_EQ(sampler.state_dict().get<int64_t>("test", "samples"), kSize) << "the epoch is over";
  }
}

/// The samples that are counted would not be those that were used.
TEST_P(Passes, SamplesOfTheEpochBeforeCannotBeCounted) {
  DistributedSampler sampler(kSize, kHalf);
  const auto way = over(sampler);
  way->pass(true, 1);
  sampler.set_epoch(1);
  EXPECT_THROW(sampler.advance(kBatch), Error);
  EXPECT_EQ(flat(over(sampler)->pass()), whole_order(1));
}

TEST(PassesByNext, AnOrderFromBeforeTheStateCannotBeCounted) {
  DistributedSampler sampler(kSize, kHalf);
  DataLoader loader(numbers(), sampler.indices(), {.batch_size = kBatch});
  sampler.load_state_dict(state_after(0, 1));
  loader.next();
  EXPECT_THROW(sampler.advance(kBatch), Error);
  // One step back, as after a step that failed: the order is still the one in use.
  DistributedSampler again(kSize, kHalf);
  again.indices();
  const StateDict before = again.state_dict();
  again.advance(kBatch);
  again.load_state_dict(before);
  EXPECT_NO_THROW(again.advance(kBatch));
}

class PassesByNextWithWorkers : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, PassesByNextWithWorkers, testing::Values(0, 2));

Indices by_next(DataLoader& loader) {
  Pass seen;
  while (const auto batch = loader.next()) seen.push_back(numbers_in((*batch)["number"]));
  return flat(seen);
}

TEST_P(PassesByNextWithWorkers, AnEpochThatIsNamedIsAPass) {
  DistributedSampler sampler(kSize, kHalf);
  DataLoader loader(numbers(), sampler, {.batch_size = kBatch, .num_workers = GetParam()});
  for (const int64_t epoch : {5, 6, 7}) {  // also the first one
    sampler.set_epoch(epoch);
    EXPECT_EQ(by_next(loader), whole_order(epoch));
    EXPECT_FALSE(loader.next()) << "once more is not another pass";
  }
  sampler.load_state_dict(state_after(2, 2));
  EXPECT_EQ(by_next(loader), rest(whole_order(2), 8));
  DistributedSampler in_order(kSize, {.num_replicas = 1, .rank = 0, .shuffle = false});
  DataLoader same(numbers(), in_order, {.batch_size = kBatch, .num_workers = GetParam()});
  for (const int64_t epoch : {0, 1, 2}) {
    in_order.set_epoch(epoch);
    EXPECT_EQ(by_next(same).size(), kSize);
  }
}

/// A collate with random numbers by (seed, epoch, sample) reads the epoch that its program has set.
TEST_P(PassesByNextWithWorkers, NoBatchIsMadeBeforeItsPassBegins) {
  std::atomic<int64_t> epoch = 0;
  const Dataset dataset{.size = kSize, .lengths = {}, .collate = [&](const Indices& indices) {
                          return Batch{{"number", at::tensor(indices, at::kLong).mul_(0).add_(epoch.load())}};
                        }};
  DistributedSampler sampler(kSize, {.num_replicas = 1, .rank = 0, .shuffle = false});
  DataLoader loader(dataset, sampler, {.batch_size = kBatch, .num_workers = GetParam()});
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  wait();
  epoch = 7;
  sampler.set_epoch(7);
  for (const Batch& batch : loader) EXPECT_EQ(numbers_in(batch["number"]).front(), 7);
  loader.load_state_dict({{}, {{"samples", int64_t{4}}}});
  wait();
  epoch = 8;
  sampler.set_epoch(8);
  EXPECT_EQ(by_next(loader), Indices(18, 8));
}

TEST_P(PassesByNextWithWorkers, TheLoadersStateKnowsItsEpoch) {
  const DataLoaderOptions options{.batch_size = kBatch, .num_workers = GetParam()};
  DistributedSampler sampler(kSize, kHalf), after(kSize, kHalf);
  DataLoader loader(numbers(), sampler, options), resumed(numbers(), after, options);
  sampler.set_epoch(3);
  loader.next();
  resumed.load_state_dict(loader.state_dict());
  for (int i = 0; i < 2; ++i) EXPECT_THROW(resumed.next(), ValueError) << "epoch 0 has another order";
  after.set_epoch(3);
  EXPECT_EQ(by_next(resumed), rest(whole_order(3), kBatch));
  // A state of the end of a pass has nothing left of its epoch, and nothing to say about the next one.
  by_next(loader);
  for (const int64_t epoch : {3, 4}) {
    DistributedSampler next(kSize, kHalf);
    DataLoader goes_on(numbers(), next, options);
    goes_on.load_state_dict(loader.state_dict());
    next.set_epoch(epoch);
    EXPECT_EQ(by_next(goes_on), epoch == 3 ? Indices{} : whole_order(4));
  }
  for (const DistributedSamplerOptions& other :
       {DistributedSamplerOptions{.num_replicas = 2, .rank = 1, .seed = 4},
        DistributedSamplerOptions{.num_replicas = 2, .rank = 1, .shuffle = false, .seed = 3}}) {
    DistributedSampler another(kSize, other);
    DataLoader cannot(numbers(), another, options);
    EXPECT_THROW(cannot.load_state_dict(loader.state_dict()), ValueError);
  }
  DistributedSampler grown(kSize - 1, kHalf);  // as many samples a rank
  DataLoader cannot(numbers(), grown, options);
  EXPECT_THROW(cannot.load_state_dict(loader.state_dict()), ValueError);
}

/// Augmentation by (seed, epoch, sample): neither the workers nor what was made ahead and thrown away have a part in it.
TEST(RandomBatches, AreThoseOfAnUndisturbedRunAfterAResume) {
  std::atomic<int64_t> epoch = 0;
  const Dataset dataset{.size = kSize, .lengths = {}, .collate = [&](const Indices& indices) {
                          std::vector<int64_t> drawn;
                          for (const int64_t index : indices) {
                            auto generator = at::detail::createCPUGenerator(random_key(
                                {5, static_cast<uint64_t>(epoch.load()), static_cast<uint64_t>(index)}));
                            drawn.push_back(at::randint(1 << 30, {1}, generator).item<int64_t>());
                          }
                          return Batch{{"number", at::tensor(drawn, at::kLong)}};
                        }};
  const auto train = [&](DistributedSampler& sampler, int workers, int64_t first, size_t most) {
    DataLoader loader(dataset, sampler, {.batch_size = kBatch, .num_workers = workers});
    Indices seen;
    for (int64_t e = first; e < 3; ++e) {
      epoch = e;
      sampler.set_epoch(e);
      for (const Batch& batch : loader) {
        const Indices numbers = numbers_in(batch["number"]);
        seen.insert(seen.end(), numbers.begin(), numbers.end());
        sampler.advance(batch.size());
        if (seen.size() >= most) return seen;
      }
    }
    return seen;
  };
  DistributedSampler undisturbed(kSize, kHalf);
  const Indices all = train(undisturbed, 0, 0, 1000);
  for (const int before : {0, 3}) {
    for (const int after : {0, 1, 3}) {
      DistributedSampler sampler(kSize, kHalf), resumed(kSize, kHalf);
      Indices seen = train(sampler, before, 0, 15);  // into epoch 1
      resumed.load_state_dict(sampler.state_dict());
      epoch = 0;
      const Indices others = train(resumed, after, 1, 1000);
      seen.insert(seen.end(), others.begin(), others.end());
      EXPECT_EQ(seen, all) << before << after;
    }
  }
}

TEST(PassesByNext, ASamplerForMoreSamplesThanThereAreIsRefused) {
  DistributedSampler of_another(kSize + 1, kHalf), of_a_part(kSize - 1, kHalf);
  EXPECT_THROW(DataLoader(numbers(), of_another), ValueError);
  EXPECT_NO_THROW(DataLoader(numbers(), of_a_part));
}

TEST(TrainSamplerPasses, AreWholeWithoutSetEpoch) {
  for (const bool drop_last : {false, true}) {
    for (const int replicas : {1, 2}) {
      const TrainSamplerOptions options{
          .batch_size = 4, .num_replicas = replicas, .rank = replicas - 1, .drop_last = drop_last};
      TrainSampler sampler(kSize, options);
      const Indices order = sampler.indices();
      DataLoader loader(numbers(), sampler, {.batch_size = 4});
      for (int pass = 0; pass < 3; ++pass) {
        Pass seen;
        for (const Batch& batch : loader) {
          seen.push_back(numbers_in(batch["number"]));
          sampler.advance(batch.size());
        }
        EXPECT_EQ(flat(seen), order) << pass << drop_last << replicas;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::passes
