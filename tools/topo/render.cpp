#include "tools/topo/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json.h"

namespace lockstep::topo {
namespace {

std::string size_text(uint64_t bytes) {
  if (bytes >= uint64_t{1} << 30) return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
  if (bytes >= uint64_t{1} << 20) return fmt::format("{:g} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{} KiB", bytes >> 10);
}

std::string list_text(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

const Cpu& cpu_of(const Report& report, size_t rank) { return report.topology.cpus[report.ranks[rank]]; }

/// `text` in lines of at most `columns`, broken at spaces; later lines are indented by two more than the
/// first.
std::string wrapped(const std::string& text, int columns) {
  const size_t width = static_cast<size_t>(std::max(columns, 20));
  const std::string indent(text.find_first_not_of(' ') + 2, ' ');
  std::string out, rest = text;
  while (rest.size() > width) {
    const size_t space = rest.rfind(' ', width);
    if (space == rest.npos || space < indent.size()) break;
    out += rest.substr(0, space) + "\n";
    rest = indent + rest.substr(space + 1);
  }
  return fmt::format("{}{}\n", out, rest);
}

/// A matrix with a row and a column for each name, in parts that fit `columns`; `cell` gives the text.
template <typename Cell>
std::string matrix_text(const std::vector<std::string>& names, int columns, Cell cell) {
  constexpr size_t kHead = 10, kCell = 8;
  const size_t width = static_cast<size_t>(std::max(columns, 0));
  const size_t most = width > kHead + kCell ? (width - kHead) / kCell : 1;
  std::string out;
  for (size_t from = 0; from < names.size(); from += most) {
    const size_t to = std::min(from + most, names.size());
    if (from > 0) out += '\n';
    out += fmt::format("  {:<8}", "");
    for (size_t j = from; j < to; ++j) out += fmt::format("{:>8}", names[j]);
    out += '\n';
    for (size_t i = 0; i < names.size(); ++i) {
      out += fmt::format("  {:<8}", names[i]);
      for (size_t j = from; j < to; ++j) out += fmt::format("{:>8}", cell(i, j));
      out += '\n';
    }
  }
  return out;
}

std::vector<std::string> rank_names(const Report& report) {
  std::vector<std::string> names;
  for (size_t i = 0; i < report.ranks.size(); ++i) names.push_back(fmt::format("rank {}", i));
  return names;
}

/// Between ranks and GPUs, numbered in this order.
std::string describe_link(const Report& report, size_t i, size_t j) {
  const size_t ranks = report.ranks.size();
  const auto& gpus = report.topology.gpus;
  if (i < ranks && j < ranks) return link_between(cpu_of(report, i), cpu_of(report, j));
  if (i >= ranks && j >= ranks) return link_between(gpus[i - ranks], gpus[j - ranks]);
  return i < ranks ? link_between(cpu_of(report, i), gpus[j - ranks])
                   : link_between(cpu_of(report, j), gpus[i - ranks]);
}

/// Greater values of `share` (0 to 1) are darker.
std::string shade(double share) {
  const int light = 245 - static_cast<int>(90 * std::clamp(share, 0.0, 1.0));
  return fmt::format("rgb({},{},245)", light, light);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

}  // namespace

std::string as_text(const Report& report, int columns) {
  const Topology& machine = report.topology;
  std::string out;
  const auto line = [&](const std::string& text) { out += wrapped(text, columns); };
  line(fmt::format("{}: {}", machine.host,
                   machine.cpu_model.empty() ? "unknown processor" : machine.cpu_model));
  line(fmt::format("  sockets {}, cores {}, logical cores usable {} (quota and affinity leave {})",
                   machine.packages, machine.cores, machine.cpus.size(), machine.usable_cores));
  for (const Cache& cache : machine.caches) {
    line(fmt::format("  L{} cache {} x {}", cache.level, cache.count, size_text(cache.bytes)));
  }
  for (const NumaNode& node : machine.numa_nodes) {
    line(fmt::format("  NUMA node {}: {}, cores {}", node.number, size_text(node.bytes),
                     list_text(node.cpus)));
  }
  std::vector<std::string> names = rank_names(report);
  for (const Gpu& gpu : machine.gpus) {
    names.push_back(fmt::format("GPU {}", names.size() - report.ranks.size()));
    line(fmt::format("  {}: {} at {}{}", names.back(), gpu.name, gpu.address,
                     gpu.numa_node >= 0 ? fmt::format(", NUMA node {}", gpu.numa_node) : ""));
  }
  if (machine.gpus.empty()) line("  no GPU");
  out += '\n';
  line(machine.gpus.empty() ? "How ranks are connected (one per logical core)"
                            : "How ranks (one per logical core) and GPUs are connected");
  out += matrix_text(names, columns, [&](size_t i, size_t j) { return describe_link(report, i, j); });
  for (size_t i = 0; i < report.ranks.size(); ++i) {
    const Cpu& cpu = cpu_of(report, i);
    line(fmt::format("  rank {}: core {}, NUMA node {}, socket {}", i, cpu.number, cpu.numa_node,
                     cpu.package));
  }
  line(
      "  SMT: threads of one core; L2, L3: they share that cache; NODE: one NUMA node; SOCK: one socket; "
      "SYS: "
      "different sockets");
  if (!machine.gpus.empty()) line("  PIX: one PCI bridge; PXB: several; PHB: the processor's host bridge");
  if (report.speeds.empty()) return out;
  const auto speed = [&](auto member, int digits) {
    return [&report, member, digits](size_t i, size_t j) {
      return i == j ? std::string("-") : fmt::format("{:.{}f}", report.speeds[i][j].*member, digits);
    };
  };
  out += '\n';
  line("Latency of 8 bytes, one way, us");
  out += matrix_text(rank_names(report), columns, speed(&Speed::latency_us, 2));
  out += '\n';
  line("Bandwidth of 4 MiB messages, one way, GB/s");
  out += matrix_text(rank_names(report), columns, speed(&Speed::gigabytes_per_s, 1));
  return out;
}

std::string as_json(const Report& report) {
  using nlohmann::json;
  const Topology& machine = report.topology;
  json out = {{"host", machine.host},
              {"cpu_model", machine.cpu_model},
              {"sockets", machine.packages},
              {"cores", machine.cores},
              {"usable_cores", machine.usable_cores}};
  out["caches"] = json::array();
  for (const Cache& cache : machine.caches) {
    out["caches"].push_back({{"level", cache.level}, {"bytes", cache.bytes}, {"count", cache.count}});
  }
  out["numa_nodes"] = json::array();
  for (const NumaNode& node : machine.numa_nodes) {
    out["numa_nodes"].push_back({{"number", node.number}, {"bytes", node.bytes}, {"cpus", node.cpus}});
  }
  out["gpus"] = json::array();
  for (const Gpu& gpu : machine.gpus) {
    json row = {{"name", gpu.name}, {"address", gpu.address}, {"numa_node", gpu.numa_node}};
    for (const Gpu& other : machine.gpus) row["links"].push_back(link_between(gpu, other));
    out["gpus"].push_back(row);
  }
  out["ranks"] = json::array();
  for (size_t i = 0; i < report.ranks.size(); ++i) {
    const Cpu& cpu = cpu_of(report, i);
    json row = {{"rank", i},
                {"cpu", cpu.number},
                {"core", cpu.core},
                {"numa_node", cpu.numa_node},
                {"socket", cpu.package}};
    for (size_t j = 0; j < report.ranks.size(); ++j) {
      row["links"].push_back(link_between(cpu, cpu_of(report, j)));
      if (report.speeds.empty()) continue;
      const Speed& speed = report.speeds[i][j];
      row["latency_us"].push_back(i == j ? json() : json(speed.latency_us));
      row["gigabytes_per_s"].push_back(i == j ? json() : json(speed.gigabytes_per_s));
    }
    out["ranks"].push_back(row);
  }
  return dump_json(out, {.indent = 2}) + "\n";
}

std::string as_svg(const Report& report) {
  constexpr int kCell = 72, kMargin = 24, kLabel = 56, kHead = 96;
  const int ranks = static_cast<int>(report.ranks.size());
  const int side = kLabel + ranks * kCell;
  const bool measured = !report.speeds.empty();
  const int width = std::max(2 * kMargin + side, 480), height = kHead + side + kMargin;
  double most = 0;
  for (const auto& row : report.speeds) {
    for (const Speed& speed : row) most = std::max(most, speed.gigabytes_per_s);
  }
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  const auto text = [&](int x, int y, const std::string& what, const char* anchor) {
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(what));
  };
  text(kMargin, 28, fmt::format("{}: {}", report.topology.host, report.topology.cpu_model), "start");
  text(kMargin, 48,
       measured ? "Between ranks: connection, throughput, latency one way" : "Connection between ranks",
       "start");
  for (int i = 0; i < ranks; ++i) {
    const size_t row = static_cast<size_t>(i);
    const int y = kHead + i * kCell;
    text(kMargin + kLabel - 8, y + kCell / 2 + 4, fmt::format("rank {}", i), "end");
    text(kMargin + kLabel + i * kCell + kCell / 2, kHead - 10, fmt::format("rank {}", i), "middle");
    for (int j = 0; j < ranks; ++j) {
      const size_t column = static_cast<size_t>(j);
      const int x = kMargin + kLabel + j * kCell;
      const Speed speed = measured ? report.speeds[row][column] : Speed{};
      out += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"white\"/>\n", x, y, kCell,
          kCell, i == j ? "#eee" : shade(most > 0 ? speed.gigabytes_per_s / most : 0));
      text(x + kCell / 2, y + 20, link_between(cpu_of(report, row), cpu_of(report, column)), "middle");
      if (i == j || !measured) continue;
      text(x + kCell / 2, y + 38, fmt::format("{:.1f} GB/s", speed.gigabytes_per_s), "middle");
      text(x + kCell / 2, y + 54, fmt::format("{:.2f} us", speed.latency_us), "middle");
    }
  }
  return out + "</svg>\n";
}

}  // namespace lockstep::topo
