#include "launcher/process/gpus.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

struct Gpu {
  std::string address, uuid;
};

std::vector<Gpu> find_gpus(const fs::path& root) {
  std::vector<Gpu> gpus;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root / "proc/driver/nvidia/gpus", none)) {
    Gpu gpu{entry.path().filename(), {}};
    std::ifstream information(entry.path() / "information");
    for (std::string line; std::getline(information, line);) {
      if (line.starts_with("GPU UUID:")) gpu.uuid = line.substr(line.find_first_not_of(" \t", 9));
    }
    gpus.push_back(std::move(gpu));
  }
  std::sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) { return a.address < b.address; });
  return gpus;
}

const Gpu* named(const std::vector<Gpu>& gpus, const std::string& name) {
  size_t number = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
  if (parsed.ec == std::errc() && parsed.ptr == name.data() + name.size()) {
    return number < gpus.size() ? &gpus[number] : nullptr;
  }
  const auto found = std::find_if(
      gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return !name.empty() && gpu.uuid.starts_with(name); });
  return found == gpus.end() ? nullptr : &*found;
}

int numa_node(const fs::path& root, const Gpu& gpu) {
  int node = -1;
  std::ifstream(root / "sys/bus/pci/devices" / gpu.address / "numa_node") >> node;
  return std::max(node, 0);  // machines with one node say -1
}

}  // namespace

std::vector<int> gpu_numa_nodes(const fs::path& root, const std::optional<std::string>& visible) {
  const std::vector<Gpu> gpus = find_gpus(root);
  std::vector<int> nodes;
  if (!visible) {
    for (const Gpu& gpu : gpus) nodes.push_back(numa_node(root, gpu));
    return nodes;
  }
  std::istringstream names(*visible);
  for (std::string name; std::getline(names, name, ',');) {
    const Gpu* gpu = named(gpus, name);
    if (gpu == nullptr) return {};
    nodes.push_back(numa_node(root, *gpu));
  }
  return nodes;
}

}  // namespace lockstep::launcher
