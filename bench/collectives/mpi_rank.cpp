// lockstep-bench-mpi: one rank of an MPI program that `lockstep bench` measures.
#include <mpi.h>

#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "bench/collectives/rank_loop.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"

namespace {

using namespace lockstep;
using bench::Collective;

MPI_Datatype mpi_type(shm::DType dtype) {
  switch (dtype) {
    case shm::DType::float32:
      return MPI_FLOAT;
    case shm::DType::float64:
      return MPI_DOUBLE;
    case shm::DType::int8:
      return MPI_INT8_T;
    case shm::DType::uint8:
      return MPI_UINT8_T;
    case shm::DType::int16:
      return MPI_INT16_T;
    case shm::DType::int32:
      return MPI_INT32_T;
    case shm::DType::int64:
      return MPI_INT64_T;
    default:
      throw ValueError(fmt::format("MPI does not reduce {}", shm::dtype_name(dtype)));
  }
}

class MpiEngine final : public bench::Engine {
 public:
  MpiEngine(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  void prepare(const bench::Command& command) override {
    type_ = mpi_type(command.dtype);
    collective_ = command.collective;
    const auto [in, out] = bench::buffers_of(command.collective, command.bytes, ranks_, rank_);
    const size_t element = shm::element_size(command.dtype);
    count_ = static_cast<int>(command.bytes / element);
    part_ = static_cast<int>(command.bytes / static_cast<size_t>(ranks_) / element);
    if (in != input_.size()) input_ = std::vector<std::byte>(in);
    if (out != output_.size()) output_ = std::vector<std::byte>(out);
  }
  std::vector<Buffer> inputs() override { return {{input_.data(), input_.size()}}; }
  void call() override {
    void* const in = input_.data();
    void* const out = output_.data();
    switch (collective_) {
      case Collective::all_reduce:
        MPI_Allreduce(MPI_IN_PLACE, in, count_, type_, MPI_SUM, MPI_COMM_WORLD);
        return;
      case Collective::reduce:
        MPI_Reduce(rank_ == 0 ? MPI_IN_PLACE : in, rank_ == 0 ? in : nullptr, count_, type_, MPI_SUM, 0,
                   MPI_COMM_WORLD);
        return;
      case Collective::broadcast:
        MPI_Bcast(in, count_, type_, 0, MPI_COMM_WORLD);
        return;
      case Collective::all_gather:
        MPI_Allgather(in, part_, type_, out, part_, type_, MPI_COMM_WORLD);
        return;
      case Collective::reduce_scatter:
        MPI_Reduce_scatter_block(in, out, part_, type_, MPI_SUM, MPI_COMM_WORLD);
        return;
      case Collective::all_to_all:
        MPI_Alltoall(in, part_, type_, out, part_, type_, MPI_COMM_WORLD);
        return;
      case Collective::gather:
        MPI_Gather(in, part_, type_, out, part_, type_, 0, MPI_COMM_WORLD);
        return;
      case Collective::scatter:
        MPI_Scatter(in, part_, type_, out, part_, type_, 0, MPI_COMM_WORLD);
        return;
      case Collective::barrier:
        MPI_Barrier(MPI_COMM_WORLD);
        return;
      case Collective::send_recv:
        if (rank_ > 1) return;
        if (rank_ == 0) MPI_Send(in, count_, type_, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(in, count_, type_, 1 - rank_, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank_ == 1) MPI_Send(in, count_, type_, 0, 0, MPI_COMM_WORLD);
        return;
    }
  }

 private:
  int rank_, ranks_;
  Collective collective_{};
  MPI_Datatype type_ = MPI_FLOAT;
  int count_ = 0;
  int part_ = 0;
  std::vector<std::byte> input_, output_;
};

int run(int argc, char** argv) {
  uint32_t number = 0;
  const std::string_view word = argc == 2 ? argv[1] : "";
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size())
    throw ValueError("expected a number; started by `lockstep bench`");
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MpiEngine engine(rank, ranks);
  bench::serve(engine, number, rank);
  MPI_Finalize();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  skip_library_destructors();
  return run_main("lockstep-bench-mpi", [&] { return run(argc, argv); });
}
