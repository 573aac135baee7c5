// Answers questions about lockstep_data for the parity scripts: a line of JSON in, a line of JSON out.
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/data/batch_shard.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/split.h"
#include "lockstep/data/train_sampler.h"
#include "tests/probe.h"

namespace {

using nlohmann::json;
using namespace lockstep;

json distributed_sampler(const json& q) {
  DistributedSampler sampler(q.at("size"), {.num_replicas = q.at("num_replicas").get<int>(),
                                            .rank = q.at("rank").get<int>(),
                                            .shuffle = q.at("shuffle"),
                                            .seed = q.at("seed"),
                                            .drop_last = q.at("drop_last")});
  sampler.set_epoch(q.at("epoch"));
  return {{"indices", sampler.indices()}, {"num_samples", sampler.num_samples()}};
}

json train_sampler(const json& q) {
  TrainSampler sampler(q.at("size"),
                       {.strategy = parse_train_sampling_strategy("strategy", q.at("strategy")),
                        .batch_size = q.at("batch_size"),
                        .gradient_accumulation_steps = q.at("gradient_accumulation_steps"),
                        .num_replicas = q.at("num_replicas"),
                        .rank = q.at("rank"),
                        .seed = q.at("seed"),
                        .drop_last = q.at("drop_last")},
                       q.at("lengths").get<std::vector<int64_t>>());
  sampler.set_epoch(q.at("epoch"));
  return sampler.indices();
}

SplitSize split_size(const json& size) {
  return size.is_number_integer() ? SplitSize(size.get<int64_t>()) : SplitSize(size.get<double>());
}

json two_sides(const json& q) {
  const auto split = train_test_split(q.at("size").get<int64_t>(), split_size(q.at("test_size")),
                                      q.at("seed").get<uint64_t>());
  return {split.train, split.test};
}

json parts(const json& q) {
  std::vector<SplitSize> lengths;
  for (const json& length : q.at("lengths")) lengths.push_back(split_size(length));
  return random_split(q.at("size").get<int64_t>(), lengths, q.at("seed").get<uint64_t>());
}

json answer(const json& q) {
  const std::string ask = q.at("ask");
  if (ask == "distributed_sampler") return distributed_sampler(q);
  if (ask == "train_sampler") return train_sampler(q);
  if (ask == "length_grouped_indices") {
    return length_grouped_indices(q.at("lengths").get<std::vector<int64_t>>(), q.at("batch_size"),
                                  q.at("seed").get<uint64_t>());
  }
  if (ask == "batch_shard") {
    return batch_shard(q.at("indices").get<std::vector<int64_t>>(), q.at("batch_size"), q.at("num_replicas"),
                       q.at("rank"), q.at("drop_last"));
  }
  if (ask == "train_test_split") return two_sides(q);
  if (ask == "random_split") return parts(q);
  if (ask == "shuffle") {
    return shuffled_indices(q.at("size").get<int64_t>(), q.at("seed").get<uint64_t>());
  }
  if (ask == "weighted") {
    return weighted_random_indices(q.at("weights").get<std::vector<double>>(), q.at("num_samples"),
                                   q.at("replacement"), q.at("seed").get<uint64_t>());
  }
  throw std::runtime_error("data_probe: unknown question " + ask);
}

}  // namespace

int main() { return lockstep::testing::answer_questions("data_probe", answer); }
