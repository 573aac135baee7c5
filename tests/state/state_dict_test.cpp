#include "lockstep/state/state_dict.h"

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/state/counters.h"
#include "lockstep/state/random_state.h"
#include "lockstep/state/stateful.h"

namespace lockstep {
namespace {

TEST(StateDict, HoldsPartsByPrefix) {
  StateDict inner, outer;
  inner.tensors["weight"] = at::ones({2});
  inner.scalars["step"] = int64_t{3};
  outer.scalars["model2"] = true;
  outer.add("model", inner);
  EXPECT_EQ(outer.get<int64_t>("Outer", "model.step"), 3);
  EXPECT_TRUE(outer.tensors.at("model.weight").is_same(inner.tensors.at("weight")));
  const StateDict part = outer.part("model");
  EXPECT_EQ(part.scalars, inner.scalars);
  EXPECT_EQ(part.tensors.size(), 1U);
}

TEST(StateDict, NamesWhatIsMissingOrOfAnotherType) {
  StateDict state;
  state.scalars["step"] = int64_t{3};
  EXPECT_EQ(state.get<double>("Sampler", "step"), 3.0);
  try {
    state.get<int64_t>("Sampler", "epoch");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("Sampler: the state has no \"epoch\""), std::string::npos);
  }
  EXPECT_THROW(state.get<std::string>("Sampler", "step"), ValueError);
}

TEST(StateDict, ScalarsGoThroughJson) {
  StateDict state;
  state.scalars = {
      {"a", true}, {"b", int64_t{1} << 60}, {"c", 0.1}, {"d", std::string("\"x\"\n")}, {"e", 2.0}};
  EXPECT_EQ(StateDict::scalars_from_json(state.scalars_to_json()), state.scalars);
  EXPECT_THROW(StateDict::scalars_from_json("[1]"), ValueError);
  EXPECT_THROW(StateDict::scalars_from_json("{\"a\": [1]}"), ValueError);
}

TEST(Counters, AreSavedAndLoadedInPlace) {
  Counters saved, loaded;
  saved["epoch"] = 2;
  saved["step"] = int64_t{1} << 40;
  int64_t& step = loaded["step"];
  loaded["other"] = 5;
  loaded.load_state_dict(saved.state_dict());
  EXPECT_EQ(step, int64_t{1} << 40);
  EXPECT_EQ(loaded["epoch"], 2);
  EXPECT_EQ(loaded["other"], 0);
  EXPECT_THROW(loaded.load_state_dict({{}, {{"step", 0.5}}}), ValueError);
  EXPECT_EQ(step, int64_t{1} << 40);
  static_assert(Stateful<Counters> && !Stateful<int>);
}

TEST(RandomState, DrawsTheSameAgain) {
  RandomState random;
  at::rand({3});
  at::randn({1});  // leaves a second normal number in the generator
  const StateDict state = random.state_dict();
  const at::Tensor first = at::randn({17}), uniform = at::rand({5});
  at::manual_seed(5);
  random.load_state_dict(state);
  EXPECT_TRUE(at::randn({17}).equal(first));
  EXPECT_TRUE(at::rand({5}).equal(uniform));
  EXPECT_THROW(random.load_state_dict({}), ValueError);
}

}  // namespace
}  // namespace lockstep
