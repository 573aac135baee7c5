#include "lockstep/base/main.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/given_flags.h"
#include "lockstep/base/record_errors.h"

namespace lockstep {
namespace {

const char* program_name = "lockstep";
std::optional<int> (*spawned_entry)() = nullptr;

/// Then the line that it prints is all that there is to say about its error.
bool is_the_only_rank() { return env::get(env::kWorldSize) == "1"; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

[[maybe_unused]] void leave(int code, void* /*argument*/) {
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

void skip_library_destructors() {
#ifdef __GLIBC__
  // Exit handlers run in the order opposite to that of their registration: this one ends the process before
  // those that are older.
  [[maybe_unused]] static const bool registered = kSanitized || ::on_exit(leave, nullptr) == 0;
#endif
}

void detail::set_spawned_main(std::optional<int> (*entry)()) { spawned_entry = entry; }

int exit_code(const std::exception& error) {
  if (const auto* reported = dynamic_cast<const ReportedError*>(&error)) return reported->exit_code();
  return dynamic_cast<const ValueError*>(&error) != nullptr ? 2 : 1;
}

void print_error(const std::exception& error) {
  // LibTorch's own errors go on with a stack trace after this mark.
  const std::string text = error.what();
  const std::string shown = with_given_names(text.substr(0, text.find("\nException raised from ")));
  std::fprintf(stderr, "%s: error: %s\n", program_name, shown.c_str());
}

int run_main(const char* program, const std::function<int()>& body) {
  program_name = program;
  try {
    if (spawned_entry != nullptr) {
      if (const auto code = spawned_entry()) return *code;
    }
    return body();
  } catch (const ReportedError& error) {
    return error.exit_code();
  } catch (const std::exception& error) {
    print_error(error);
    record_error(error, is_the_only_rank() ? std::optional(0) : std::nullopt);
    return exit_code(error);
  } catch (...) {
    const Error error("an exception that is not derived from std::exception");
    print_error(error);
    record_error(error, is_the_only_rank() ? std::optional(0) : std::nullopt);
    return exit_code(error);
  }
}

}  // namespace lockstep
