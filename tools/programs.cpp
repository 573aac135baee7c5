#include "tools/programs.h"

#include "lockstep/base/error.h"

namespace lockstep::tools {

std::filesystem::path programs_directory() {
  const auto own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return std::filesystem::exists(own / "lockrun") ? own
                                                  : (own / LOCKSTEP_BIN_FROM_LIBEXEC).lexically_normal();
}

std::filesystem::path program_path(const std::string& name) {
  auto path = programs_directory() / name;
  if (!std::filesystem::exists(path)) {
    throw FileError(path.string() + " is missing; in a clone, run scripts/build release " + name +
                    "; otherwise install lockstep-tools again");
  }
  return path;
}

}  // namespace lockstep::tools
