#include "lockstep/comm/uplink/engine.h"

#include <fmt/format.h>

#include <sstream>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/uplink/gloo.h"
#include "lockstep/comm/uplink/ucx.h"
#include "lockstep/job/address.h"

namespace lockstep::uplink {

std::string find_interface(const std::string& host) {
  try {
    const std::vector<job::Address> addresses = job::look_up(host, 0);
    return addresses.empty() ? "" : job::interface_of(addresses.front());
  } catch (const Error&) {
    return "";
  }
}

namespace {

/// Why UCX is not to be used; empty: it may be, or Gloo is chosen.
std::string find_ucx_problem(const EngineOffer& own) {
  if (own.chosen == "gloo") return "";
  if (own.chosen.empty() && own.interface.empty() && !env::get(kUcxDevices))
    return fmt::format("no interface has the address {}", own.host);
  return ucx_problem(own.interface);
}

const char* const kEngineRound = "engine";

std::string to_text(const EngineOffer& offer) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", offer.chosen, offer.host, offer.interface, offer.version,
                     offer.problem);
}

EngineOffer parse(const std::string& text) {
  EngineOffer offer;
  std::istringstream lines(text);
  std::getline(lines, offer.chosen);
  std::getline(lines, offer.host);
  std::getline(lines, offer.interface);
  std::getline(lines, offer.version);
  std::getline(lines, offer.problem, '\0');
  return offer;
}

/// What the offers say of where the ranks are.
class Places {
 public:
  Places(const std::vector<EngineOffer>& offers, const std::vector<int>& machine_of)
      : machine_of_(machine_of) {
    for (size_t r = 0; r < offers.size(); ++r) {
      if (static_cast<size_t>(machine_of[r]) < machines_.size()) continue;
      const EngineOffer& offer = offers[r];
      first_.push_back(r);
      machines_.push_back(fmt::format("machine {} ({}{})", machines_.size(), offer.host,
                                      offer.interface.empty() ? "" : " on " + offer.interface));
    }
  }
  /// By number.
  const std::vector<std::string>& machines() const { return machines_; }
  /// A machine's first rank stands for it.
  std::string name(size_t rank) const {
    const auto machine = static_cast<size_t>(machine_of_[rank]);
    return first_[machine] == rank ? machines_[machine]
                                   : fmt::format("rank {} on {}", rank, machines_[machine]);
  }

 private:
  const std::vector<int>& machine_of_;
  std::vector<size_t> first_;
  std::vector<std::string> machines_;
};

/// What LOCKSTEP_UPLINK says on those ranks where it is set; "": on none.
std::string find_choice(const std::vector<EngineOffer>& offers, const Places& places) {
  size_t first = 0;
  while (first < offers.size() && offers[first].chosen.empty()) ++first;
  if (first == offers.size()) return "";
  for (size_t r = first + 1; r < offers.size(); ++r) {
    if (offers[r].chosen.empty() || offers[r].chosen == offers[first].chosen) continue;
    throw CommError(
        fmt::format("LOCKSTEP_UPLINK is {} on {} and {} on {}: set it to the same value on all machines",
                    offers[first].chosen, places.name(first), offers[r].chosen, places.name(r)));
  }
  return offers[first].chosen;
}

}  // namespace

std::vector<std::string> exchange(c10d::Store& store, const std::string& name, int machine, int machines,
                                  const std::string* own, std::chrono::milliseconds timeout) {
  const auto key_of = [&](int m) { return fmt::format("{}/{}", name, m); };
  std::vector<std::string> keys, told;
  for (int m = 0; m < machines; ++m) keys.push_back(key_of(m));
  try {
    if (own != nullptr) store.set(key_of(machine), std::vector<uint8_t>(own->begin(), own->end()));
    store.wait(keys, timeout);
    for (const std::string& key : keys) {
      const std::vector<uint8_t> text = store.get(key);
      told.emplace_back(text.begin(), text.end());
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError(fmt::format("not all {} machines have said how they are reached: {}", machines,
                                text.substr(0, text.find('\n'))));
  }
  return told;
}

std::string Engine::describe() const {
  const std::string& where = interface.empty() ? host : interface;
  return kind == Kind::ucx ? fmt::format("UCX {} ({})", ucx_version(), where)
                           : fmt::format("Gloo ({})", where);
}

std::string chosen_engine() {
  const std::string chosen = env::get("LOCKSTEP_UPLINK").value_or("");
  if (!chosen.empty() && chosen != "ucx" && chosen != "gloo") {
    throw ValueError(fmt::format("LOCKSTEP_UPLINK={}: choose ucx or gloo, or leave it out", chosen));
  }
  return chosen;
}

Engine decide_engine(const std::vector<EngineOffer>& offers, const std::vector<int>& machine_of, int rank) {
  const Places places(offers, machine_of);
  const std::string chosen = find_choice(offers, places);
  const EngineOffer& own = offers[static_cast<size_t>(rank)];
  Engine engine{.is_chosen = !chosen.empty(),
                .host = own.host,
                .interface = own.interface,
                .machines = places.machines()};
  if (chosen == "gloo") return engine;
  bool some_have_ucx = false;
  for (size_t r = 0; r < offers.size(); ++r) {
    std::string problem = offers[r].problem;
    some_have_ucx = some_have_ucx || !offers[r].version.empty();
    // Nobody promises that two versions understand each other; who chooses UCX may try.
    if (chosen.empty() && problem.empty() && offers[r].version != offers[0].version)
      problem = fmt::format("it has UCX {}, {} has another one", offers[r].version, places.name(0));
    if (problem.empty()) continue;
    if (chosen == "ucx") {
      throw CommError(fmt::format("LOCKSTEP_UPLINK=ucx, but {} cannot use UCX: {}", places.name(r), problem));
    }
    if (engine.remark.empty()) engine.remark = fmt::format("{}: {}", places.name(r), problem);
  }
  if (engine.remark.empty()) engine.kind = Engine::Kind::ucx;
  engine.is_mixed = engine.kind == Engine::Kind::gloo && some_have_ucx;
  return engine;
}

Engine agree_on_engine(const StoreRounds& rounds, const std::vector<int>& machine_of,
                       const std::string& host) {
  EngineOffer own{.chosen = chosen_engine(), .host = host, .interface = find_interface(host)};
  own.problem = find_ucx_problem(own);
  if (own.chosen != "gloo" && own.problem.empty()) own.version = ucx_version();
  std::vector<EngineOffer> offers;
  for (const std::string& told : rounds.tell_all(kEngineRound, to_text(own))) offers.push_back(parse(told));
  try {
    return decide_engine(offers, machine_of, rounds.rank);
  } catch (const CommError&) {
    rounds.let_all_read(kEngineRound);
    throw;
  }
}

std::unique_ptr<Uplink> make_uplink(const Engine& engine, const c10::intrusive_ptr<c10d::Store>& store,
                                    const UplinkPlace& place, const ExchangeAddresses& exchange) {
  if (engine.kind == Engine::Kind::gloo)
    return make_gloo_uplink(store, place.machine, place.machines, place.timeout, engine.host);
  return make_ucx_uplink(place.machine, place.machines, exchange);
}

}  // namespace lockstep::uplink
