#include "launcher/machines/rendezvous_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/job/own_address.h"

namespace lockstep::launcher {
namespace {

constexpr double kTryTimeout = 2;
/// Between the turns of two machines to serve.
constexpr double kTurn = 2;
/// So many places are remembered where one served.
constexpr size_t kMostFormer = 4;

/// What has to be so for the rendezvous to be reachable.
const char* where_to_look(const Options& options) {
  if (options.assigned) return "this is the address by which this machine reaches that one (--master-addr)";
  return options.nodes.numbered ? "lockrun runs there with --node-rank 0" : "lockrun runs there";
}

}  // namespace

void RendezvousSearch::begin_anew(const LastRound& last, const std::string& own_id, const job::Address& own,
                                  const Farewell& farewell) {
  if (server_ && server_->has_ended()) server_.reset();
  decided_to_serve_ = server_.has_value();
  last_ = last;
  lost_ = found_;
  own_ = own;
  own_->set_port(options_.nodes.port);
  at_ = 0;
  places_.clear();
  server_is_gone_ = false;
  farewell_ = farewell;
  if (lost_) remember(lost_->host());
  if (!farewell.moved_to.empty()) remember(farewell.moved_to);
  const auto turn = std::find_if(last.heirs.begin(), last.heirs.end(),
                                 [&](const message::Heir& heir) { return heir.id == own_id; });
  serves_at_.reset();
  if (turn != last.heirs.end()) {
    serves_at_ = monotonic_seconds() + kTurn * static_cast<double>(turn - last.heirs.begin());
  }
}

UniqueFd RendezvousSearch::next(std::string& why) {
  if (at_ == places_.size()) list_places(why);
  while (at_ < places_.size()) {
    const job::Address& place = places_[at_++];
    const bool is_lost_one = lost_ && lost_->host() == place.host();
    try {
      UniqueFd fd = job::connect_to(place, kTryTimeout / static_cast<double>(places_.size()));
      where_ = name_of(place);
      found_ = place;
      return fd;
    } catch (const Error& error) {
      if (is_lost_one) server_is_gone_ = dynamic_cast<const job::RefusedError*>(&error) != nullptr;
      if (!lost_ || is_lost_one || why.empty()) {
        why = fmt::format(
            "cannot reach the rendezvous at {} ({}): {}; check that {} and that no firewall is in between",
            name_of(place), place.host(), error.what(), where_to_look(options_));
      }
    }
  }
  places_.clear();
  at_ = 0;
  serve_in_turn();
  return {};
}

std::string RendezvousSearch::name_of(const job::Address& place) const {
  const bool is_endpoint = std::any_of(endpoint_.begin(), endpoint_.end(), [&](const job::Address& address) {
    return address.host() == place.host();
  });
  return fmt::format("{}:{}", is_endpoint ? options_.nodes.host : place.host(), options_.nodes.port);
}

void RendezvousSearch::list_places(std::string& why) {
  places_.clear();
  at_ = 0;
  const auto add = [&](const job::Address& address) {
    const auto same = [&](const job::Address& place) { return place.host() == address.host(); };
    if (std::none_of(places_.begin(), places_.end(), same)) places_.push_back(address);
  };
  const NodeOptions& nodes = options_.nodes;
  endpoint_.clear();
  try {
    endpoint_ = job::resolve(nodes.host, nodes.port, kTryTimeout);
  } catch (const Error& error) {
    why = fmt::format(
        "cannot find the address of {}{}: {}; check the name, and that this machine can look it up",
        nodes.host, nodes.host_flag.empty() ? "" : fmt::format(" ({})", nodes.host_flag), error.what());
  }
  put_ipv4_first(endpoint_);
  if (!endpoint_.empty()) serve_at_endpoint();
  const auto add_host = [&](const std::string& host) {
    try {
      add(job::resolve(host, nodes.port, kTryTimeout).front());
    } catch (const Error&) {
      return;  // somebody has said something that is no address
    }
  };
  if (!farewell_.moved_to.empty()) add_host(farewell_.moved_to);
  // It may listen where the name does not lead from here.
  for (const std::string& host : server_hosts_) {
    if (server_ && !server_->has_ended()) add(job::look_up(host, nodes.port).front());
  }
  for (const job::Address& address : endpoint_) add(address);
  if (lost_) add(*lost_);
  for (const message::Heir& heir : last_.heirs) add_host(heir.address);
  for (const std::string& host : former_) add_host(host);
}

void RendezvousSearch::remember(const std::string& host) {
  std::erase(former_, host);
  former_.push_back(host);
  if (former_.size() > kMostFormer) former_.erase(former_.begin());
}

void RendezvousSearch::serve_at_endpoint() {
  if (decided_to_serve_) return;
  decided_to_serve_ = true;
  const RendezvousListener listener = listen_if_due(options_.nodes, endpoint_);
  if (!listener.fd.valid()) return;
  serve(listener, false);
  // Nobody else can serve at this address.
  const auto was_here = [&](const job::Address& address) { return lost_ && lost_->host() == address.host(); };
  server_is_gone_ = std::any_of(endpoint_.begin(), endpoint_.end(), was_here);
}

void RendezvousSearch::serve_in_turn() {
  if (!serves_at_ || monotonic_seconds() < *serves_at_ || !may_succeed(last_, server_is_gone())) return;
  if (server_ && !server_->has_ended()) return;
  const RendezvousListener listener{job::listen_at(*own_), {own_->host()}};
  if (!listener.fd.valid()) return;  // another lockrun of this machine may be quicker
  serve(listener, true);
  succeeded_ = true;
}

void RendezvousSearch::serve(const RendezvousListener& listener, bool in_place) {
  server_.reset();
  std::vector<std::string> homes;
  if (in_place) {
    homes.push_back(options_.nodes.host);
    std::copy_if(former_.rbegin(), former_.rend(), std::back_inserter(homes), [&](const std::string& host) {
      return host != options_.nodes.host && host != own_->host();
    });
  }
  server_.emplace(listener, options_, secret_, homes);
  server_hosts_ = listener.hosts;
}

std::string RendezvousSearch::listens_at() const {
  std::string list;
  for (const std::string& host : server_hosts_) {
    list += fmt::format("{}{}", list.empty() ? "" : " and ", host);
    if (job::is_loopback(host)) list += " (which only this machine reaches)";
  }
  return server_ ? fmt::format("{}, port {}", list, options_.nodes.port) : "";
}

void RendezvousSearch::let_finish(double seconds) {
  if (server_) server_->let_finish(seconds);
}

}  // namespace lockstep::launcher
