#include "lockstep/comm/backends/hybrid_failure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::backends {
namespace {

constexpr std::string_view kMark = "lockstep-failure ";

enum class Sort : char { step = 'S', timeout = 'T', lost = 'L', mismatch = 'M', other = 'C' };

/// `numbers`: ranks, and what else belongs to errors of this kind.
std::string encode(Sort kind, const std::vector<int>& numbers, const std::string& text) {
  return fmt::format("{}{} {} {} {}", kMark, static_cast<char>(kind), numbers.size(), fmt::join(numbers, " "),
                     text);
}

/// For texts in which ranks have the numbers that they have on their machine.
std::string explain(const std::string& text, const std::vector<int>& ranks) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] == static_cast<int>(r)) continue;
    return fmt::format("{} (ranks are numbered by their machine here: 0 to {} are the ranks {})", text,
                       ranks.size() - 1, fmt::join(ranks, ", "));
  }
  return text;
}

}  // namespace

std::string encode_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const StepFailedError& error) {
    return encode(Sort::step, {}, error.what());
  } catch (const TimeoutError& error) {
    return encode(Sort::timeout, error.missing_ranks(), error.what());
  } catch (const PeerLostError& error) {
    const PeerLoss& loss = error.loss();
    return encode(Sort::lost, {error.rank(), loss.has_left ? 1 : 0, loss.quotes_call ? 1 : 0}, error.what());
  } catch (const MismatchError& error) {
    return encode(Sort::mismatch, {}, error.what());
  } catch (const std::exception& error) {
    return encode(Sort::other, {}, error.what());
  }
}

std::exception_ptr decode_failure(const std::string& text) {
  if (!text.starts_with(kMark)) return nullptr;
  std::istringstream fields(text.substr(kMark.size()));
  char kind = 0;
  size_t count = 0;
  fields >> kind >> count;
  std::vector<int> numbers(count);
  for (int& number : numbers) fields >> number;
  fields.get();
  if (count == 0) fields.get();  // two spaces with no number between
  std::string message;
  std::getline(fields, message, '\0');
  switch (static_cast<Sort>(kind)) {
    case Sort::step:
      return std::make_exception_ptr(StepFailedError(message));
    case Sort::timeout:
      return std::make_exception_ptr(TimeoutError(message, std::move(numbers)));
    case Sort::lost:
      numbers.resize(3);
      return std::make_exception_ptr(
          PeerLostError(message, numbers[0], {.has_left = numbers[1] != 0, .quotes_call = numbers[2] != 0}));
    case Sort::mismatch:
      return std::make_exception_ptr(MismatchError(message));
    case Sort::other:
      break;
  }
  return std::make_exception_ptr(CommError(message));
}

std::exception_ptr translate_failure(const std::exception_ptr& failure, const std::vector<int>& ranks) {
  const auto rank_of = [&](int local) {
    return local >= 0 && static_cast<size_t>(local) < ranks.size() ? ranks[static_cast<size_t>(local)] : -1;
  };
  try {
    std::rethrow_exception(failure);
  } catch (const StepFailedError& error) {
    const std::exception_ptr decoded = decode_failure(error.what());
    return decoded ? decoded : failure;
  } catch (const TimeoutError& error) {
    std::vector<int> missing;
    for (const int local : error.missing_ranks()) missing.push_back(rank_of(local));
    return std::make_exception_ptr(TimeoutError(explain(error.what(), ranks), std::move(missing)));
  } catch (const PeerLostError& error) {
    return std::make_exception_ptr(
        PeerLostError(explain(error.what(), ranks), rank_of(error.rank()), error.loss()));
  } catch (const MismatchError& error) {
    return std::make_exception_ptr(MismatchError(explain(error.what(), ranks)));
  } catch (...) {
    return failure;
  }
}

std::exception_ptr quote_call(const std::exception_ptr& failure, int rank, const std::string& call) {
  try {
    std::rethrow_exception(failure);
  } catch (const MismatchError& error) {
    const std::string text = error.what();
    if (text.find(call) != std::string::npos) return failure;
    return std::make_exception_ptr(MismatchError(fmt::format("{}; rank {} has called {}", text, rank, call)));
  } catch (...) {
    return failure;
  }
}

std::exception_ptr quote_loss(const std::exception_ptr& failure, const std::string& during) {
  try {
    std::rethrow_exception(failure);
  } catch (const PeerLostError& error) {
    if (error.loss().quotes_call || during.empty()) return failure;
    return std::make_exception_ptr(PeerLostError(error.what() + during, error.rank(),
                                                 {.has_left = error.loss().has_left, .quotes_call = true}));
  } catch (...) {
    return failure;
  }
}

}  // namespace lockstep::backends
