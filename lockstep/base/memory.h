// How this process takes memory from the system and gives it back.
#pragma once

namespace lockstep {

/// Keeps freed memory in the process instead of returning large pieces to the system at once, as glibc does
/// by default: a training step frees and takes the same large tensors again and again, and each time the
/// system would have to clear their pages. Costs the largest amount ever used. Call it once, early in main;
/// without glibc it does nothing.
void keep_freed_memory();

}  // namespace lockstep
