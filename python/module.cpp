// The "lockstep" backend for torch.distributed: makes c10d::Backend objects that Python's process groups use.
// torch/csrc/utils/pybind.h has more casters than the one needed here, and takes three times as long to
// compile.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/job_timeline.h"
#include "python/backend.h"

PYBIND11_DECLARE_HOLDER_TYPE(T, c10::intrusive_ptr<T>, true)

PYBIND11_MODULE(_C, module) {
  // Also of what torch's own functions call: all modules of the process share these translators.
  pybind11::register_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(std::move(error));
    } catch (const lockstep::ValueError& value_error) {
      PyErr_SetString(PyExc_ValueError, value_error.what());
    }
  });
  // torch releases the interpreter's lock around Work.wait(), but not around get_future() and synchronize().
  lockstep::backends::set_around_waits([](const std::function<void()>& wait) {
    if (PyGILState_Check() == 0) return wait();
    const pybind11::gil_scoped_release release;
    wait();
  });
  module.def("create_backend", &lockstep::python::create_backend, pybind11::arg("store"),
             pybind11::arg("rank"), pybind11::arg("size"), pybind11::arg("timeout"),
             pybind11::arg("global_ranks"), pybind11::arg("segment_fd"), pybind11::arg("segment_owner"),
             pybind11::call_guard<pybind11::gil_scoped_release>(),
             "Joins the ranks that share `store` in a segment of shared memory; blocks until all are there.");
  module.def(
      "end_timeline", &lockstep::end_timeline, pybind11::call_guard<pybind11::gil_scoped_release>(),
      "Ends the timeline that LOCKSTEP_TIMELINE asked for; writes the file where this rank is the last one.");
}
