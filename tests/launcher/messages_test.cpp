#include "launcher/machines/messages.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

TEST(MessagesTest, AreReadAsTheyWereWritten) {
  shm::RankInfo info;
  info.state = shm::RankState::attached;
  info.operations = 7;
  info.waits = true;
  info.last_operation = "barrier of 0 bytes";
  const std::vector<Message> all = {
      message::Join{
          .id = "i", .run_id = "r", .host = "h", .address = "10.0.0.1", .store_port = 1, .nproc = 2},
      message::Ask{"r", "i"},
      message::Failed{"rank 3", 9, 2},
      message::Resume(),
      message::Succeeded(),
      message::Leaving{15},
      message::Leave{143},
      message::Quiet{61.5, {info, {}}},
      message::Progress(),
      message::Died{3, "rank 3 was killed by SIGKILL", 137},
      message::Probed{{1, 2}},
      message::Pause(),
      message::Beat(),
      message::Status{{"a", "b"}, 1, 3},
      message::Start{.round = 3, .world_size = 4, .master_port = 29500, .heirs = {{"i", "10.0.0.1"}}},
      message::Spare{"two are there", "i", {{"i", "10.0.0.1"}}},
      message::End{"a joins", 2},
      message::Over{"rank 3", 0},
      message::Probe{{{1, "10.0.0.1", 29500}}},
      message::Hang{"rank 0 waits", true},
      message::Replace{3, 2, "rank 3 was killed by SIGKILL", 137},
      message::Kept{3, "no"},
      message::Refused{"no"},
      message::Dropped{"no"},
      message::Moved{"there", true, "10.0.0.1"},
      message::Yes(),
  };
  EXPECT_EQ(all.size(), std::variant_size_v<Message>) << "one of each";
  for (const Message& said : all) {
    const auto heard = parse_message(to_text(said));
    ASSERT_TRUE(heard) << to_text(said);
    EXPECT_EQ(heard->index(), said.index());
    EXPECT_EQ(to_text(*heard), to_text(said));
  }
}

TEST(MessagesTest, WhatComesFromOutsideIsBroughtIntoItsRange) {
  const auto heard = parse_message(
      R"({"type":"join","host":"a\nb","nproc":1000000,"store_port":-5,"node_rank":"1","serves":1,"id":[]})");
  const auto& join = std::get<message::Join>(heard.value());
  EXPECT_EQ(join.host, "a b");
  EXPECT_EQ(join.nproc, 4096);
  EXPECT_EQ(join.store_port, 0);
  EXPECT_EQ(join.node_rank, -1);
  EXPECT_FALSE(join.serves);
  EXPECT_EQ(join.id, "");
  EXPECT_EQ(std::get<message::Start>(parse_message(R"({"type":"start","heirs":[5,{"id":"x"}]})").value())
                .heirs[1]
                .id,
            "x");
  for (const char* text : {"", "{", "[]", "{}", "null", R"({"type":3})", R"({"type":"another"})"}) {
    EXPECT_FALSE(parse_message(text)) << text;
  }
}

}  // namespace
}  // namespace lockstep::launcher
