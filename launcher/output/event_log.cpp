#include "launcher/output/event_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/given_flags.h"
#include "lockstep/base/json.h"

namespace lockstep::launcher {

std::string to_json(const JobEvent& event, double time, const std::string& run_id) {
  nlohmann::ordered_json line;
  line["time"] = std::round(time * 1000) / 1000;
  line["run_id"] = run_id;
  line["event"] = event.event;
  const auto text = [&](const char* name, const std::string& value) {
    if (!value.empty()) line[name] = value;
  };
  const auto number = [&](const char* name, const std::optional<int>& value) {
    if (value) line[name] = *value;
  };
  text("host", event.host);
  text("address", event.address);
  number("round", event.round);
  number("machines", event.machines);
  number("first_rank", event.first_rank);
  number("ranks", event.ranks);
  number("world_size", event.world_size);
  number("rank", event.rank);
  number("spare", event.spare);
  number("pid", event.pid);
  number("code", event.code);
  text("signal", event.signal);
  number("restarts", event.restarts);
  if (event.step) line["step"] = *event.step;
  if (event.seconds) line["seconds"] = std::round(*event.seconds * 1000) / 1000;
  text("reason", event.reason);
  return line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

EventLog::EventLog(const std::string& path, const std::string& run_id) : path_(path), run_id_(run_id) {
  if (path.empty()) return;
  file_.reset(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (!file_.valid()) {
    throw FileError(fmt::format("--event-log {}: cannot be opened: {}", path, std::strerror(errno)));
  }
}

void EventLog::write(const JobEvent& event) {
  if (!file_.valid()) return;
  using Seconds = std::chrono::duration<double>;
  const double now = Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string line = to_json(event, now, run_id_) + "\n";
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size()) || has_warned_) return;
  has_warned_ = true;
  const std::string warning =
      fmt::format("lockrun: warning: --event-log {}: {}; the job goes on, and events are lost\n", path_,
                  written < 0 ? std::strerror(errno) : "no space left");
  std::fputs(with_given_names(warning).c_str(), stderr);
}

}  // namespace lockstep::launcher
