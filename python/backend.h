// What the Python module offers, as C++.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep::python {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

/// Joins the ranks that share `store` in a segment of shared memory; blocks until all are there.
/// `is_default`: the group of all ranks, with which a timeline begins. `timeout` is in seconds.
BackendPtr create_backend(const StorePtr& store, int rank, int size, double timeout, bool is_default);

}  // namespace lockstep::python
