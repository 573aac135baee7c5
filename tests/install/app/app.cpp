// A program as a user writes it: it knows Lockstep only through find_package.
#include <lockstep/lockstep.h>

#include <cstdio>

int main() {
  try {
    throw lockstep::PeerLostError("rank 1 left", 1);
  } catch (const lockstep::CommError& error) {
    at::Tensor none;
    std::printf("%s, %d\n", error.what(), none.defined());
  }
}
