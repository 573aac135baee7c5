// The order in which gradients become ready, without ranks.
#include "lockstep/parallel/ddp/ready_order.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Order = std::vector<size_t>;
using Names = std::vector<std::string>;

ReadyOrder order_of(std::initializer_list<size_t> parameters) {
  ReadyOrder order({"a", "b", "c", "d"});
  for (const size_t parameter : parameters) order.note(parameter);
  return order;
}

TEST(ReadyOrderTest, AGradientThatComesAgainCountsFromItsLastTime) {
  EXPECT_EQ(order_of({2, 0, 1}).parameters(), (Order{2, 0, 1}));
  EXPECT_EQ(order_of({2, 0, 1, 2, 2}).parameters(), (Order{0, 1, 2}));
  EXPECT_EQ(order_of({2, 0}).names(), (Names{"c", "a"}));
}

TEST(ReadyOrderTest, EachPassBeginsAnOrderOfItsOwnUntilTheRanksHaveAgreed) {
  ReadyOrder order = order_of({2, 0, 1});
  EXPECT_FALSE(order.is_agreed());
  order.forget_own();
  EXPECT_TRUE(order.parameters().empty());
  order.note(2);  // as if for the first time
  order.note(1);
  EXPECT_EQ(order.parameters(), (Order{2, 1}));
}

TEST(ReadyOrderTest, AnOrderOfRankZeroStays) {
  ReadyOrder order = order_of({});
  order.load({"d", "b"});
  EXPECT_TRUE(order.is_agreed());
  order.note(0);
  order.forget_own();
  EXPECT_EQ(order.parameters(), (Order{3, 1}));
  EXPECT_EQ(order.names(), (Names{"d", "b"}));
}

TEST(ReadyOrderTest, BucketsAreLaidOutOnceForEachOrder) {
  ReadyOrder order = order_of({1});
  EXPECT_FALSE(order.take_new_layout());  // this rank's own
  order.load({"a"});
  EXPECT_TRUE(order.take_new_layout());
  EXPECT_FALSE(order.take_new_layout());
  EXPECT_TRUE(order.is_agreed());
  order.load({"b", "a"});
  EXPECT_TRUE(order.take_new_layout());
}

TEST(ReadyOrderTest, WhatIsKnownIsUsedUntilTheNextPass) {
  ReadyOrder order = order_of({});
  order.load({"d", "b"});
  order.take_new_layout();
  order.start_over();
  EXPECT_FALSE(order.is_agreed());
  EXPECT_FALSE(order.take_new_layout());
  EXPECT_EQ(order.parameters(), (Order{3, 1}));
  order.forget_own();
  EXPECT_TRUE(order.parameters().empty());
  order.note(0);
  EXPECT_EQ(order.parameters(), (Order{0}));
}

TEST(ReadyOrderTest, AFailedStepLeavesTheOrderOfTheLastOneThatSucceeded) {
  ReadyOrder order = order_of({2, 0});
  order.roll_back();  // nothing has been agreed on yet
  EXPECT_TRUE(order.parameters().empty());
  order.load({"d", "b"});
  order.commit();
  order.take_new_layout();
  order.roll_back();
  EXPECT_TRUE(order.take_new_layout());
  order.commit();
  order.roll_back();
  EXPECT_FALSE(order.take_new_layout());
  order.start_over();
  order.forget_own();
  order.note(0);
  order.roll_back();
  EXPECT_TRUE(order.is_agreed());
  EXPECT_EQ(order.names(), (Names{"d", "b"}));
}

TEST(ReadyOrderTest, ALoadedOrderThatNamesNoParameterChangesNothing) {
  ReadyOrder order = order_of({});
  order.load({"c"});
  try {
    order.load({"a", "e"});
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("names parameter e, which this module does not have"),
              std::string::npos);
  }
  EXPECT_EQ(order.names(), (Names{"c"}));
}

}  // namespace
}  // namespace lockstep
