#include "lockstep/base/main.h"

#include <cstdio>
#include <exception>

#include "lockstep/base/error.h"

namespace lockstep {

int run_main(const char* program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const ValueError& error) {
    std::fprintf(stderr, "%s: error: %s\n", program, error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: error: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace lockstep
