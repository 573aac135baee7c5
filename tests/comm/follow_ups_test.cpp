// What operations have left to do, in an engine that may end a later one first.
#include "lockstep/comm/follow_ups.h"

#include <gtest/gtest.h>

#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

/// An operation that ends when the test says so.
class FakeWork final : public Work {
 public:
  explicit FakeWork(EngineKind kind) : kind_(kind) {}
  EngineKind engine() const override { return kind_; }
  void end() { has_ended_ = true; }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> timeout) override {
    const auto until = std::chrono::steady_clock::now() + timeout.value_or(60s);
    while (!has_ended_) {
      if (std::chrono::steady_clock::now() > until) throw TimeoutError("it has not ended");
      std::this_thread::sleep_for(100us);
    }
  }
  bool poll() override { return has_ended_; }

  const EngineKind kind_;
  std::atomic<bool> has_ended_{false};
};

/// A group of such operations, each of which writes its name when it has ended.
class FollowUpsTest : public ::testing::Test {
 protected:
  struct Started {
    std::shared_ptr<FakeWork> fake;
    std::shared_ptr<Work> work;
  };
  Started start(const std::string& name, Work::EngineKind kind = Work::EngineKind::main_memory) {
    auto fake = std::make_shared<FakeWork>(kind);
    auto work = then(fake, [this, name] { written_ += name; });
    group_.shared()->add(work);
    return {fake, work};
  }
  const std::string& written() const { return written_; }

 private:
  std::string written_;
  OwnFollowUps group_;
};

TEST_F(FollowUpsTest, ALaterOneOfLibTorchsEngineWaitsForAnEarlierOne) {
  const Started first = start("1"), second = start("2");
  second.fake->end();
  EXPECT_FALSE(second.work->is_completed());
  const Started third = start("3");  // which looks at those that are there
  EXPECT_THROW(second.work->wait(20ms), TimeoutError);
  EXPECT_EQ(written(), "");
  first.fake->end();
  EXPECT_TRUE(second.work->is_completed());
  EXPECT_EQ(written(), "12");
  third.fake->end();
  third.work->wait();
  first.work->wait();
  EXPECT_EQ(written(), "123");
}

TEST_F(FollowUpsTest, AWaitBlocksUntilTheEarlierOneHasEnded) {
  const Started first = start("1"), second = start("2");
  second.fake->end();
  std::thread engine([&] {
    std::this_thread::sleep_for(50ms);
    first.fake->end();
  });
  second.work->wait();
  engine.join();
  EXPECT_EQ(written(), "12");
}

TEST_F(FollowUpsTest, AMessageThatDoesNotEndHoldsNothingBack) {
  const Started message = start("m", Work::EngineKind::own), collective = start("2");
  collective.fake->end();
  EXPECT_TRUE(collective.work->is_completed());
  EXPECT_EQ(written(), "2");
  message.fake->end();
  message.work->wait();
  EXPECT_EQ(written(), "2m");
}

/// In our own engine. All of them end when they have been looked at so often.
class EndsAfterLooks final : public Work {
 public:
  explicit EndsAfterLooks(std::shared_ptr<int> looks) : looks_(std::move(looks)) {}
  Watch watch() const override {
    return [this](const std::function<bool()>& look) { look_ = look; };
  }
  /// As its thread would: true once there is no future left to complete.
  bool look_for_future() {
    const bool is_over = look_();
    if (is_over) look_ = nullptr;  // which keeps the work
    return is_over;
  }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> /*timeout*/) override { *looks_ = 0; }
  bool poll() override {
    if (*looks_ == 0) return true;
    --*looks_;
    return *looks_ < 0;
  }
  const std::shared_ptr<int> looks_;
  mutable std::function<bool()> look_;
};

/// Its timeout is that of all of them together.
TEST(AllOf, AShortWaitDoesNotBeginAnewWithEachOperation) {
  std::vector<std::shared_ptr<FakeWork>> fakes;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 6; ++i)
    works.push_back(fakes.emplace_back(std::make_shared<FakeWork>(Work::EngineKind::own)));
  const auto all = all_of(works);
  std::thread ending([&] {
    for (const auto& fake : fakes) {
      std::this_thread::sleep_for(100ms);
      fake->end();
    }
  });
  EXPECT_THROW(all->wait(200ms), TimeoutError);
  all->wait();
  ending.join();
  EXPECT_TRUE(all->is_success());
  EXPECT_NO_THROW(all->wait(0ms));
}

TEST_F(FollowUpsTest, BothEndBetweenTwoLooks) {
  for (const int looks : {1, 2, 3}) {
    std::string written;
    const auto left = std::make_shared<int>(100);
    OwnFollowUps group;
    const auto first = then(std::make_shared<EndsAfterLooks>(left), [&] { written += '1'; });
    const auto second = then(std::make_shared<EndsAfterLooks>(left), [&] { written += '2'; });
    group.shared()->add(first);
    group.shared()->add(second);
    *left = looks;
    for (int i = 0; i < 4; ++i) group.shared()->act();
    EXPECT_EQ(written, "12") << looks;
  }
}

TEST_F(FollowUpsTest, BothEndBetweenTwoLooksOfTheThreadThatWatches) {
  for (const int looks : {1, 2, 3}) {
    std::string written;
    const auto left = std::make_shared<int>(100);
    OwnFollowUps group;
    const auto first = then(std::make_shared<EndsAfterLooks>(left), [&] { written += '1'; });
    const auto watched = std::make_shared<EndsAfterLooks>(left);
    const auto second = then(watched, [&] { written += '2'; });
    group.shared()->add(first);
    group.shared()->add(second);
    const auto future = second->get_future();
    *left = looks;
    for (int i = 0; i < 4 && !watched->look_for_future(); ++i) EXPECT_FALSE(future->completed());
    EXPECT_TRUE(future->completed());
    EXPECT_EQ(written, "12") << looks;
  }
}

TEST_F(FollowUpsTest, AnEarlierOneThatFailsHoldsNothingBack) {
  class Failing final : public Work {
   public:
    EngineKind engine() const override { return EngineKind::main_memory; }

   private:
    void do_wait(std::optional<std::chrono::milliseconds> /*timeout*/) override { throw CommError("lost"); }
    bool poll() override { throw CommError("lost"); }
  };
  OwnFollowUps group;
  bool first_acted = false, second_acted = false;
  const auto first = then(std::make_shared<Failing>(), [&] { first_acted = true; });
  const auto fake = std::make_shared<FakeWork>(Work::EngineKind::main_memory);
  const auto second = then(fake, [&] { second_acted = true; });
  group.shared()->add(first);
  group.shared()->add(second);
  fake->end();
  second->wait();
  EXPECT_TRUE(second_acted);
  EXPECT_FALSE(first_acted);
  EXPECT_THROW(first->wait(), CommError);
}

}  // namespace
}  // namespace lockstep
