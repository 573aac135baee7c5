// The two halves of reduce(), by kind of dtype.
#pragma once

#include "lockstep/shm/reduce/reduce.h"

namespace lockstep::shm {

void reduce_floats(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
                   void* const* destinations, size_t destination_count, size_t count);
void reduce_integers(DType dtype, ReduceOp reduction, const void* const* sources, size_t ranks,
                     void* const* destinations, size_t destination_count, size_t count);

}  // namespace lockstep::shm
