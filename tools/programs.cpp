#include "tools/programs.h"

namespace lockstep::tools {

std::filesystem::path programs_directory() {
  const auto own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return std::filesystem::exists(own / "lockrun") ? own
                                                  : (own / LOCKSTEP_BIN_FROM_LIBEXEC).lexically_normal();
}

}  // namespace lockstep::tools
