#include "lockstep/comm/shm_tensor.h"

#include <optional>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

void check_memory(const at::Tensor& tensor) {
  if (!tensor.defined()) throw ValueError("a collective was given a tensor that is not defined");
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided) {
    throw ValueError(fmt::format("the lockstep backend takes dense tensors on the CPU, not one on {}{}",
                                 tensor.device().str(),
                                 tensor.layout() == at::kStrided ? "" : " that is sparse"));
  }
}

namespace {

std::optional<shm::DType> to_shm(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Float:
      return shm::DType::float32;
    case at::ScalarType::Double:
      return shm::DType::float64;
    case at::ScalarType::Half:
      return shm::DType::float16;
    case at::ScalarType::BFloat16:
      return shm::DType::bfloat16;
    case at::ScalarType::Char:
      return shm::DType::int8;
    case at::ScalarType::Byte:
      return shm::DType::uint8;
    case at::ScalarType::Short:
      return shm::DType::int16;
    case at::ScalarType::Int:
      return shm::DType::int32;
    case at::ScalarType::Long:
      return shm::DType::int64;
    case at::ScalarType::UInt16:
      return shm::DType::uint16;
    case at::ScalarType::UInt32:
      return shm::DType::uint32;
    case at::ScalarType::UInt64:
      return shm::DType::uint64;
    case at::ScalarType::Bool:
      return shm::DType::boolean;
    case at::ScalarType::ComplexHalf:
      return shm::DType::complex32;
    case at::ScalarType::ComplexFloat:
      return shm::DType::complex64;
    case at::ScalarType::ComplexDouble:
      return shm::DType::complex128;
    case at::ScalarType::Float8_e4m3fn:
      return shm::DType::float8_e4m3fn;
    case at::ScalarType::Float8_e4m3fnuz:
      return shm::DType::float8_e4m3fnuz;
    case at::ScalarType::Float8_e5m2:
      return shm::DType::float8_e5m2;
    case at::ScalarType::Float8_e5m2fnuz:
      return shm::DType::float8_e5m2fnuz;
    case at::ScalarType::Float8_e8m0fnu:
      return shm::DType::float8_e8m0fnu;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  const auto known = to_shm(dtype);
  return known ? shm::dtype_name(*known) : c10::toString(dtype);
}

shm::DType to_shm(const at::Tensor& tensor) {
  check_memory(tensor);
  if (const auto dtype = to_shm(tensor.scalar_type())) return *dtype;
  throw ValueError(
      fmt::format("the lockstep backend does not take tensors of dtype {}: convert them, or send a view "
                  "of another dtype",
                  c10::toString(tensor.scalar_type())));
}

ReduceOp checked(ReduceOp op, shm::DType dtype) {
  if (!shm::is_supported(dtype, op)) {
    throw ValueError(
        fmt::format("a reduction cannot combine {} by {}; AVG needs numbers, PREMUL_SUM a floating-point "
                    "dtype, BAND, BOR and BXOR an integer dtype or bool",
                    shm::dtype_name(dtype), shm::reduction_name(op)));
  }
  return op;
}

}  // namespace lockstep
