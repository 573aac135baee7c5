#include "lockstep/tracking/run_id.h"

#include <algorithm>
#include <cctype>
#include <random>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep {

std::string make_run_id() {
  constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz0123456789";
  constexpr size_t kLength = 8;
  std::random_device random;
  std::uniform_int_distribution<size_t> any(0, kCharacters.size() - 1);
  std::string id(kLength, ' ');
  for (auto& c : id) c = kCharacters[any(random)];
  return id;
}

bool is_run_id(std::string_view id) {
  constexpr size_t kLongest = 128;
  return !id.empty() && id.size() <= kLongest && std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || c == '-' || c == '_');
  });
}

void check_run_id(const std::string& id) {
  if (!is_run_id(id)) {
    throw ValueError(
        fmt::format("the run id is '{}'; it must have 1 to 128 letters, digits, '-' and '_'", id));
  }
}

std::string read_run_id(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return {};
  std::string id = read_file(file);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  check_run_id(id);
  return id;
}

void write_run_id(const std::filesystem::path& file, const std::string& id) {
  write_file_atomically(file, id + "\n");
}

}  // namespace lockstep
