#include "lockstep/comm/joining/store_round.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string readers_key(const std::string& name) { return fmt::format("lockstep/{}/read", name); }

}  // namespace

std::string stored_text(const std::vector<uint8_t>& value) { return {value.begin(), value.end()}; }

std::string StoreRounds::key_of(const std::string& name, int rank) {
  return fmt::format("lockstep/{}/{}", name, rank);
}

void StoreRounds::tell(const std::string& name, const std::string& text) const {
  try {
    store.set(key_of(name, rank), std::vector<uint8_t>(text.begin(), text.end()));
  } catch (const std::exception&) {
    return;  // the store is gone, which tell_all() says
  }
}

std::vector<std::string> StoreRounds::tell_all(const std::string& name, const std::string& text) const {
  std::vector<std::string> keys, answers;
  for (int r = 0; r < size; ++r) keys.push_back(key_of(name, r));
  try {
    store.set(keys[static_cast<size_t>(rank)], std::vector<uint8_t>(text.begin(), text.end()));
    store.wait(keys, timeout);
    if (store.hasExtendedApi()) {
      for (const auto& bytes : store.multiGet(keys)) answers.push_back(stored_text(bytes));
    } else {
      for (const std::string& key : keys) answers.push_back(stored_text(store.get(key)));
    }
    return answers;
  } catch (const std::exception&) {
    std::string missing;
    for (int r = 0; r < size; ++r) {
      try {
        if (!store.check({keys[static_cast<size_t>(r)]}))
          missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
      } catch (const std::exception&) {  // the store is gone
      }
    }
    throw CommError(fmt::format("not all of the {} ranks have come within {} ms{}{}", size, timeout.count(),
                                missing.empty() ? "" : "; missing: ", missing));
  }
}

void StoreRounds::let_all_read(const std::string& name) const {
  constexpr auto kLongest = std::chrono::seconds(5);
  const std::string key = readers_key(name);
  try {
    int64_t readers = store.add(key, 1);
    const auto deadline = std::chrono::steady_clock::now() + kLongest;
    while (rank == 0 && readers < size && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      readers = store.add(key, 0);
    }
  } catch (const std::exception&) {
    return;  // the store's end has told them
  }
}

}  // namespace lockstep
