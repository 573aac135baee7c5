#include "lockstep/trainer/output/training_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep {

void make_directory(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw FileError(fmt::format("cannot create directory {}: {}", path.string(), error.message()));
}

LineFile::LineFile(std::filesystem::path path, Lines lines) : path_(std::move(path)) {
  const int truncates = lines == Lines::remove ? O_TRUNC : 0;
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | truncates, 0644));
  if (!fd_.valid()) throw FileError(fmt::format("cannot open {}: {}", path_.string(), std::strerror(errno)));
}

void LineFile::append(const std::string& line) {
  const std::string bytes = line + "\n";
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t count = ::write(fd_.get(), bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
    written += static_cast<size_t>(count);
  }
}

void save_metrics(const std::filesystem::path& output_dir, const std::string& split, const Metrics& metrics) {
  const auto write = [&](const std::string& name, const nlohmann::json& values) {
    write_file_atomically(output_dir / (name + "_results.json"), dump_json(values, {.indent = 4}) + "\n");
  };
  write(split, metrics);
  const auto path = output_dir / "all_results.json";
  nlohmann::json all = std::filesystem::exists(path) ? parse_json(read_file(path)) : nlohmann::json();
  if (!all.is_object()) all = nlohmann::json::object();
  for (auto at = all.begin(); at != all.end();) {  // of an earlier part of the run
    at = at.key().starts_with(split + "_") ? all.erase(at) : std::next(at);
  }
  all.update(nlohmann::json(metrics));
  write("all", all);
}

}  // namespace lockstep
