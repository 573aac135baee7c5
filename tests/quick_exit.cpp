// Linked into test programs but those of ranks: they end after their own exit handlers, without the destructors of what
// LibTorch made before main. Those take 0.14 s of processor time, a third of what a process costs that does little else.
// Recipes and tools end as any program does, and so does what a launcher starts: others notice how a rank leaves.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;  // what they have found is said at the very end
#else
constexpr bool kSanitized = false;
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

void leave(int code, void*) {
  if (std::getenv("RANK") != nullptr) return;
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(code);
}

// Exit handlers run in the order opposite to that of their registration, and this one's comes before main.
const bool registered = kSanitized || ::on_exit(leave, nullptr) == 0;

}  // namespace
