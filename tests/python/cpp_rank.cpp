// A C++ rank in a group whose other ranks are Python's (backend_test.py).
#include <ATen/ops/full.h>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/comm/init.h"

int main(int, char** argv) {
  return lockstep::run_main(argv[0], [] {
    auto world = lockstep::init();
    at::Tensor tensor = at::full({1000}, static_cast<double>(world.rank() + 1));
    world.all_reduce(tensor);
    if (!tensor.eq(6.0).all().item<bool>()) throw lockstep::Error("the sum over the ranks is not 6");
    tensor.fill_(0.5);
    world.broadcast(tensor, {.src = 0});
    return 0;
  });
}
