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
namespace {

std::string find_interface(const std::string& host) {
  try {
    const std::vector<job::Address> addresses = job::look_up(host, 0);
    return addresses.empty() ? "" : job::interface_of(addresses.front());
  } catch (const Error&) {
    return "";
  }
}

/// Why UCX is not to be used; empty: it may be.
std::string find_ucx_problem(const std::string& chosen, const Engine& engine) {
  if (chosen == "gloo") return "";
  if (chosen.empty() && engine.interface.empty() && !env::get(kUcxDevices))
    return fmt::format("no interface has the address {}", engine.host);
  return ucx_problem(engine.interface);
}

/// What a machine tells the others.
struct Answer {
  std::string chosen{}, host{};
  std::string interface {};
  std::string version{}, problem{};

  std::string to_text() const {
    return fmt::format("{}\n{}\n{}\n{}\n{}", chosen, host, interface, version, problem);
  }
  static Answer parse(const std::string& text) {
    Answer answer;
    std::istringstream lines(text);
    std::getline(lines, answer.chosen);
    std::getline(lines, answer.host);
    std::getline(lines, answer.interface);
    std::getline(lines, answer.version);
    std::getline(lines, answer.problem, '\0');
    return answer;
  }
  std::string name_choice() const { return chosen.empty() ? "not set" : chosen; }
  std::string name_machine(size_t number) const {
    return fmt::format("machine {} ({}{})", number, host, interface.empty() ? "" : " on " + interface);
  }
};

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

Engine agree_on_engine(c10d::Store& store, int machine, int machines, bool speaks, const std::string& host,
                       std::chrono::milliseconds timeout) {
  const std::string chosen = chosen_engine();
  Engine engine{.is_chosen = !chosen.empty(), .host = host, .interface = find_interface(host)};
  // Every rank opens it now: each may be the leader of a group later.
  Answer own{chosen, host, engine.interface, "", find_ucx_problem(chosen, engine)};
  if (chosen != "gloo" && own.problem.empty()) own.version = ucx_version();
  const std::string text = own.to_text();
  std::vector<Answer> answers;
  for (const std::string& told :
       exchange(store, "engine", machine, machines, speaks ? &text : nullptr, timeout))
    answers.push_back(Answer::parse(told));
  bool may_be_ucx = chosen != "gloo", some_have_ucx = false;
  for (size_t m = 0; m < answers.size(); ++m) {
    engine.machines.push_back(answers[m].name_machine(m));
    if (answers[m].chosen != answers[0].chosen) {
      throw CommError(
          fmt::format("LOCKSTEP_UPLINK is {} on machine 0 and {} on machine {}: it must be the same on all",
                      answers[0].name_choice(), answers[m].name_choice(), m));
    }
    // Nobody promises that two versions understand each other; who chooses UCX may try.
    some_have_ucx = some_have_ucx || !answers[m].version.empty();
    if (chosen.empty() && answers[m].problem.empty() && answers[m].version != answers[0].version)
      answers[m].problem =
          fmt::format("it has UCX {}, {} has another one", answers[m].version, engine.machines[0]);
    if (answers[m].problem.empty()) continue;
    may_be_ucx = false;
    if (chosen == "ucx")
      throw CommError(
          fmt::format("LOCKSTEP_UPLINK=ucx, but machine {} cannot use UCX: {}", m, answers[m].problem));
    if (engine.remark.empty()) engine.remark = fmt::format("{}: {}", engine.machines[m], answers[m].problem);
  }
  engine.is_mixed = !may_be_ucx && some_have_ucx;
  if (may_be_ucx) engine.kind = Engine::Kind::ucx;
  return engine;
}

std::unique_ptr<Uplink> make_uplink(const Engine& engine, const c10::intrusive_ptr<c10d::Store>& store,
                                    const UplinkPlace& place, const ExchangeAddresses& exchange) {
  if (engine.kind == Engine::Kind::gloo)
    return make_gloo_uplink(store, place.machine, place.machines, place.timeout, engine.host);
  return make_ucx_uplink(place.machine, place.machines, exchange);
}

}  // namespace lockstep::uplink
