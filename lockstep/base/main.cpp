#include "lockstep/base/main.h"

#include <cstdio>
#include <exception>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

int run_main(const char* program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const ValueError& error) {
    std::fprintf(stderr, "%s: error: %s\n", program, error.what());
    return 2;
  } catch (const std::exception& error) {
    // LibTorch's own errors go on with a stack trace after this mark.
    const std::string text = error.what();
    std::fprintf(stderr, "%s: error: %s\n", program,
                 text.substr(0, text.find("\nException raised from ")).c_str());
    return 1;
  }
}

}  // namespace lockstep
