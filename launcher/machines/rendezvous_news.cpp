#include "launcher/machines/rendezvous_news.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json.h"

namespace lockstep::launcher {
namespace {

using nlohmann::json;

std::string status_text(const json& message) {
  std::string here;
  const json hosts = message.value("here", json::array());
  for (const auto& host : hosts) {
    here += (here.empty() ? "" : ", ") + (host.is_string() ? host.get<std::string>() : "?");
  }
  const int least = message.value("least", 1), most = message.value("most", 1);
  return fmt::format("{} of {} here ({})", hosts.size(),
                     least == most ? std::to_string(least) : fmt::format("{} to {}", least, most), here);
}

Place place_of(const json& message) {
  Place place;
  place.round = message.value("round", 1);
  place.restarts = message.value("restarts", 0);
  place.group_rank = message.value("group_rank", 0);
  place.groups = message.value("groups", 1);
  place.first_rank = message.value("first_rank", 0);
  place.world_size = message.value("world_size", 1);
  place.master_addr = message.value("master_addr", "");
  place.master_port = message.value("master_port", uint16_t{0});
  place.instance = message.value("instance", "");
  for (const auto& heir : message.value("heirs", json::array())) {
    place.heirs.push_back({heir.value("id", ""), heir.value("address", "")});
  }
  return place;
}

}  // namespace

bool may_succeed(const LastRound& last, bool server_is_gone) {
  return 2 * (last.machines - 1) > last.machines - (server_is_gone ? 1 : 0);
}

std::string no_heartbeat(double seconds) { return fmt::format("no heartbeat for {:.1f} s", seconds); }

void News::take(const std::string& text) {
  const json message = parse_json(text);
  if (!message.is_object()) return;
  try {
    const std::string type = message.value("type", "");
    if (type == "start") {
      place = place_of(message);
      restarts = place->restarts;
    } else if (type == "end") {
      end_reason = message.value("reason", "the job begins anew");
      restarts = message.value("restarts", restarts);
    } else if (type == "over") {
      over = Verdict{false, message.value("code", 1), message.value("reason", "")};
    } else if (type == "refused") {
      refusal = message.value("reason", "no reason given");
    } else if (type == "dropped") {
      dropped = message.value("reason", "no reason given");
    } else if (type == "moved") {
      moved = message.value("reason", "no reason given");
    } else if (type == "status") {
      status = status_text(message);
    }
  } catch (const json::exception&) {
    refusal = "it sent a message that makes no sense";
  }
}

void News::begin_anew() {
  place.reset();
  end_reason.reset();
  dropped.clear();
  moved.clear();
}

}  // namespace lockstep::launcher
