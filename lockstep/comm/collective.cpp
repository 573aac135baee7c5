#include "lockstep/comm/collective.h"

#include <sstream>

#include "lockstep/comm/shm_tensor.h"
#include "lockstep/shm/flight_recorder.h"

namespace lockstep {
namespace {

using Kind = Collective::Kind;

/// How the core names an operation, and with which of its own it is described.
struct Names {
  const char* name;
  shm::OpKind kind;
};

Names names_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return {"all_reduce", shm::OpKind::all_reduce};
    case Kind::reduce:
      return {"reduce", shm::OpKind::reduce};
    case Kind::reduce_scatter:
      return {"reduce_scatter", shm::OpKind::reduce_scatter};
    case Kind::reduce_parts:
      return {"reduce_parts", shm::OpKind::reduce_scatter};
    case Kind::broadcast:
      return {"broadcast", shm::OpKind::broadcast};
    case Kind::scatter:
      return {"scatter", shm::OpKind::scatter};
    case Kind::gather:
      return {"gather", shm::OpKind::gather};
    case Kind::all_gather:
      return {"all_gather", shm::OpKind::all_gather};
    case Kind::all_gather_parts:
      return {"all_gather_parts", shm::OpKind::all_gather};
    case Kind::all_to_all:
      return {"all_to_all", shm::OpKind::all_to_all};
    case Kind::barrier:
      return {"barrier", shm::OpKind::barrier};
    case Kind::send:
      return {"send", shm::OpKind::send};
    case Kind::recv:
      return {"recv", shm::OpKind::recv};
  }
  return {"unknown", shm::OpKind::none};
}

/// "float32[2, 3]"; without the shape where ranks may differ in it.
std::string elements_of(const Collective& collective) {
  const at::Tensor* const tensor =
      collective.kind == Kind::reduce_scatter ? &collective.outputs.front() : collective.tensor();
  if (tensor == nullptr) return "";
  std::ostringstream text;
  text << dtype_name(tensor->scalar_type());
  if (collective.kind != Kind::all_to_all) text << tensor->sizes();
  return text.str();
}

}  // namespace

const at::Tensor* Collective::tensor() const {
  if (kind == Kind::barrier) return nullptr;
  return kind == Kind::scatter || kind == Kind::recv ? &outputs.front() : &inputs.front();
}

const char* name_of(Kind kind) { return names_of(kind).name; }

std::string describe(const Collective& collective) {
  const auto [name, kind] = names_of(collective.kind);
  return shm::describe(name, kind, elements_of(collective), collective.op, collective.root);
}

}  // namespace lockstep
