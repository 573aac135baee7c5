#include "lockstep/comm/process_group/collective.h"

#include <sstream>

#include "lockstep/comm/shm_tensor.h"
#include "lockstep/shm/flight_recorder.h"

namespace lockstep {
namespace {

using Kind = Collective::Kind;

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

/// Messages end in no order.
Work::EngineKind Collective::engine() const {
  if (is_message()) return Work::EngineKind::own;
  const at::Tensor* const decides = tensor();
  const bool is_on_device = decides != nullptr && !decides->is_cpu();
  return is_on_device ? Work::EngineKind::device : Work::EngineKind::main_memory;
}

const at::Tensor* Collective::tensor() const {
  if (kind == Kind::barrier) return nullptr;
  return kind == Kind::scatter || kind == Kind::recv ? &outputs.front() : &inputs.front();
}

std::string describe(const Collective& collective) {
  const auto [name, core] = names_of(collective.kind);
  std::string text = shm::describe(name, core, elements_of(collective), collective.op, collective.root);
  if (collective.wire_dtype == WireDtype::BFLOAT16)
    text.insert(text.size() - 1, ", bfloat16 between machines");
  return text;
}

}  // namespace lockstep
