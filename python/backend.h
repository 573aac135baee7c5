// What the Python module offers, as C++.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::python {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

/// Joins the ranks that share `store`, in a segment of shared memory; blocks until all are there. `timeout`
/// is in seconds. `global_ranks`: of the group's members by rank, empty for the group of all ranks, with
/// which a timeline begins. If that one is of this backend, a group of some of its ranks lives in its segment.
/// `segment_fd` and `segment_owner`: the segment that a launcher has handed down to the group of all ranks.
BackendPtr create_backend(const StorePtr& store, int rank, int size, double timeout,
                          const std::vector<int>& global_ranks, std::optional<int> segment_fd,
                          const std::optional<std::string>& segment_owner);

/// A group of some ranks is being made, of whatever backend. Its ranks meet in the job's store, which has forgotten nothing of
/// a rank that died, so a new process could not join it: before Recovery this refuses that ranks are replaced, and after it this
/// rank hands its state over no longer. Returns whether it did until now. Throws Error in a process that takes another one's place,
/// which had made no such group.
bool note_subgroup();
/// Until Recovery, another reason why ranks cannot be replaced. Nothing where they are not.
void refuse_replacement(const std::string& why);

/// The group of all ranks that create_backend() has made; null: there is none.
std::shared_ptr<ProcessGroup::Impl> find_world();

}  // namespace lockstep::python
