#include <torch/csrc/autograd/python_variable.h>  // includes Python.h, which must come first

#include "lockstep/base/error.h"
#include "python/tensors.h"

namespace lockstep::python {

std::vector<at::Tensor> tensors_of(PyObject* list) {
  std::vector<at::Tensor> tensors;
  const Py_ssize_t size = PyList_Size(list);
  tensors.reserve(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const object = PyList_GetItem(list, i);
    if (!THPVariable_Check(object)) throw Error("what Recovery looks at is not a tensor");
    tensors.push_back(THPVariable_Unpack(object));
  }
  return tensors;
}

}  // namespace lockstep::python
