// Linked into every test program: a third of what a process costs that does little else is the end of LibTorch.
#include "lockstep/base/main.h"

namespace {

const bool quick = [] {
  lockstep::skip_library_destructors();
  return true;
}();

}  // namespace
