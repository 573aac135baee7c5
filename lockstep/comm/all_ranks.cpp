#include "lockstep/comm/all_ranks.h"

#include <algorithm>
#include <exception>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/base/record_errors.h"

namespace lockstep {
namespace {

/// What a rank tells the others: nothing if all is well, else its exit code as one byte and its message.
std::string describe_outcome(const std::exception_ptr& failure) {
  if (!failure) return {};
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return std::string(1, static_cast<char>(exit_code(error))) + error.what();
  }
}

void report(const std::exception_ptr& failure, int rank) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    print_error(error);
    record_error(error, rank);
  }
}

}  // namespace

void on_all_ranks(const ProcessGroup& group, const std::function<void()>& body) {
  if (group.size() == 1) return body();
  std::exception_ptr failure;
  try {
    body();
  } catch (const CommError&) {
    throw;  // there is nobody left to agree with
  } catch (const StepFailedError&) {
    throw;  // all ranks know
  } catch (const std::exception&) {
    failure = std::current_exception();
  }

  const auto outcomes = group.all_gather_bytes(describe_outcome(failure));
  const auto first = std::find_if(outcomes.begin(), outcomes.end(),
                                  [](const std::string& outcome) { return !outcome.empty(); });
  if (first == outcomes.end()) return;
  const int speaker = static_cast<int>(first - outcomes.begin());
  const ReportedError error(fmt::format("rank {} failed: {}", speaker, first->substr(1)),
                            static_cast<unsigned char>(first->front()));
  if (group.rank() == speaker) {
    report(failure, speaker);
  } else {
    record_error(error, speaker);
  }
  // A launcher ends everybody at the first exit: nobody leaves before the line is written.
  group.barrier();
  throw error;
}

}  // namespace lockstep
