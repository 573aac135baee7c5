#include "tools/programs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::tools {

std::filesystem::path programs_directory() {
  const auto own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return std::filesystem::exists(own / "lockrun") ? own
                                                  : (own / LOCKSTEP_BIN_FROM_LIBEXEC).lexically_normal();
}

std::filesystem::path zoo_program(const std::string& name) {
  const auto program = programs_directory() / name;
  if (std::filesystem::exists(program)) return program;
  throw Error(fmt::format(
      "there is no {}: it belongs to the component zoo, which this build of Lockstep lacks. Install the "
      "package lockstep-zoo, or build with -DLOCKSTEP_ZOO=ON",
      program.string()));
}

void become_zoo_program(const std::string& name, const std::vector<std::string>& arguments) {
  const std::string program = zoo_program(name).string();
  std::vector<char*> words = {const_cast<char*>(program.c_str())};
  for (const auto& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  ::execv(program.c_str(), words.data());
  throw Error(fmt::format("cannot start {}: {}", program, std::strerror(errno)));
}

std::filesystem::path program_path(const std::string& name) {
  auto path = programs_directory() / name;
  if (!std::filesystem::exists(path)) {
    throw FileError(
        fmt::format("{} is missing; in a clone, run scripts/build release {}; otherwise install "
                    "lockstep-tools again",
                    path.string(), name));
  }
  return path;
}

}  // namespace lockstep::tools
