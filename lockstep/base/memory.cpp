#include "lockstep/base/memory.h"

#include <climits>  // defines __GLIBC__ where it is

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace lockstep {

void keep_freed_memory() {
#ifdef __GLIBC__
  // A threshold for mmap cannot be set above 32 MiB, less than one embedding table: so no mmap at all.
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  ::mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace lockstep
