#include "lockstep/parallel/ddp/uneven_passes.h"

#include <fmt/format.h>

#include <string>
#include <typeinfo>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string with_reason(const std::string& what, int64_t passes) {
  return fmt::format(
      "{}. DistributedDataParallel waited for it after {} averaged backward passes of this rank: if the other one has ended or "
      "does something else, the ranks made different numbers of backward passes. An optimizer that calls its closure several "
      "times (LBFGS) must get the same loss on all ranks: average the loss in the closure, as docs/optimizers.md shows. Or an "
      "exception has ended its step before it came here: lockstep::step() ends such a step on all ranks",
      what, passes);
}

std::string with_reason_of_mismatch(const std::string& what, int64_t passes) {
  return fmt::format(
      "{}. After {} averaged backward passes of this rank, the ranks are not in the same forward or backward: an exception has "
      "ended one rank's step (lockstep::step() ends such a step on all ranks), or one rank has made a forward alone with "
      "gradients enabled (validate under torch::NoGradGuard)",
      what, passes);
}

}  // namespace

void rethrow_in_pass(int64_t passes) {
  try {
    throw;
  } catch (const PeerLostError& error) {
    if (!error.loss().has_left) throw;
    throw PeerLostError(with_reason(error.what(), passes), error.rank(), error.loss());
  } catch (const MismatchError& error) {
    throw MismatchError(with_reason_of_mismatch(error.what(), passes));
  } catch (const TimeoutError& error) {
    throw TimeoutError(with_reason(error.what(), passes), error.missing_ranks());
  } catch (const CommError& error) {
    if (typeid(error) != typeid(CommError)) throw;
    throw CommError(with_reason(error.what(), passes));
  }
}

}  // namespace lockstep
