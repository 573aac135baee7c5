#include "lockstep/comm/uplink/engine.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/uplink/gloo.h"
#include "lockstep/comm/uplink/ucx.h"
#include "lockstep/job/address.h"

namespace lockstep::uplink {
namespace {

/// Tells the others `own` for `machine` (null: this rank does not), and returns what all machines have told.
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

std::string find_interface(const std::string& host) {
  try {
    const std::vector<job::Address> addresses = job::look_up(host, 0);
    return addresses.empty() ? "" : job::interface_of(addresses.front());
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

std::string Engine::describe() const {
  const std::string& where = interface.empty() ? host : interface;
  return kind == Kind::ucx ? fmt::format("UCX {} ({})", ucx_version(), where)
                           : fmt::format("Gloo ({})", where);
}

std::string chosen_engine() {
  const std::string chosen = env::get("LOCKSTEP_UPLINK").value_or("gloo");
  if (chosen != "ucx" && chosen != "gloo") {
    throw ValueError(fmt::format("LOCKSTEP_UPLINK={}: choose ucx or gloo, or leave it out", chosen));
  }
  return chosen;
}

Engine agree_on_engine(c10d::Store& store, int machine, int machines, bool speaks, const std::string& host,
                       std::chrono::milliseconds timeout) {
  const std::string chosen = chosen_engine();
  Engine engine{.kind = chosen == "ucx" ? Engine::Kind::ucx : Engine::Kind::gloo,
                .host = host,
                .interface = find_interface(host)};
  // Every rank opens it now: each may be the leader of a group later.
  const std::string own =
      fmt::format("{} {}", chosen, engine.kind == Engine::Kind::ucx ? ucx_problem(engine.interface) : "");
  const std::vector<std::string> told =
      exchange(store, "engine", machine, machines, speaks ? &own : nullptr, timeout);
  const auto name_in = [](const std::string& text) { return text.substr(0, text.find(' ')); };
  for (size_t m = 0; m < told.size(); ++m) {
    if (name_in(told[m]) != name_in(told[0])) {
      throw CommError(
          fmt::format("LOCKSTEP_UPLINK is {} on machine 0 and {} on machine {}: it must be the same on all",
                      name_in(told[0]), name_in(told[m]), m));
    }
    const std::string problem = told[m].substr(told[m].find(' ') + 1);
    if (!problem.empty())
      throw CommError(fmt::format("LOCKSTEP_UPLINK=ucx, but machine {} cannot use UCX: {}", m, problem));
  }
  return engine;
}

std::unique_ptr<Uplink> make_uplink(const Engine& engine, const c10::intrusive_ptr<c10d::Store>& store,
                                    int machine, int machines, std::chrono::milliseconds timeout) {
  if (engine.kind == Engine::Kind::gloo)
    return make_gloo_uplink(store, machine, machines, timeout, engine.host);
  return make_ucx_uplink(machine, machines, [&](const std::string& own) {
    return exchange(*store, "address", machine, machines, &own, timeout);
  });
}

}  // namespace lockstep::uplink
