#include "launcher/machines/machine.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/file.h"
#include "lockstep/base/host_name.h"
#include "lockstep/job/address.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

}  // namespace

int count_gpus(const std::optional<std::string>& visible, const fs::path& devices) {
  if (visible) {
    if (visible->empty() || *visible == "-1" || *visible == "NoDevFiles") return 0;
    return 1 + static_cast<int>(std::count(visible->begin(), visible->end(), ','));
  }
  // A container may have those of some numbers only.
  constexpr std::string_view kName = "nvidia";
  std::error_code error;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(devices, error)) {
    const std::string name = entry.path().filename();
    const bool is_gpu = name.size() > kName.size() && name.starts_with(kName) &&
                        name.find_first_not_of("0123456789", kName.size()) == name.npos;
    count += is_gpu ? 1 : 0;
  }
  return count;
}

Machine inspect_machine() {
  Machine machine;
  const std::string name = host_name();
  machine.names = {name, name.substr(0, name.find('.')), "localhost"};
  for (const std::string& address : job::local_addresses()) machine.names.push_back(address);
  machine.cores = usable_cores();
  const bool has_list = env::is_set(env::kCudaVisibleDevices);
  machine.gpus = count_gpus(
      has_list ? std::optional(env::get(env::kCudaVisibleDevices).value_or("")) : std::nullopt, "/dev");
  return machine;
}

std::string random_id() {
  std::string id = read_file("/proc/sys/kernel/random/uuid");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

}  // namespace lockstep::launcher
