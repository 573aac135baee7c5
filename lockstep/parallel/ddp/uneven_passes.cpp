#include "lockstep/parallel/ddp/uneven_passes.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <typeinfo>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string with_reason(const std::string& what, int64_t passes) {
  return fmt::format(
      "{}. DistributedDataParallel waited for it after {} averaged backward passes of this rank: if the other one has ended or "
      "does something else, the ranks made different numbers of backward passes. An optimizer that calls its closure several "
      "times (LBFGS) must get the same loss on all ranks: average the loss in the closure, as docs/optimizers.md shows",
      what, passes);
}

}  // namespace

void rethrow_in_pass(int64_t passes) {
  try {
    throw;
  } catch (const PeerLostError& error) {
    if (std::string_view(error.what()).find("has left the ") == std::string_view::npos) throw;
    throw PeerLostError(with_reason(error.what(), passes), error.rank());
  } catch (const TimeoutError& error) {
    throw TimeoutError(with_reason(error.what(), passes), error.missing_ranks());
  } catch (const CommError& error) {
    if (typeid(error) != typeid(CommError)) throw;
    throw CommError(with_reason(error.what(), passes));
  }
}

}  // namespace lockstep
