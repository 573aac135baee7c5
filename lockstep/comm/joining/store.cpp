#include "lockstep/comm/joining/store.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <string>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/job/listener.h"

namespace lockstep {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Stores that outlive their job: those that this process serves, and files. A rank that is quicker than this
/// one to leave a job and join the next would still find the old one, and lose it.
std::map<std::string, StorePtr>& kept_stores() {
  static auto* const stores = new std::map<std::string, StorePtr>();
  return *stores;
}

StorePtr tcp_store(const std::string& host, int port, bool serve, int rank,
                   std::chrono::milliseconds timeout) {
  const std::string address = fmt::format("{}:{}", host, port);
  if (const auto kept = kept_stores().find(address); serve && kept != kept_stores().end()) {
    kept->second->setTimeout(timeout);
    return kept->second;
  }
  // c10d reports a refused connection in some fifty lines.
  const std::string why = serve ? "" : job::wait_for_listener(host, static_cast<uint16_t>(port), timeout);
  if (!why.empty()) {
    throw CommError(
        fmt::format("rank {}: no store at {} (MASTER_ADDR:MASTER_PORT or the init_method) within {} ms: {}",
                    rank, address, timeout.count(), why));
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    StorePtr store = c10::make_intrusive<c10d::TCPStore>(host, options);
    if (serve) kept_stores()[address] = store;
    return store;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError(fmt::format("rank {}: no store at {} (MASTER_ADDR:MASTER_PORT or the init_method): {}",
                                rank, address, text.substr(0, text.find('\n'))));
  }
}

int whole_number(const std::string& url, const std::string& what, const std::string& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw ValueError(fmt::format("init_method {}: the {} \"{}\" is not a number", url, what, text));
  }
  return value;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_store(const job::LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout) {
  if (launch.master_addr.empty() || launch.master_port == 0) {
    throw ValueError(
        "MASTER_ADDR and MASTER_PORT are missing: the ranks have no place to meet; start with lockrun or "
        "torchrun, "
        "set them, or give an init_method");
  }
  return tcp_store(launch.master_addr, launch.master_port, !launch.agent_store && launch.rank == 0,
                   launch.rank, timeout);
}

StoreAddress StoreAddress::parse(const std::string& url) {
  StoreAddress address;
  const size_t colon = url.find("://");
  const size_t query = std::min(url.find('?'), url.size());
  if (colon == std::string::npos || query < colon) {
    throw ValueError("init_method " + url + " is none of env://, tcp://host:port and file:///path");
  }
  address.scheme = url.substr(0, colon);
  const std::string rest = url.substr(colon + 3, query - colon - 3);
  if (address.scheme == "tcp") {
    const size_t port = rest.rfind(':');
    if (port == std::string::npos || port == 0) {
      throw ValueError("init_method " + url + " needs a host and a port: tcp://host:port");
    }
    address.host = rest.substr(0, port);
    address.port = whole_number(url, "port", rest.substr(port + 1));
    if (address.port < 1 || address.port > 65535) {
      throw ValueError(fmt::format("init_method {}: a port is 1 to 65535", url));
    }
  } else if (address.scheme == "file") {
    if (rest.empty() || rest[0] != '/') {
      throw ValueError("init_method " + url + " needs an absolute path: file:///path");
    }
    address.path = rest;
  } else if (address.scheme != "env") {
    throw ValueError("init_method " + url + " is none of env://, tcp://host:port and file:///path");
  }
  for (size_t at = query + 1; at < url.size();) {
    const size_t end = std::min(url.find('&', at), url.size());
    const std::string pair = url.substr(at, end - at);
    const std::string name = pair.substr(0, pair.find('='));
    const std::string value = pair.size() > name.size() ? pair.substr(name.size() + 1) : "";
    if (name == "rank") {
      address.rank = whole_number(url, name, value);
    } else if (name == "world_size") {
      address.world_size = whole_number(url, name, value);
    } else {
      throw ValueError(fmt::format("init_method {}: \"{}\" is neither rank nor world_size", url, name));
    }
    at = end + 1;
  }
  return address;
}

void close_kept_stores() { kept_stores().clear(); }

c10::intrusive_ptr<c10d::Store> open_store(const StoreAddress& address, int rank, int world_size,
                                           std::chrono::milliseconds timeout) {
  if (address.scheme == "tcp") return tcp_store(address.host, address.port, rank == 0, rank, timeout);
  const std::filesystem::path folder = std::filesystem::path(address.path).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw ValueError("init_method file://" + address.path + ": there is no folder " + folder.string());
  }
  StorePtr& store = kept_stores()[fmt::format("{} {}", address.path, world_size)];
  if (!store) store = c10::make_intrusive<c10d::FileStore>(address.path, world_size);
  store->setTimeout(timeout);
  return store;
}

}  // namespace lockstep
