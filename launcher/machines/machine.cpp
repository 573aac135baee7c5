#include "launcher/machines/machine.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/file.h"
#include "lockstep/base/host_name.h"
#include "lockstep/job/address.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

int count_gpus() {
  if (const auto visible = env::get(env::kCudaVisibleDevices)) {
    if (*visible == "-1" || *visible == "NoDevFiles") return 0;
    return 1 + static_cast<int>(std::count(visible->begin(), visible->end(), ','));
  }
  int count = 0;
  while (fs::exists(fmt::format("/dev/nvidia{}", count))) ++count;
  return count;
}

}  // namespace

Machine inspect_machine() {
  Machine machine;
  const std::string name = host_name();
  machine.names = {name, name.substr(0, name.find('.')), "localhost"};
  for (const std::string& address : job::local_addresses()) machine.names.push_back(address);
  machine.cores = usable_cores();
  machine.gpus = count_gpus();
  return machine;
}

std::string random_id() {
  std::string id = read_file("/proc/sys/kernel/random/uuid");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

}  // namespace lockstep::launcher
