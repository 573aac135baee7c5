// How the ranks agree on the order in which gradients become ready.
#include "lockstep/parallel/ddp/ready_order.h"

#include <string>
#include <vector>

#include "tests/ranks/rank_test.h"

namespace lockstep::testing {
namespace {

TEST(ReadyOrder, ItBecomesThatOfRankZero) {
  const World& world = testing::world();
  const ProcessGroup group = world.duplicate();
  ReadyOrder order({"a", "b", "c"});
  if (world.rank() == 0) {
    for (const size_t parameter : {2, 0}) order.note(static_cast<size_t>(parameter));
  } else {
    for (const size_t parameter : {0, 1, 2}) order.note(static_cast<size_t>(parameter));
  }
  CHECK_TRUE(!order.is_agreed());
  order.send(group);
  CHECK_TRUE(order.is_agreed());
  CHECK_TRUE(!order.take_new_layout());  // it is on its way
  order.note(1);
  order.send(group);  // not a second time
  CHECK_TRUE(order.names() == (std::vector<std::string>{"c", "a"}));
  CHECK_TRUE(order.take_new_layout());
}

TEST(ReadyOrder, ItMayBeEmptyOnRankZero) {
  const World& world = testing::world();
  const ProcessGroup group = world.duplicate();
  ReadyOrder order({"a", "b"});
  if (world.rank() != 0) order.note(1);
  order.send(group);
  order.receive();
  CHECK_TRUE(order.parameters().empty());
}

TEST(ReadyOrder, AfterStartingOverItIsSentAgain) {
  const World& world = testing::world();
  const ProcessGroup group = world.duplicate();
  ReadyOrder order({"a", "b"});
  order.note(0);
  order.send(group);
  order.receive();
  order.start_over();
  order.forget_own();
  order.note(world.rank() == 0 ? 1 : 0);
  order.send(group);
  CHECK_TRUE(order.names() == (std::vector<std::string>{"b"}));
}

}  // namespace
}  // namespace lockstep::testing
