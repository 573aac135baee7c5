#include "launcher/output/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/json.h"
#include "lockstep/shm/segment.h"

namespace lockstep::launcher {
namespace {

std::string local_time(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03}", fmt::localtime(whole),
                     static_cast<int>((seconds - static_cast<double>(whole)) * 1000));
}

std::string indented(std::string_view text, std::string_view indent) {
  std::string out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    out += fmt::format("\n{}{}", indent, text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return out;
}

/// "ranks 1, 2 and 5"
std::string rank_list(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) out += i + 1 == ranks.size() ? " and " : ", ";
    out += std::to_string(ranks[i]);
  }
  return out;
}

std::string fate(const WorkerResult& worker, const WorkerResult& first) {
  if (worker.wait_status == 0) return "ended with exit code 0";
  std::string how = how_it_ended(worker);
  if (how.starts_with("was ")) how.erase(0, 4);
  if (worker.by_passed_signal || asks_to_be_resumed(worker.wait_status)) return how;
  if (worker.told_to_end) return fmt::format("{} after lockrun's request to end", how);
  const double later = worker.ended_after - first.ended_after;
  if (later < 0) return fmt::format("{} {:.3f} s before, because it had lost that rank", how, -later);
  return fmt::format("{} {:.3f} s later, probably as a consequence", how, later);
}

bool is_error_of(const WorkerResult& worker, std::initializer_list<std::string_view> types) {
  return std::any_of(types.begin(), types.end(), [&](std::string_view type) {
    return worker.error_message.starts_with(type) &&
           worker.error_message.substr(type.size()).starts_with(": ");
  });
}

}  // namespace

std::string range_of_ranks(int first, int count) {
  return count == 1 ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, first + count - 1);
}

bool asks_to_be_resumed(int wait_status) {
  return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kResumeCode;
}

bool ended_by_itself(int wait_status, int signal) {
  if (WIFSIGNALED(wait_status)) return WTERMSIG(wait_status) != signal && WTERMSIG(wait_status) != SIGKILL;
  return wait_status != 0 && !asks_to_be_resumed(wait_status);
}

std::string how_it_ended(const WorkerResult& worker) {
  return shm::describe_wait_status(worker.wait_status) +
         (worker.killed_for.empty() ? "" : fmt::format(" ({})", worker.killed_for)) +
         (worker.by_passed_signal
              ? ", which lockrun received and passed on; the program has no handler for it"
              : "");
}

std::optional<size_t> first_failure(const std::vector<WorkerResult>& workers) {
  const auto earliest = [&](const auto& counts) {
    std::optional<size_t> first;
    for (size_t i = 0; i < workers.size(); ++i) {
      if (!workers[i].ended || !counts(workers[i])) continue;
      if (!first || workers[i].ended_after < workers[*first].ended_after) first = i;
    }
    return first;
  };
  const auto first = earliest([](const WorkerResult& worker) {
    return worker.wait_status != 0 && !worker.told_to_end && !asks_to_be_resumed(worker.wait_status);
  });
  if (!first || !is_error_of(workers[*first], {"PeerLostError"})) return first;
  // Whom it has lost may need longer to end, so that lockrun's request meets it.
  const auto lost = earliest([](const WorkerResult& worker) {
    if (!worker.told_to_end || !ended_by_itself(worker.wait_status, SIGTERM)) return false;
    return WIFSIGNALED(worker.wait_status) ||
           (!worker.error_message.empty() &&
            !is_error_of(worker, {"PeerLostError", "CommError", "StepFailedError", "TimeoutError"}));
  });
  return lost ? lost : first;
}

std::string failure_report(const std::vector<WorkerResult>& workers, size_t first, const std::string& host) {
  const WorkerResult& culprit = workers[first];
  std::string out =
      fmt::format("lockrun: rank {} {} {} (pid {} on {}, {}, {:.1f} s after the start)", culprit.rank,
                  workers.size() > 1 ? "failed first: it" : "failed: it", how_it_ended(culprit), culprit.pid,
                  host, local_time(culprit.ended_at), culprit.ended_after);
  if (!culprit.last_operation.empty()) out += "\n  its newest collective: " + culprit.last_operation;
  if (!culprit.error_message.empty()) {
    const std::string where = culprit.error_file.empty() ? "" : fmt::format(" ({})", culprit.error_file);
    out += fmt::format("\n  its error{}:{}", where, indented(culprit.error_message, "    "));
  }
  if (culprit.stderr_tail.empty()) {
    out += "\n  it wrote nothing to standard error";
  } else if (culprit.stderr_shown) {
    out += "\n  what it wrote to standard error stands above";
  } else {
    out += "\n  its last lines on standard error:";
    for (const std::string& line : culprit.stderr_tail) out += "\n    " + line;
  }
  std::map<std::string, std::vector<int>> others;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (i != first && workers[i].ended) others[fate(workers[i], culprit)].push_back(workers[i].rank);
  }
  for (const auto& [how, ranks] : others) out += fmt::format("\n  {}: {}", rank_list(ranks), how);
  return out;
}

ErrorFile parse_error_file(std::string_view json) {
  const auto file = parse_json(json);
  if (!file.is_object() || !file.contains("message")) return {};
  const auto& message = file["message"];
  if (message.is_string()) return {.message = message.get<std::string>()};
  if (!message.is_object()) return {};
  ErrorFile out;
  if (const auto text = message.find("message"); text != message.end() && text->is_string()) {
    out.message = text->get<std::string>();
  }
  if (const auto extra = message.find("extraInfo"); extra != message.end() && extra->is_object()) {
    const auto rank = extra->find("reported_by");
    if (rank != extra->end() && rank->is_number_integer()) out.reported_by = rank->get<int>();
  }
  return out;
}

}  // namespace lockstep::launcher
