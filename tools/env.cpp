// `lockstep env`: what a rank sees and what a report of a bug needs. Under a launcher, rank 0 describes the
// machine and every rank what is its own.
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "git_revision.h"
#include "lockstep/base/cgroup.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/comm/uplink/ucx.h"
#include "lockstep/shm/layout.h"
#include "lockstep/shm/node.h"
#include "lockstep/tracking/environment.h"
#include "tools/programs.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = "clang++ " __clang_version__;
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

/// First line of a file that may not exist.
std::string read_line(const char* path, const char* otherwise) {
  try {
    const std::string text = read_file(path);
    return text.substr(0, text.find('\n'));
  } catch (const FileError&) {
    return otherwise;
  }
}

/// The word in brackets in a line of possible ones.
std::string chosen(const char* path) {
  const std::string line = read_line(path, "not known");
  const size_t from = line.find('['), to = line.find(']');
  return from == line.npos || to == line.npos ? line : line.substr(from + 1, to - from - 1);
}

std::string available_memory() {
  const std::string text = fact_in("/proc/meminfo", "MemAvailable");
  double kilobytes = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), kilobytes);
  return parsed.ec == std::errc() ? fmt::format("{:.1f} GiB", kilobytes / (1 << 20)) : text;
}

std::string affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return "not known";
  std::string text;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &set)) continue;
    int last = i;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    text += fmt::format("{}{}{}", text.empty() ? "" : ",", i, last > i ? fmt::format("-{}", last) : "");
    i = last;
  }
  return text;
}

std::string interfaces() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) return "not known";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, ::freeifaddrs);
  std::string text;
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET) {
      text += (text.empty() ? "" : ", ") + std::string(entry->ifa_name);
    }
  }
  return text.empty() ? "none" : text;
}

std::string space(const char* path) {
  struct statvfs status {};
  if (::statvfs(path, &status) != 0) return "not known";
  const double unit = static_cast<double>(status.f_frsize) / (1 << 30);
  return fmt::format("{:.1f} GiB, {:.1f} GiB free", static_cast<double>(status.f_blocks) * unit,
                     static_cast<double>(status.f_bavail) * unit);
}

std::string limit_of(int resource) {
  rlimit limit{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

/// Does what a large tensor in shared memory does, and looks whether huge pages are mapped then.
std::string huge_pages_in_arena() {
  constexpr size_t kBytes = 4 * shm::kHugePage;
  try {
    const UniqueFd segment = shm::create_segment(1, kBytes);
    shm::Node node(segment.get(), 0);
    node.arena().allocate(kBytes);
    const std::string mapped = fact_in("/proc/self/smaps_rollup", "ShmemPmdMapped");
    const int error = node.arena().huge_page_error();
    const std::string refused = error == 0 ? "" : fmt::format(", refused: {}", std::strerror(error));
    return fmt::format("{} of {} kB by MADV_COLLAPSE{}", mapped, kBytes / 1024, refused);
  } catch (const Error& error) {
    return error.what();
  }
}

/// The least of what `limit` finds in this process's control groups, of version 2 and 1.
template <class Limit>
std::optional<double> tightest(const char* controller, const Limit& limit) {
  std::optional<double> least;
  const auto look = [&](const std::filesystem::path& group) {
    const std::optional<double> found = limit(group);
    if (found && (!least || *found < *least)) least = found;
  };
  for_each_cgroup("/sys/fs/cgroup", "", look);
  for_each_cgroup(std::filesystem::path("/sys/fs/cgroup") / controller, controller, look);
  return least;
}

/// The number in a control group's file; nullopt where there is none or no limit ("max", -1, 2^63).
std::optional<double> number_in(const std::filesystem::path& file) {
  const std::string text = read_if_there(file);
  double number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  if (number < 0 || number > 1e18) return std::nullopt;
  return number;
}

std::string cgroup_memory() {
  const auto bytes = tightest("memory", [](const std::filesystem::path& group) {
    const auto limit = number_in(group / "memory.max");
    return limit ? limit : number_in(group / "memory.limit_in_bytes");
  });
  return bytes ? fmt::format("{:.1f} GiB", *bytes / (1 << 30)) : "no limit";
}

std::string cgroup_cores() {
  const auto cores = tightest("cpu", [](const std::filesystem::path& group) {
    const auto limit = cores_of_cpu_max(read_if_there(group / "cpu.max"));
    return limit ? limit
                 : cores_of_cpu_max(fmt::format("{} {}", read_if_there(group / "cpu.cfs_quota_us"),
                                                read_if_there(group / "cpu.cfs_period_us")));
  });
  return cores ? fmt::format("{:g} cores", *cores) : "no limit";
}

std::string cgroup_processes() {
  const auto most =
      tightest("pids", [](const std::filesystem::path& group) { return number_in(group / "pids.max"); });
  return most ? fmt::format("{:.0f}", *most) : "no limit";
}

/// What the programs that link LibTorch find when they start: version and file, or the loader's complaint.
std::string libtorch_at_run_time() {
  // The one in bin/ of an installation finds LibTorch first, as all programs do.
  const auto program = programs_directory() / "lockstep-store";
  std::string quoted_path;
  for (const char c : program.string()) quoted_path += c == '\'' ? "'\\''" : std::string(1, c);
  const std::string command = fmt::format("'{}' --libtorch 2>&1", quoted_path);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "re"), ::pclose);
  if (!pipe) return "not known";
  std::string text;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe.get())) text.append(buffer, count);
  text = text.substr(0, text.find('\n'));
  constexpr std::string_view kTheirName = "lockstep-store: error: ";
  return text.starts_with(kTheirName) ? text.substr(kTheirName.size()) : text;
}

/// What carries bytes between machines, if all have it.
std::string describe_ucx() {
  const std::string problem = uplink::ucx_problem("");
  if (!problem.empty()) return "none: " + problem;
  return fmt::format("{}, devices {}, transports {}", uplink::ucx_version(),
                     env::get(uplink::kUcxDevices).value_or("as Gloo's"),
                     env::get("UCX_TLS").value_or("all but shared memory"));
}

Facts all_machine_facts() {
  Facts facts = {{"lockstep", LOCKSTEP_VERSION},
                 {"segment layout", std::to_string(shm::kLayoutVersion)},
                 {"git revision", LOCKSTEP_GIT_REVISION},
                 {"libtorch headers", TORCH_VERSION},
                 {"libtorch at run time", libtorch_at_run_time()},
                 {"compiler", kCompiler}};
  for (auto& fact : machine_facts()) facts.push_back(std::move(fact));
  const Facts more = {
      {"memory available", available_memory()},
      {"control group", fmt::format("memory {}, processor {}, processes {}", cgroup_memory(), cgroup_cores(),
                                    cgroup_processes())},
      {"/dev/shm", space("/dev/shm")},
      {"temporary files", space(env::get(env::kTmpdir).value_or("/tmp").c_str())},
      {"huge pages",
       fmt::format("{}, shared memory {}", chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
                   chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))},
      {"huge pages granted", huge_pages_in_arena()},
      {"nvidia driver", read_line("/proc/driver/nvidia/version", "none")},
      {"interfaces", interfaces()},
      {"ucx", describe_ucx()},
      {"ptrace_scope", read_line("/proc/sys/kernel/yama/ptrace_scope", "none (no Yama)")},
      {"open files", limit_of(RLIMIT_NOFILE)},
      {"locked memory", fmt::format("{} bytes", limit_of(RLIMIT_MEMLOCK))}};
  facts.insert(facts.end(), more.begin(), more.end());
  return facts;
}

Facts rank_facts() {
  char directory[4096] = "?";
  if (::getcwd(directory, sizeof directory) == nullptr) directory[0] = '?';
  Facts facts = {
      {"pid", std::to_string(::getpid())}, {"bound to cores", affinity()}, {"directory", directory}};
  const Facts variables = variable_facts();
  facts.insert(facts.end(), variables.begin(), variables.end());
  return facts;
}

/// As a string of JSON.
std::string quoted(const std::string& text) { return dump_json(text, {.replace_invalid_utf8 = true}); }

int show(bool as_json) {
  const auto rank = env::get_int(env::kRank);
  Facts facts;
  if (rank.value_or(0) == 0) facts = all_machine_facts();
  const Facts own = rank_facts();
  facts.insert(facts.end(), own.begin(), own.end());
  if (as_json) {
    std::string text;
    for (const auto& [name, value] : facts) {
      text += fmt::format("{}{}: {}", text.empty() ? "{\n  " : ",\n  ", quoted(name), quoted(value));
    }
    std::puts((text + "\n}").c_str());
    return 0;
  }
  std::string text;
  for (const auto& [name, value] : facts) text += fmt::format("{:<22} {}\n", name, value);
  std::fputs(text.c_str(), stdout);
  return 0;
}

struct EnvOptions {
  bool json = false;
};

constexpr auto kEnvFlags =
    std::to_array<Flag<EnvOptions>>({{.name = "json", .member = &EnvOptions::json, .words = "As JSON"}});

}  // namespace

void add_env(CommandLine app, Action& action) {
  auto options = std::make_shared<EnvOptions>();
  auto command = app.add_subcommand(
      "env",
      "Shows what a rank sees and what a report of a bug needs (lockrun -np 2 lockstep env: of every rank)");
  command.add_table<EnvOptions>(kEnvFlags, *options);
  command.callback([options, &action] { action = [options] { return show(options->json); }; });
}

}  // namespace lockstep::tools
