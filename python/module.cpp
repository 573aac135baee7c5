// The "lockstep" backend for torch.distributed: makes c10d::Backend objects that Python's process groups use.
// torch/csrc/utils/pybind.h has more casters than the one needed here, and takes three times as long to
// compile.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/job_timeline.h"
#include "lockstep/job/spare.h"
#include "lockstep/parallel/tensor_probe.h"
#include "python/backend.h"
#include "python/recovery.h"
#include "python/tensors.h"
#include "python/watch.h"

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
  using lockstep::python::WaitingForPeers;
  module.def(
      "wait_for_place", &lockstep::job::wait_for_place, pybind11::call_guard<pybind11::gil_scoped_release>(),
      "In a spare: blocks until it takes a rank's place. Returns what has changed in the environment.");
  module.def("begin_watch", &lockstep::python::begin_watch);
  pybind11::class_<WaitingForPeers>(module, "WaitingForPeers",
                                    "While inside, lockrun knows that this process waits for its peers.")
      .def(pybind11::init())
      .def("__enter__", &WaitingForPeers::begin)
      .def("__exit__", [](WaitingForPeers& waiting, const pybind11::args&) { waiting.end(); });
  using lockstep::python::Healing;
  using Unlocked = pybind11::call_guard<pybind11::gil_scoped_release>;
  pybind11::class_<Healing, std::shared_ptr<Healing>>(
      module, "Healing", "This process's part of a job whose ranks are replaced when they die.")
      .def("is_new", &Healing::is_new)
      .def("end_recording", &Healing::end_recording, Unlocked())
      .def("set_healable",
           [](Healing& healing, bool value) { healing.set_healable(value ? lockstep::shm::kIsHealable : 0); })
      .def("keep_own",
           [](Healing& healing, const pybind11::list& statistics) {
             auto tensors = lockstep::python::tensors_of(statistics.ptr());
             const pybind11::gil_scoped_release release;
             healing.keep_own(std::move(tensors));
           })
      .def("begin", &Healing::begin)
      .def("go_to", &Healing::go_to, Unlocked())
      .def("commit", &Healing::commit)
      .def("has_failed", &Healing::has_failed, Unlocked())
      .def("has_world_changed", &Healing::has_world_changed, pybind11::arg("looks_like_death"), Unlocked())
      .def("stop", &Healing::stop, pybind11::arg("timeout"), Unlocked())
      .def("go_on", &Healing::go_on, pybind11::arg("timeout"), Unlocked());
  module.def(
      "make_healing", [] { return lockstep::python::make_healing(lockstep::python::find_world()); },
      Unlocked(), "None where ranks are not replaced.");
  module.def("end_healing", &lockstep::python::end_healing, Unlocked());
  module.def("note_subgroup", &lockstep::python::note_subgroup);
  module.def("refuse_replacement", &lockstep::python::refuse_replacement);
  module.def(
      "probe",
      [](const pybind11::list& tensors) {
        return lockstep::detail::probe_of(lockstep::python::tensors_of(tensors.ptr()));
      },
      "A number that changes when the tensors are written, as good as certainly.");
  module.def("seed_of_step", &lockstep::python::seed_of_step);
}
