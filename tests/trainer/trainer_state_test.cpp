#include "lockstep/trainer/trainer_state.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(TrainerState, JsonHasHuggingFacesKeysSorted) {
  TrainerState state;
  state.log_history.push_back({.values = {{"loss", 0.5}, {"learning_rate", 5e-05}}, .epoch = 1.0, .step = 3});
  const std::string text = to_json(state);
  EXPECT_NE(text.find("  \"log_history\": [\n    {\n      \"epoch\": 1.0,\n      \"learning_rate\": 5e-05,\n"
                      "      \"loss\": 0.5,\n      \"step\": 3\n    }\n  ],\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.rfind("{\n  \"best_global_step\": null,", 0), 0u);
  EXPECT_EQ(text.substr(text.size() - 3), "\n}\n");
  EXPECT_EQ(to_json_line(state.log_history[0]), R"({"epoch":1.0,"learning_rate":5e-05,"loss":0.5,"step":3})");
}

}  // namespace
}  // namespace lockstep
