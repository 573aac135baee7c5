#include "lockstep/comm/wire_dtype.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/algorithms/choice.h"
#include "lockstep/comm/shm_tensor.h"
#include "lockstep/shm/reduce/reduce.h"

namespace lockstep {

namespace {

const char* const kWireDtypeVariable = "LOCKSTEP_WIRE_DTYPE";

}  // namespace

WireDtype find_wire_dtype() {
  const std::string name = env::get(kWireDtypeVariable).value_or("exact");
  if (name == "bf16" || name == "bfloat16") return WireDtype::BFLOAT16;
  if (name == "exact") return WireDtype::EXACT;
  throw ValueError(fmt::format("{}={}: choose bf16 or exact, or leave it out", kWireDtypeVariable, name));
}

const char* name_of(WireDtype dtype) { return dtype == WireDtype::BFLOAT16 ? "bf16" : "exact"; }

void warn_of_exact_sums(int rank) {
  const bool is_exact = find_wire_dtype() == WireDtype::EXACT;  // a wrong name is an error on each rank
  if (rank == 0 && !is_exact)
    log::warning(
        fmt::format("{} has no effect on the backend gloo, which sends all bits", kWireDtypeVariable));
}

void agree_on_wire_dtype(const StoreRounds& rounds) {
  const char* const own = name_of(find_wire_dtype());
  const std::vector<std::string> names = rounds.tell_all("wire_dtype", own);
  for (size_t r = 1; r < names.size(); ++r) {
    if (names[r] == names[0]) continue;
    rounds.let_all_read("wire_dtype");
    throw CommError(fmt::format("{} is {} on rank 0 and {} on rank {}: it must be the same on all",
                                kWireDtypeVariable, names[0], names[r], r));
  }
}

void check_same_wire_dtype(int rank, const std::string& before) {
  const char* const own = name_of(find_wire_dtype());
  if (own == before) return;
  throw Error(fmt::format(
      "{} is {} for this process, and was {} for the one of rank {} whose place it takes: it must be the same on all machines, "
      "also on spare machines",
      kWireDtypeVariable, own, before, rank));
}

bool has_roundable_sums(at::ScalarType dtype, ReduceOp op) {
  const at::ScalarType real = c10::toRealValueType(dtype);
  const bool adds = op == ReduceOp::SUM || op == ReduceOp::AVG || op == ReduceOp::PREMUL_SUM;
  return adds && (real == at::kFloat || real == at::kHalf || real == at::kBFloat16);
}

void check_wire_dtype(const ProcessGroup::Impl& group, const at::Tensor& tensor,
                      const AllReduceOptions& options, AllReduceAlgorithm algorithm) {
  if (options.wire_dtype != WireDtype::BFLOAT16) return;
  if (!group.traits().wire_dtype) {
    throw ValueError(fmt::format("all_reduce: wire_dtype BFLOAT16 needs the backend \"lockstep\", not \"{}\"",
                                 group.name()));
  }
  if (algorithm != AllReduceAlgorithm::DIRECT) {
    throw ValueError(fmt::format("all_reduce: wire_dtype BFLOAT16 needs the algorithm direct, not {}",
                                 algorithms::name_of(algorithm)));
  }
  if (has_roundable_sums(tensor.scalar_type(), options.op)) return;
  throw ValueError(fmt::format(
      "all_reduce: wire_dtype BFLOAT16 is for SUM, AVG and PREMUL_SUM of float32, float16 and bfloat16, "
      "not for {} of {}",
      shm::reduction_name(options.op), dtype_name(tensor.scalar_type())));
}

}  // namespace lockstep
