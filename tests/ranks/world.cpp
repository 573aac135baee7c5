#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "lockstep/base/env.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {
namespace {

/// TEST_...: how tests/comm/init_test.py lets ranks meet that no launcher started.
void join() {
  InitOptions options;
  options.init_method = env::get("TEST_INIT_METHOD").value_or("");
  options.rank = static_cast<int>(env::get_int("TEST_RANK").value_or(-1));
  options.world_size = static_cast<int>(env::get_int("TEST_WORLD_SIZE").value_or(-1));
  options.timeout = std::chrono::milliseconds(env::get_int("TEST_TIMEOUT_MS").value_or(60000));
  if (const auto path = env::get("TEST_STORE_FILE")) {
    init(c10::make_intrusive<c10d::FileStore>(*path, options.world_size), options);
  } else {
    init(options);
  }
}

}  // namespace

World& world() {
  if (!is_initialized()) join();
  return default_world();
}

}  // namespace lockstep::testing
