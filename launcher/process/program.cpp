#include "launcher/process/program.h"

#include <fmt/format.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kRunPath =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_executable(const std::string& path) { return is_file(path) && ::access(path.c_str(), X_OK) == 0; }

void check_executable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw FileError(fmt::format("cannot find the program {}: {}", path, std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode))
    throw FileError(fmt::format("{} is a directory; name the program to run", path));
  if (!is_executable(path)) {
    throw FileError(
        fmt::format("{} is not executable; try chmod +x, or python3 if it is a Python script", path));
  }
}

std::string find(const std::string& name, std::string_view search_path) {
  if (name.find('/') != std::string::npos) {
    check_executable(name);
    return name;
  }
  while (true) {
    const size_t colon = search_path.find(':');
    const std::string_view directory = search_path.substr(0, colon);
    const std::string path = fmt::format("{}/{}", directory.empty() ? "." : std::string(directory), name);
    if (is_executable(path)) return path;
    if (colon == std::string_view::npos) break;
    search_path.remove_prefix(colon + 1);
  }
  const std::string hint =
      is_file(name) ? fmt::format("; did you mean ./{}?", name) : "; check its name, or give its path";
  throw FileError(fmt::format("cannot find the program {} in PATH{}", name, hint));
}

}  // namespace

Program resolve_program(const std::vector<std::string>& command, TargetKind kind, const std::string& python,
                        const std::string& search_path) {
  const std::string& target = command.front();
  if (target.empty()) throw FileError("the name of the program is empty; is a variable unset that gives it?");
  if (!kind.run_path && !kind.module && (kind.no_python || !target.ends_with(".py"))) {
    return {find(target, search_path), command, false, 1};
  }

  if (!kind.module && !is_file(target)) {
    throw FileError(fmt::format("cannot find the Python script {}: {}", target, std::strerror(ENOENT)));
  }
  // Unbuffered, as torchrun does: a crash must not swallow what was printed before it.
  Program program{find(python, search_path), {python, "-u"}, true, 0};
  if (kind.run_path) {
    program.argv.insert(program.argv.end(), {"-c", kRunPath});
  } else if (kind.module) {
    program.argv.push_back("-m");
  }
  program.argv.insert(program.argv.end(), command.begin(), command.end());
  program.first_argument = program.argv.size() - command.size() + 1;
  return program;
}

}  // namespace lockstep::launcher
