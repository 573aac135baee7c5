#include "launcher/machines/rendezvous_news.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

namespace lockstep::launcher {
namespace {

/// How the user calls the machine with that --node-rank.
std::string name_of(const std::string& number, const std::vector<std::string>& names) {
  size_t index = names.size();
  std::from_chars(number.data(), number.data() + number.size(), index);
  return index < names.size() ? names[index] : number;
}

std::string status_text(const message::Status& status, const std::vector<std::string>& names) {
  const auto& [here, least, most, count, missing, ending] = status;
  const std::string wanted = least == most ? std::to_string(least) : fmt::format("{} to {}", least, most);
  const char* const more = here.size() < static_cast<size_t>(count) ? ", ..." : "";
  std::string text = fmt::format("{} of {} here ({}{})", count, wanted, fmt::join(here, ", "), more);
  if (!missing.empty()) {
    std::vector<std::string> called;
    for (const std::string& number : missing) called.push_back(name_of(number, names));
    text += fmt::format("; missing: {}{}", names.empty() ? "--node-rank " : "", fmt::join(called, ", "));
  }
  if (ending > 0) text += fmt::format("; on {} of them ranks of the last round are still ending", ending);
  return text;
}

}  // namespace

bool may_succeed(const LastRound& last, bool server_is_gone) {
  return 2 * (last.machines - 1) > last.machines - (server_is_gone ? 1 : 0);
}

std::string no_heartbeat(double seconds) { return fmt::format("no heartbeat for {:.1f} s", seconds); }

void News::take(std::string_view text) {
  const auto message = parse_message(text);
  if (!message) {
    refusal = "it sent a message that makes no sense";
  } else if (const auto* start = std::get_if<message::Start>(&*message)) {
    place = *start;
    spare.reset();
    restarts = start->restarts;
  } else if (const auto* waits = std::get_if<message::Spare>(&*message)) {
    spare = *waits;
  } else if (const auto* end = std::get_if<message::End>(&*message)) {
    end_reason = end->reason;
    saves = end->saves;
    restarts = end->restarts;
  } else if (const auto* ending = std::get_if<message::Over>(&*message)) {
    over = Verdict{false, ending->code, ending->reason, ending->asked};
  } else if (const auto* found = std::get_if<message::Hang>(&*message)) {
    hang = *found;
  } else if (const auto* asked = std::get_if<message::Probe>(&*message)) {
    probe = *asked;
  } else if (const auto* change = std::get_if<message::Replace>(&*message)) {
    replaced.push_back(*change);
  } else if (const auto* answer = std::get_if<message::Kept>(&*message)) {
    kept.push_back(*answer);
  } else if (const auto* refused = std::get_if<message::Refused>(&*message)) {
    refusal = refused->reason;
  } else if (const auto* drop = std::get_if<message::Dropped>(&*message)) {
    dropped = drop->reason;
  } else if (const auto* move = std::get_if<message::Moved>(&*message)) {
    moved = move->reason;
    server_leaves = move->leaves;
    moved_to = move->to;
  } else if (const auto* waiting = std::get_if<message::Status>(&*message)) {
    status = status_text(*waiting, names);
    some_end = waiting->ending > 0;
  }
}

void News::begin_anew() {
  place.reset();
  end_reason.reset();
  saves = some_end = false;
  spare.reset();
  hang.reset();
  probe.reset();
  replaced.clear();
  kept.clear();
  dropped.clear();
  moved.clear();
  server_leaves = false;
  moved_to.clear();
}

}  // namespace lockstep::launcher
