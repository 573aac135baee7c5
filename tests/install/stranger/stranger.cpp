#include <lockstep/base/error.h>
#include <lockstep/base/main.h>

#include <cstdio>

int main() {
  return lockstep::run_main("stranger", [] {
    try {
      throw lockstep::FileError("a file is missing");
    } catch (const lockstep::Error& error) {
      std::printf("Lockstep says: %s\n", error.what());
    }
    return 0;
  });
}
