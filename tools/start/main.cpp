// An installed program that needs LibTorch or Arrow is started by a copy of this one, which finds them first:
// bin/NAME starts libexec/lockstep/NAME. So the prefix names no other folder, and what is missing is told in
// one line.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "tools/start/libraries.h"

namespace {

using namespace lockstep;
namespace fs = std::filesystem;

const start::Package kPackages[] = {
    {"LibTorch", LOCKSTEP_TORCH_SERIES, "LOCKSTEP_TORCH_DIR", "torch", {"libtorch", "libc10"}, "torch/lib"},
    {"Arrow", LOCKSTEP_ARROW_VERSION, "LOCKSTEP_ARROW_DIR", "pyarrow", {"libarrow", "libparquet"}, "pyarrow"},
};

int start_program(const fs::path& self, char** argv) {
  const fs::path program = self.parent_path() / LOCKSTEP_LIBEXEC_FROM_BIN / self.filename();
  const auto needs = start::read_needs(program);
  std::string path = env::get(start::kLoaderPath).value_or("");
  for (const auto& package : kPackages) {
    if (const auto directory = start::directory_to_add(package, needs)) {
      path = directory->string() + (path.empty() ? "" : ":" + path);
    }
  }
  if (!path.empty()) env::set(start::kLoaderPath, path);
  ::execv(program.c_str(), argv);
  throw FileError(fmt::format("cannot start {}: {}", program.string(), std::strerror(errno)));
}

}  // namespace

int main(int, char** argv) {
  // Not argv[0], which may be a link's name or whatever the caller likes.
  const fs::path self = fs::read_symlink("/proc/self/exe");
  return run_main(self.filename().c_str(), [&] { return start_program(self, argv); });
}
