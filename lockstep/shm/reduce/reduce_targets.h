// The instruction sets for which reductions are compiled, for Highway's foreach_target: comes before its headers.
// Machines that train have AVX2: one variant for older ones is enough. The kinds of AVX-512 add nothing that a
// reduction uses. Fewer compile faster.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_AVX10_2)
#include <hwy/detect_targets.h>
// Older Highways do not know these: 1.0.3, of Debian 12, none of them.
#ifndef HWY_AVX3_ZEN4
#define HWY_AVX3_ZEN4 0
#endif
#ifndef HWY_AVX3_SPR
#define HWY_AVX3_SPR 0
#endif
#ifndef HWY_AVX10_2
#define HWY_AVX10_2 0
#endif
