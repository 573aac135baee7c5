#include "lockstep/trainer/all_ranks.h"

#include <exception>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"

namespace lockstep::trainer {
namespace {

// CommError speaks about the group itself: there is nobody left to agree with.
void call(const std::function<void()>& body, std::exception_ptr& failure) {
  try {
    body();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
}

}  // namespace

void on_all_ranks(const ProcessGroup& group, const std::function<void()>& body) {
  if (group.size() == 1) return body();
  std::exception_ptr failure;
  call(body, failure);

  std::string own;  // empty: all is well; else the exit code as one byte
  if (failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      own = std::string(1, static_cast<char>(exit_code(error)));
    }
  }
  const auto codes = group.all_gather_bytes(own);
  int failed = 0;
  while (failed < group.size() && codes[static_cast<size_t>(failed)].empty()) ++failed;
  if (failed == group.size()) return;
  if (failed == group.rank()) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      print_error(error);
    }
  } else {
    // The speaker exits first, so that a launcher, which ends everybody at the first exit, names the right
    // rank and does not cut its message off: this barrier fails as soon as it has left.
    try {
      group.barrier();
    } catch (const CommError&) {
    }
  }
  throw ReportedError("rank " + std::to_string(failed) + " failed", codes[static_cast<size_t>(failed)][0]);
}

}  // namespace lockstep::trainer
