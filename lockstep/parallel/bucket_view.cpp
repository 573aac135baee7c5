#include "lockstep/parallel/bucket_view.h"

namespace lockstep {

at::Tensor view_in_bucket(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  const at::Tensor view = like.is_non_overlapping_and_dense()
                              ? flat.as_strided(like.sizes(), like.strides(), flat.storage_offset() + offset)
                              : flat.narrow(0, offset, like.numel()).view(like.sizes());
  return view.variable_data();
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.is_alias_of(b) && a.const_data_ptr() == b.const_data_ptr() &&
                          a.strides() == b.strides() && a.scalar_type() == b.scalar_type());
}

}  // namespace lockstep
