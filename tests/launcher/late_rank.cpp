// A rank of the shared-memory core that comes to three barriers; rank 1 comes argv[1] seconds late to the third, or
// as soon as there is a file `go`.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/main.h"
#include "lockstep/shm/group/group.h"
#include "lockstep/shm/node.h"

int main(int, char** argv) {
  using namespace lockstep;
  return run_main("late_rank", [&] {
    constexpr std::chrono::seconds deadline(120);
    const int rank = static_cast<int>(env::get_int("LOCAL_RANK").value());
    shm::Node node(static_cast<int>(env::get_int("LOCKSTEP_SEGMENT_FD").value()), rank);
    std::vector<int> members(static_cast<size_t>(node.segment().ranks()));
    std::iota(members.begin(), members.end(), 0);
    shm::Group group(node, 0, members, rank, deadline);
    node.wait_for_all(deadline);
    group.barrier(deadline);
    group.barrier(deadline);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
    while (rank == 1 && std::chrono::steady_clock::now() < end && !std::filesystem::exists("go")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    group.barrier(deadline);
    return 0;
  });
}
