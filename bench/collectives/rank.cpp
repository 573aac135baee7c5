// lockstep-bench-rank: one rank of a Lockstep group (on any of its backends) that `lockstep bench` measures.
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <map>
#include <string>

#include "bench/collectives/rank_loop.h"
#include "bench/network/machine_rank.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/comm/algorithms/choice.h"
#include "lockstep/comm/init.h"

namespace {

using namespace lockstep;
using bench::Collective;

at::ScalarType scalar_type(shm::DType dtype) {
  static const std::map<shm::DType, at::ScalarType> types = {
      {shm::DType::float32, at::kFloat}, {shm::DType::float64, at::kDouble},
      {shm::DType::float16, at::kHalf},  {shm::DType::bfloat16, at::kBFloat16},
      {shm::DType::int8, at::kChar},     {shm::DType::uint8, at::kByte},
      {shm::DType::int16, at::kShort},   {shm::DType::int32, at::kInt},
      {shm::DType::int64, at::kLong},    {shm::DType::uint16, at::kUInt16},
      {shm::DType::uint32, at::kUInt32}, {shm::DType::uint64, at::kUInt64}};
  return types.at(dtype);
}

class GroupEngine final : public bench::Engine {
 public:
  explicit GroupEngine(const World& world) : world_(world) {}

  void prepare(const bench::Command& command) override {
    if (same_as_before(command)) return;
    input_ = output_ = at::Tensor();
    parts_.clear();
    command_ = command;
    algorithm_ = algorithms::algorithm_named(command.algorithm);
    const auto [in, out] = bench::buffers_of(command.collective, command.bytes, world_.size(), world_.rank());
    input_ = make(in);
    output_ = make(out);
    if (command.collective == Collective::scatter && world_.rank() == 0) {
      const int64_t part = input_.numel() / world_.size();
      for (int r = 0; r < world_.size(); ++r) parts_.push_back(input_.narrow(0, r * part, part));
    }
  }
  std::vector<Buffer> inputs() override {
    if (input_.numel() == 0) return {};
    return {{input_.mutable_data_ptr(), input_.nbytes()}};
  }
  void call() override {
    switch (command_.collective) {
      case Collective::all_reduce:
        return world_.all_reduce(input_, {.algorithm = algorithm_});
      case Collective::reduce:
        return world_.reduce(input_);
      case Collective::broadcast:
        return world_.broadcast(input_);
      case Collective::all_gather:
        return world_.all_gather_into_tensor(output_, input_);
      case Collective::reduce_scatter:
        return world_.reduce_scatter_tensor(output_, input_);
      case Collective::all_to_all:
        return world_.all_to_all_single(output_, input_);
      case Collective::gather:
        world_.gather(input_);
        return;
      case Collective::scatter:
        return world_.scatter(output_, parts_);
      case Collective::barrier:
        return world_.barrier();
      case Collective::send_recv:
        if (world_.rank() == 0) {
          world_.send(input_, 1);
          world_.recv(input_, 1);
        } else if (world_.rank() == 1) {
          world_.recv(input_, 0);
          world_.send(input_, 0);
        }
        return;
    }
  }

 private:
  bool same_as_before(const bench::Command& command) const {
    return input_.defined() && command.collective == command_.collective && command.bytes == command_.bytes &&
           command.dtype == command_.dtype && command.registered == command_.registered &&
           std::strcmp(command.algorithm, command_.algorithm) == 0;
  }
  at::Tensor make(size_t bytes) const {
    const at::ScalarType type = scalar_type(command_.dtype);
    const auto count = static_cast<int64_t>(bytes / c10::elementSize(type));
    return command_.registered != 0 ? world_.empty_shared({count}, type) : at::empty({count}, type);
  }

  World world_;
  bench::Command command_{};
  AllReduceAlgorithm algorithm_ = AllReduceAlgorithm::DIRECT;
  at::Tensor input_, output_;
  std::vector<at::Tensor> parts_;
};

int run(int argc, char** argv) {
  if (argc > 3 && std::strcmp(argv[1], "--machines") == 0) {
    const at::NoGradGuard no_grad;
    bench::run_machine_rank(argv[2], {argv + 3, argv + argc});
    destroy();
    return 0;
  }
  if (argc != 3) throw ValueError("expected a backend and its number; started by `lockstep bench`");
  const std::string backend = argv[1];
  const at::NoGradGuard no_grad;
  {
    const World world = init({.backend = backend, .timeout = std::chrono::seconds(60)});
    GroupEngine engine(world);
    bench::serve(engine, static_cast<uint32_t>(std::stoul(argv[2])), world.rank());
  }
  destroy();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  skip_library_destructors();
  return run_main("lockstep-bench-rank", [&] { return run(argc, argv); });
}
