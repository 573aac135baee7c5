#include "lockstep/base/record_errors.h"

#include <cxxabi.h>

#include <fmt/format.h>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <typeinfo>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/file.h"
#include "lockstep/base/given_flags.h"
#include "lockstep/base/json.h"

namespace lockstep {
namespace {

std::terminate_handler previous_handler = nullptr;

/// "ValueError" for lockstep's own types, as in Python; "std::out_of_range" for others.
std::string type_name(const std::exception& error) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status), &std::free);
  const std::string text = status == 0 ? name.get() : typeid(error).name();
  return text.starts_with("lockstep::") ? text.substr(10) : text;
}

[[noreturn]] void record_and_end() {
  if (const std::exception_ptr pending = std::current_exception()) {
    try {
      std::rethrow_exception(pending);
    } catch (const std::exception& error) {
      record_error(error);
    } catch (...) {
      // It has no text to write.
    }
  }
  if (previous_handler != nullptr) previous_handler();
  std::abort();
}

}  // namespace

std::string error_file_text(const std::exception& error, long timestamp, std::optional<int> reported_by) {
  nlohmann::json extra = {{"py_callstack", ""}, {"timestamp", std::to_string(timestamp)}};
  if (reported_by) extra["reported_by"] = *reported_by;
  const nlohmann::json file = {
      {"message",
       {{"message", fmt::format("{}: {}", type_name(error), with_given_names(error.what()))},
        {"extraInfo", extra}}}};
  return dump_json(file, {.replace_invalid_utf8 = true}) + "\n";
}

void record_error(const std::exception& error, std::optional<int> reported_by) noexcept {
  try {
    if (const auto path = env::get(env::kErrorFile)) {
      write_file_atomically(*path,
                            error_file_text(error, static_cast<long>(std::time(nullptr)), reported_by));
    }
  } catch (const std::exception&) {
    // The program is about to end with an error that matters more.
  }
}

void record_errors() {
  if (previous_handler == nullptr) previous_handler = std::set_terminate(record_and_end);
}

}  // namespace lockstep
