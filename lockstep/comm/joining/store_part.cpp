#include "lockstep/comm/joining/store_part.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include <fmt/format.h>

namespace lockstep {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// LibTorch tells nobody a store's prefix, but lets classes that derive from it see it.
struct Prefix : c10d::PrefixStore {
  static const std::string& of(const c10d::PrefixStore& store) { return store.*(&Prefix::prefix_); }
};

std::map<std::string, int>& jobs_begun() {
  static std::map<std::string, int> jobs;
  return jobs;
}

std::map<std::string, int>& groups_begun() {
  static std::map<std::string, int> groups;
  return groups;
}

int earlier_jobs_at(const std::string& root) { return std::max(jobs_begun()[root] - 1, 0); }

StorePtr with_prefix(const std::string& prefix, const StorePtr& store) {
  if (prefix.empty()) return store;
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

}  // namespace

std::string describe_root(const StorePtr& store) {
  StorePtr root = store;
  while (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(root.get()))
    root = prefixed->getUnderlyingStore();
  // Two objects may stand for one store: a process opens a TCPStore anew for each job.
  if (const auto* const tcp = dynamic_cast<const c10d::TCPStore*>(root.get())) {
    return fmt::format("{}:{}", tcp->getHost(), tcp->getPort());
  }
  if (const auto* const file = dynamic_cast<const c10d::FileStore*>(root.get())) return file->getPath();
  return std::to_string(reinterpret_cast<uintptr_t>(root.get()));
}

void begin_job_at(const std::string& root) { ++jobs_begun()[root]; }

StorePtr part_for_job(const StorePtr& store, const std::string& attempt) {
  const int earlier = earlier_jobs_at(describe_root(store));
  return with_prefix(earlier == 0 ? "" : "again/" + std::to_string(earlier),
                     with_prefix(attempt.empty() ? "" : "lockstep/" + attempt, store));
}

StorePtr part_for_group(const StorePtr& store, const std::vector<int>& members) {
  std::string path;
  StorePtr inner = store;
  while (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(inner.get())) {
    path = fmt::format("{}/{}", Prefix::of(*prefixed), path);
    inner = prefixed->getUnderlyingStore();
  }
  const std::string root = describe_root(inner);
  const std::string job = std::to_string(earlier_jobs_at(root));
  // Groups of other members have counted on other ranks.
  std::string who;
  for (const int rank : members) who += fmt::format("{}{}", who.empty() ? "" : ",", rank);
  const int earlier = groups_begun()[fmt::format("{} {} {} {}", root, job, path, who)]++;
  return with_prefix(fmt::format("of/{}/{}.{}", who, job, earlier), store);
}

}  // namespace lockstep
