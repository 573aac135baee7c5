#include "lockstep/step/failure.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace lockstep::detail {
namespace {

using Kind = FailureReport::Kind;

TEST(Failure, AnOwnExceptionComesBeforeItsConsequences) {
  const auto verdict = judge({{.kind = Kind::collective, .place = "in the backward", .what = "lost"},
                              {},
                              {.kind = Kind::own, .place = "in the loss", .what = "bad labels"}});
  EXPECT_EQ(verdict.failed_ranks, std::vector<int>{2});
  EXPECT_EQ(verdict.place, "in the loss");
  EXPECT_FALSE(verdict.is_skipped);
  EXPECT_EQ(verdict.message, "the step has failed on all ranks: rank 2 failed in the loss: bad labels");
}

TEST(Failure, ACollectiveAloneIsTheCause) {
  const auto verdict =
      judge({{}, {.kind = Kind::collective, .place = "in the backward", .what = "mismatch"}});
  EXPECT_EQ(verdict.failed_ranks, std::vector<int>{1});
  EXPECT_FALSE(verdict.is_skipped);
}

TEST(Failure, WithoutACauseSaysSo) {
  EXPECT_EQ(judge({{}, {}}).message,
            "the step has failed on all ranks: a process group was broken before, and no rank says why");
}

TEST(Failure, SkippingIsNoneUnlessSomebodyFails) {
  const FailureReport skip{.kind = Kind::skipped, .place = "in the loss"};
  EXPECT_TRUE(judge({skip, {}}).is_skipped);
  EXPECT_TRUE(judge({skip, {.kind = Kind::collective}}).is_skipped);
  EXPECT_FALSE(judge({skip, {.kind = Kind::own}}).is_skipped);
}

TEST(Failure, FourCausesAreTold) {
  std::vector<FailureReport> reports(6, {.kind = Kind::own, .place = "here", .what = "x"});
  const auto verdict = judge(reports);
  EXPECT_EQ(verdict.failed_ranks.size(), 6U);
  EXPECT_NE(verdict.message.find("rank 3 failed here: x; and 2 more ranks"), std::string::npos)
      << verdict.message;
}

TEST(Failure, WhoseWeightsAllGet) {
  using Reports = std::vector<WritesReport>;
  const auto wrote = [](std::vector<bool> what) { return WritesReport{.have_changed = std::move(what)}; };
  EXPECT_EQ(rank_to_copy(Reports{wrote({false, false}), wrote({false, false})}), std::nullopt);
  EXPECT_EQ(rank_to_copy(Reports{wrote({true}), wrote({true})}), std::nullopt);
  EXPECT_EQ(rank_to_copy(Reports{wrote({true}), wrote({false}), wrote({true})}), 1);
  EXPECT_EQ(rank_to_copy(Reports{wrote({false}), wrote({true})}), 0);
  EXPECT_EQ(rank_to_copy(Reports{wrote({true, true}), wrote({true, false}), wrote({false, true})}), 1);
  // Who has joined has other weights, rightly.
  EXPECT_EQ(
      rank_to_copy(Reports{{.has_joined = true, .have_changed = {false}}, wrote({true}), wrote({true})}),
      std::nullopt);
  EXPECT_EQ(
      rank_to_copy(Reports{{.has_joined = true, .have_changed = {false}}, wrote({true}), wrote({false})}), 2);
}

TEST(Failure, OnlyModelsThatDifferNeedKnownOptimizers) {
  using enum WritesReport::Named;
  using Reports = std::vector<WritesReport>;
  const auto wrote = [](std::vector<bool> what, std::vector<WritesReport::Named> named) {
    return WritesReport{.have_changed = std::move(what), .named = std::move(named)};
  };
  EXPECT_FALSE(plan_leveling(Reports{wrote({true}, {none}), wrote({true}, {none})}));
  // All ranks have updated the first model; the second one's optimizer is the last entry.
  const auto plan = plan_leveling(
      Reports{wrote({true, true, true}, {none, all}), wrote({true, false, false}, {none, all})});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->source, 1);
  EXPECT_TRUE(plan->is_possible);
  EXPECT_TRUE(plan->is_undone);
  EXPECT_EQ(plan->models, (std::vector<bool>{false, true}));
  for (const auto named : {none, some}) {
    const auto unknown = plan_leveling(Reports{wrote({true}, {named}), wrote({false}, {named})});
    ASSERT_TRUE(unknown);
    EXPECT_FALSE(unknown->is_possible);
  }
  // A model has two optimizers, of which one differs.
  const auto mixed = plan_leveling(Reports{wrote({true, true}, {some}), wrote({true, false}, {some})});
  ASSERT_TRUE(mixed);
  EXPECT_TRUE(mixed->is_possible);
  EXPECT_EQ(mixed->models, std::vector<bool>{true});
  // Each of two ranks has written something that the other one has not.
  const auto apart =
      plan_leveling(Reports{wrote({true, false}, {all, all}), wrote({false, true}, {all, all})});
  ASSERT_TRUE(apart);
  EXPECT_TRUE(apart->is_possible);
  EXPECT_FALSE(apart->is_undone);
  // The programs name other optimizers.
  const auto unlike = plan_leveling(Reports{wrote({true, true}, {all}), wrote({false}, {none})});
  ASSERT_TRUE(unlike);
  EXPECT_FALSE(unlike->is_possible);
}

TEST(Failure, TravelsAsJson) {
  const FailureReport report{
      .kind = Kind::own, .place = "in", .what = "\xff no UTF-8", .groups = {"world1/2"}};
  const auto back =
      FailureReport::from_json(nlohmann::json::from_cbor(nlohmann::json::to_cbor(report.to_json())));
  EXPECT_EQ(back.kind, report.kind);
  EXPECT_EQ(back.what, report.what);
  EXPECT_EQ(back.groups, report.groups);
}

}  // namespace
}  // namespace lockstep::detail
