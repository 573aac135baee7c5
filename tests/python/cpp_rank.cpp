// A C++ rank in a group whose other ranks are Python's (backend_test.py).
#include <ATen/ops/full.h>

#include "lockstep/comm/init.h"
#include "tests/rank_cases.h"

namespace {

void with_python() {
  auto world = lockstep::init();
  at::Tensor tensor = at::full({1000}, static_cast<double>(world.rank() + 1));
  world.all_reduce(tensor);
  CHECK_TRUE(tensor.eq(6.0).all().item<bool>());
  tensor.fill_(0.5);
  world.broadcast(tensor, {.src = 0});
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::testing::run_case(argc, argv, {{"with_python", with_python}});
}
