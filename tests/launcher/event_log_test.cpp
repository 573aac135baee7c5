#include "launcher/output/event_log.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

TEST(EventLogTest, WritesWhatAnEventHas) {
  EXPECT_EQ(
      to_json({.event = "join", .host = "a", .address = "10.0.0.1", .machines = 2, .ranks = 4},
              1764180000.1234, "none"),
      R"({"time":1764180000.123,"run_id":"none","event":"join","host":"a","address":"10.0.0.1","machines":2,"ranks":4})");
  EXPECT_EQ(to_json({.event = "exit", .host = "a", .rank = 1, .pid = 7, .signal = "SIGKILL"}, 0, "r"),
            R"({"time":0.0,"run_id":"r","event":"exit","host":"a","rank":1,"pid":7,"signal":"SIGKILL"})");
  EXPECT_EQ(
      to_json({.event = "replace", .reason = "it died", .rank = 1, .pid = 8, .step = 118, .seconds = 0.91234},
              0, "r"),
      R"({"time":0.0,"run_id":"r","event":"replace","rank":1,"pid":8,"step":118,"seconds":0.912,"reason":"it died"})");
}

TEST(EventLogTest, AnyTextIsOneLine) {
  const std::string line = to_json({.event = "end", .reason = "two\nlines, \xff and \"quotes\""}, 0, "\x01");
  EXPECT_EQ(line.find('\n'), line.npos);
  EXPECT_NE(line.find(R"(two\nlines)"), line.npos);
}

TEST(EventLogTest, AFileThatCannotBeOpenedIsAnError) {
  EXPECT_THROW(EventLog("/nowhere/events.jsonl", "r"), FileError);
  EventLog none("", "r");
  none.write({.event = "end"});
}

}  // namespace
}  // namespace lockstep::launcher
