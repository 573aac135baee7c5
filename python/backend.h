// What the Python module offers, as C++.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <vector>

namespace lockstep::python {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

/// Joins the ranks that share `store`, in a segment of shared memory; blocks until all are there. `timeout`
/// is in seconds. `global_ranks`: of the group's members by rank, empty for the group of all ranks, with
/// which a timeline begins. Where that one is of this backend, a group of some of its ranks lives in its
/// segment.
BackendPtr create_backend(const StorePtr& store, int rank, int size, double timeout,
                          const std::vector<int>& global_ranks);

}  // namespace lockstep::python
