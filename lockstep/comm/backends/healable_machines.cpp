#include "lockstep/comm/backends/healable_machines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/uplink/ucx.h"
#include "lockstep/comm/wire_dtype.h"

namespace lockstep::backends {
namespace {

/// No group has it.
constexpr shm::SetupLog::Key kPlaces{.area = UINT32_MAX, .generation = UINT32_MAX, .index = 0};

}  // namespace

void HealableMachines::note(shm::SetupLog& log) const {
  const uplink::Engine& engine = places_.engine;
  const bool is_ucx = engine.kind == uplink::Engine::Kind::ucx;
  const std::string text =
      fmt::format("{} {} {} {} {} {}", places_.machine_of.size(), fmt::join(places_.machine_of, " "),
                  name_of(find_wire_dtype()), is_ucx ? "ucx" : "gloo", engine.host, engine.interface);
  const std::span<const std::byte> piece = std::as_bytes(std::span(text));
  log.append({.key = kPlaces}, {&piece, 1});
}

HealableMachines::Places HealableMachines::noted(int rank, shm::SetupLog& log, const std::string& new_host) {
  const shm::SetupLog::Entry* const entry = log.find(kPlaces);
  if (entry == nullptr) throw Error("the rank that died has not noted which rank is on which machine");
  const auto bytes = shm::SetupLog::bytes_of(*entry);
  std::istringstream fields(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  Places places{.rank = rank};
  size_t count = 0;
  fields >> count;
  places.machine_of.resize(count);
  for (int& machine : places.machine_of) fields >> machine;
  std::string wire_dtype, kind;
  fields >> wire_dtype >> kind >> places.engine.host >> places.engine.interface;
  if (!new_host.empty()) {
    places.engine.host = new_host;
    places.engine.interface = uplink::find_interface(new_host);
  }
  check_same_wire_dtype(rank, wire_dtype);
  if (kind != "ucx") return places;
  places.engine.kind = uplink::Engine::Kind::ucx;
  if (const std::string problem = uplink::ucx_problem(places.engine.interface); !problem.empty())
    throw CommError("the rank that died has used UCX, and this process cannot: " + problem);
  return places;
}

HealableMachines::HealableMachines(int rank, int ranks)
    : places_{.rank = rank, .machine_of = std::vector<int>(static_cast<size_t>(ranks))} {}

HealableMachines::HealableMachines(Places places, c10::intrusive_ptr<c10d::Store> store)
    : places_(std::move(places)), store_(std::move(store)) {}

int HealableMachines::place_here(int rank) const {
  const auto& machine_of = places_.machine_of;
  const int machine = machine_of.at(static_cast<size_t>(rank));
  if (machine != machine_of[static_cast<size_t>(places_.rank)]) return -1;
  return static_cast<int>(std::count(machine_of.begin(), machine_of.begin() + rank, machine));
}

bool HealableMachines::span(const std::vector<int>& ranks) const {
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    return places_.machine_of.at(static_cast<size_t>(rank)) !=
           places_.machine_of.at(static_cast<size_t>(ranks.front()));
  });
}

void HealableMachines::fail_with(const std::exception& error) const {
  const std::string text = error.what();
  throw CommError(fmt::format("rank {}: a rank was replaced, and the job's store does not answer: {}",
                              places_.rank, text.substr(0, text.find('\n'))));
}

/// Returns those that are missing: after `timeout`, or because it is over.
std::vector<std::string> HealableMachines::wait_for(std::vector<std::string> keys,
                                                    const std::function<bool()>& is_over,
                                                    Timeout timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    std::erase_if(keys, [&](const std::string& each) { return store_->check({each}); });
    if (keys.empty() || is_over() || std::chrono::steady_clock::now() >= deadline) return keys;
    // Once per death, and while a process starts.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

bool HealableMachines::meet(uint32_t epoch, int stage, bool speaks, const std::function<bool()>& is_over,
                            Timeout timeout) const {
  const auto key = [&](int machine) {
    return fmt::format("lockstep/healing/{}/{}/{}", epoch, stage, machine);
  };
  const int own = places_.machine_of[static_cast<size_t>(places_.rank)];
  const int machines = *std::max_element(places_.machine_of.begin(), places_.machine_of.end()) + 1;
  std::vector<std::string> missing;
  for (int m = 0; m < machines; ++m) missing.push_back(key(m));
  try {
    if (speaks) store_->set(key(own), std::vector<uint8_t>{'1'});
    missing = wait_for(std::move(missing), is_over, timeout);
  } catch (const std::exception& error) {
    fail_with(error);
  }
  if (is_over()) return false;
  if (missing.empty()) return true;
  for (std::string& each : missing) each.erase(0, each.rfind('/') + 1);
  throw TimeoutError(
      fmt::format("rank {}: a rank was replaced, and the ranks of machine {} did not come to hand over the "
                  "job's state within {} ms",
                  places_.rank, fmt::join(missing, ", "), timeout.count()));
}

std::vector<std::string> HealableMachines::tell_all(uint32_t epoch, const std::string& text,
                                                    const std::function<bool()>& is_over,
                                                    Timeout timeout) const {
  const auto key = [&](int rank) { return fmt::format("lockstep/healing/{}/told/{}", epoch, rank); };
  std::vector<std::string> keys, told;
  for (int r = 0; r < ranks(); ++r) keys.push_back(key(r));
  std::vector<std::string> missing;
  try {
    store_->set(key(places_.rank), std::vector<uint8_t>(text.begin(), text.end()));
    missing = wait_for(keys, is_over, timeout);
    for (const std::string& each : missing.empty() ? keys : std::vector<std::string>()) {
      const std::vector<uint8_t> value = store_->get(each);
      told.emplace_back(value.begin(), value.end());
    }
  } catch (const std::exception& error) {
    fail_with(error);
  }
  if (is_over()) return {};
  if (missing.empty()) return told;
  for (std::string& each : missing) each.erase(0, each.rfind('/') + 1);
  throw TimeoutError(fmt::format(
      "rank {}: a rank was replaced, and rank {} did not come to hand over the job's state within {} ms",
      places_.rank, fmt::join(missing, ", "), timeout.count()));
}

void HealableMachines::connect(uint32_t epoch, const std::function<bool()>& is_over, Timeout timeout) {
  const auto check = [rank = places_.rank, is_over] {
    if (is_over()) {
      throw WorldChangedError(
          fmt::format("rank {}: another rank was replaced while the machines connected", rank));
    }
  };
  connecting_ = c10::make_intrusive<InterruptibleStore>("lockstep/healing", store_, check);
  links_ =
      connect_machines({.rank = places_.rank, .machine_of = places_.machine_of, .engine = places_.engine},
                       connecting_, fmt::format("healed/{}", epoch), timeout, check);
  connected_at_ = epoch;
}

void HealableMachines::have_connected() {
  if (connecting_) connecting_->watch_no_more();
  connecting_.reset();
}

}  // namespace lockstep::backends
