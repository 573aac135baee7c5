#include "lockstep/base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep {
namespace {

std::string nested(size_t levels) {
  return "{\"brackets [[[ \\\" {{{\": " + std::string(levels - 1, '[') + std::string(levels - 1, ']') + "}";
}

TEST(Json, RefusesWhatTheStackWouldNotHold) {
  size_t byte = 0;
  EXPECT_FALSE(parse_json(nested(500), &byte).is_discarded());
  EXPECT_FALSE(parse_json(nested(500)).is_discarded());
  EXPECT_EQ(byte, 0u);
  for (const size_t levels : {501, 1000000}) {
    EXPECT_TRUE(parse_json(nested(levels), &byte).is_discarded()) << levels;
    EXPECT_EQ(byte, nested(501).find(']')) << levels;
    EXPECT_TRUE(parse_json(nested(levels)).is_discarded()) << levels;
  }
  std::string flat = "[";
  for (int i = 0; i < 1000; ++i) flat += "[],{},";
  EXPECT_FALSE(parse_json(flat + "1]").is_discarded());
}

}  // namespace
}  // namespace lockstep
