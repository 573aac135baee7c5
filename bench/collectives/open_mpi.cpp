#include "bench/collectives/open_mpi.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

std::string read_first_line(const char* command) {
  const auto close = [](std::FILE* pipe) { ::pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(::popen(command, "re"), close);
  std::array<char, 512> line{};
  if (pipe == nullptr || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return "";
  const std::string text = line.data();
  return text.substr(0, text.find('\n'));
}

}  // namespace

void check_open_mpi(const std::filesystem::path& program) {
  if (!std::filesystem::exists(program)) {
    throw ValueError(
        "--against mpi: this build has no MPI program; install libopenmpi-dev and openmpi-bin, then run "
        "scripts/build again");
  }
  if (read_first_line("command -v mpirun").empty()) {
    throw ValueError("--against mpi: there is no mpirun on the PATH; install openmpi-bin");
  }
}

std::vector<std::string> open_mpi_command(const std::filesystem::path& program, int ranks, int cores) {
  std::vector<std::string> command = {"mpirun", "-n", std::to_string(ranks)};
  if (ranks > cores) command.emplace_back("--oversubscribe");
  command.insert(command.end(), {"--bind-to", ranks > cores ? "none" : "core"});
  if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
  command.push_back(program.string());
  return command;
}

std::string describe_open_mpi() {
  const std::string version = read_first_line("mpirun --version 2>/dev/null");
  const std::string setting = read_first_line(
      "ompi_info --all --parsable 2>/dev/null | grep 'btl_vader_single_copy_mechanism:value:'");
  return fmt::format("{}, single copy by {}", version, setting.substr(setting.rfind(':') + 1));
}

}  // namespace lockstep::bench
