#include "lockstep/comm/uplink/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::uplink {
namespace {

using std::chrono::milliseconds;

/// Longer than a lost packet or two take to be sent again.
constexpr milliseconds kLongestTrial{5000};
/// More than the largest packet of any network: one that takes only small packets fails too.
constexpr size_t kTrialBytes = size_t{16} << 10;
/// No call has it: theirs are 0 and odd numbers.
constexpr int kTrialTag = 2;
constexpr size_t kMostNamed = 4;  ///< pairs in a text

/// What a leader has to say, which is never empty.
std::string said(const std::string& problem) { return "=" + problem; }
std::string problem_in(const std::string& text) { return text.empty() ? text : text.substr(1); }

/// The messages from and to one machine.
struct Pair {
  Buffer arriving{};
  std::shared_ptr<Transfer> sent{}, received{};
  std::string problem{};
};

/// What `call` throws is the pair's problem.
template <class Call>
void attempt(Pair& pair, milliseconds longest, const Call& call) {
  if (!pair.problem.empty()) return;
  try {
    call();
  } catch (const TimeoutError&) {
    pair.problem = fmt::format("no answer for {:.1f} s", std::chrono::duration<double>(longest).count());
  } catch (const Error& error) {
    pair.problem = error.what();
  }
}

}  // namespace

ExchangeAddresses exchange_by(std::shared_ptr<Control> control, const std::string& name, int machine,
                              int machines, milliseconds timeout) {
  return [control = std::move(control), name, machine, machines, timeout](const std::string& own) {
    std::vector<std::string> keys;
    for (int m = 0; m < machines; ++m) keys.push_back(fmt::format("{}/{}", name, m));
    control->set(keys[static_cast<size_t>(machine)], own);
    std::vector<std::string> addresses = control->wait_for(keys, timeout);
    control->forget(name + "/");
    return addresses;
  };
}

std::string try_messages(Uplink& uplink, const std::vector<std::string>& names, milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + longest;
  const auto left = [&] {
    const auto now = std::chrono::steady_clock::now();
    return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(end - now));
  };
  const int own = uplink.machine();
  std::vector<Pair> pairs(static_cast<size_t>(uplink.machines()));
  const auto each_other = [&](const auto& call) {
    for (int m = 0; m < uplink.machines(); ++m) {
      Pair& pair = pairs[static_cast<size_t>(m)];
      if (m != own) attempt(pair, longest, [&] { call(m, pair); });
    }
  };
  const Buffer leaving = make_buffer(kTrialBytes);
  std::memset(leaving.data(), own, leaving.bytes);
  each_other([&](int m, Pair& pair) {
    pair.arriving = make_buffer(kTrialBytes);
    pair.received = uplink.recv(m, kTrialTag, pair.arriving);
    pair.sent = uplink.send(m, kTrialTag, leaving);
  });
  each_other([&](int m, Pair& pair) {
    pair.received->wait(left());
    const auto is_theirs = [&](std::byte byte) { return byte == static_cast<std::byte>(m); };
    if (!std::all_of(pair.arriving.data(), pair.arriving.data() + pair.arriving.bytes, is_theirs))
      throw CommError("what arrives is not what was sent");
    pair.sent->wait(left());
  });
  // What the others still wait for must not depend on what this machine does next.
  const bool is_well =
      std::all_of(pairs.begin(), pairs.end(), [](const Pair& pair) { return pair.problem.empty(); });
  if (is_well) each_other([&](int /*m*/, Pair& /*pair*/) { uplink.flush(left()); });
  std::string text;
  size_t count = 0;
  for (size_t m = 0; m < pairs.size(); ++m) {
    if (pairs[m].problem.empty() || ++count > kMostNamed) continue;
    text += fmt::format("{}between {} and {}: {}", text.empty() ? "" : "; ", names[static_cast<size_t>(own)],
                        names[m], pairs[m].problem);
  }
  if (count > kMostNamed) text += fmt::format("; and with {} others", count - kMostNamed);
  return text;
}

TriedUplink try_uplink(const std::shared_ptr<Control>& control, const TrialPlace& place,
                       const std::function<std::unique_ptr<Uplink>(const ExchangeAddresses&)>& make) {
  const int machines = static_cast<int>(place.machines.size());
  std::vector<std::string> keys;
  for (int m = 0; m < machines; ++m) keys.push_back(fmt::format("{}/trial/{}", place.name, m));
  TriedUplink tried;
  if (place.speaks) {
    const auto exchange =
        exchange_by(control, place.name + "/address", place.machine, machines, place.timeout);
    bool has_told = false;
    std::string problem;
    try {
      tried.uplink = make([&](const std::string& own) {
        has_told = true;
        return exchange(own);
      });
    } catch (const Error& error) {
      problem = fmt::format("on {}: {}", place.machines[static_cast<size_t>(place.machine)], error.what());
      // The others wait for it.
      if (!has_told) control->set(fmt::format("{}/address/{}", place.name, place.machine), "");
    }
    if (tried.uplink) {
      const auto has_failed_elsewhere = [&] {
        return std::any_of(keys.begin(), keys.end(),
                           [&](const std::string& key) { return !problem_in(control->get(key)).empty(); });
      };
      const auto look = [&] {
        if (has_failed_elsewhere()) tried.uplink->stop();
      };
      const Control::Watch watch(control, look);
      look();  // for what came before
      problem = try_messages(*tried.uplink, place.machines, std::min(place.timeout, kLongestTrial));
      // Then its own waits were ended for that.
      if (!problem.empty() && has_failed_elsewhere()) problem.clear();
    }
    control->set(keys[static_cast<size_t>(place.machine)], said(problem));
  }
  for (const std::string& text : control->wait_for(keys, place.timeout + kLongestTrial)) {
    const std::string problem = problem_in(text);
    if (!problem.empty()) tried.problem += (tried.problem.empty() ? "" : "; ") + problem;
  }
  if (!tried.problem.empty() && tried.uplink) {
    tried.uplink->stop();  // it waits for nothing then
    tried.uplink.reset();
  }
  return tried;
}

}  // namespace lockstep::uplink
