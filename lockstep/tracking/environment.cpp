#include "lockstep/tracking/environment.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

extern char** environ;

namespace lockstep {
namespace {

std::string memory() {
  std::string text = fact_in("/proc/meminfo", "MemTotal");
  double kilobytes = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), kilobytes);
  if (parsed.ec != std::errc()) return text;
  char gibibytes[32];
  std::snprintf(gibibytes, sizeof gibibytes, "%.1f GiB", kilobytes / (1 << 20));
  return gibibytes;
}

bool matters(const std::string& name) {
  constexpr const char* kBeginnings[] = {
      "LOCKSTEP_", "PET_",  "TORCH", "OMP_",    "MKL_",  "KMP_",   "GLOO_",      "NCCL_",   "CUDA_",
      "SLURM_",    "OMPI_", "PMI",   "MASTER_", "ROLE_", "GROUP_", "LD_PRELOAD", "MALLOC_", env::kPythonExec};
  constexpr const char* kNames[] = {env::kRank, env::kLocalRank, env::kWorldSize, env::kLocalWorldSize,
                                    env::kTmpdir};
  return std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                     [&](const char* beginning) { return name.starts_with(beginning); }) ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool may_be_secret(const std::string& name) {
  return name.find("TOKEN") != name.npos || name.find("KEY") != name.npos || name.find("SECRET") != name.npos;
}

std::string directory() {
  char path[4096];
  return ::getcwd(path, sizeof path) == nullptr ? "not known" : path;
}

std::string command_line() {
  std::string text = read_file("/proc/self/cmdline");
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

}  // namespace

std::string fact_in(const char* path, const std::string& key) {
  try {
    const std::string text = read_file(path);
    const size_t at = text.find("\n" + key);
    const size_t from = at == text.npos ? 0 : at + 1;
    if (at == text.npos && !text.starts_with(key)) return "not known";
    const size_t begin = text.find_first_not_of(" \t", text.find_first_of(":=", from) + 1);
    std::string value = text.substr(begin, text.find('\n', begin) - begin);
    if (value.size() > 1 && value.front() == '"') value = value.substr(1, value.size() - 2);
    return value;
  } catch (const FileError&) {
    return "not known";
  }
}

Facts machine_facts() {
  utsname system{};
  ::uname(&system);
  return {{"system", fact_in("/etc/os-release", "PRETTY_NAME")},
          {"kernel", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
          {"processor", fact_in("/proc/cpuinfo", "model name")},
          {"cores", fmt::format("{} usable of {} online", usable_cores(), ::sysconf(_SC_NPROCESSORS_ONLN))},
          {"memory", memory()}};
}

Facts variable_facts() {
  Facts variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (matters(name)) {
      variables.emplace_back(name, may_be_secret(name) ? "(not shown)" : text.substr(name.size() + 1));
    }
  }
  std::sort(variables.begin(), variables.end());
  return variables;
}

Facts run_facts() {
  utsname system{};
  ::uname(&system);
  Facts facts = {{"lockstep", LOCKSTEP_VERSION},
                 {"host", system.nodename},
                 {"directory", directory()},
                 {"command", command_line()}};
  for (auto& part : {machine_facts(), variable_facts()}) facts.insert(facts.end(), part.begin(), part.end());
  return facts;
}

}  // namespace lockstep
