#include "lockstep/job/meeting_point.h"

#include <charconv>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"

namespace lockstep::job {
namespace {

constexpr int64_t kFirstPort = 20000, kPorts = 10000;

uint16_t port_of(int64_t number) { return static_cast<uint16_t>(kFirstPort + number % kPorts); }

}  // namespace

std::optional<MeetingPoint> slurm_meeting_point() {
  auto nodes = env::get("SLURM_STEP_NODELIST");
  if (!nodes) nodes = env::get("SLURM_JOB_NODELIST");
  if (!nodes) return std::nullopt;
  const int64_t job = env::get_int(env::kSlurmJobId).value_or(0),
                step = env::get_int(env::kSlurmStepId).value_or(0);
  return MeetingPoint{first_host(*nodes), port_of(16 * job + step)};
}

std::optional<MeetingPoint> open_mpi_meeting_point() {
  // "1579876352.0;tcp://10.77.0.1,192.168.0.1:33507": the job, mpirun's number in it, its addresses.
  const std::string uri = env::get(env::kOpenMpiUri).value_or("");
  constexpr std::string_view scheme = ";tcp://";
  const size_t start = uri.find(scheme);
  if (start == uri.npos) return std::nullopt;
  const std::string_view addresses = std::string_view(uri).substr(start + scheme.size());
  uint32_t job = 0;
  std::from_chars(uri.data(), uri.data() + start, job);
  // The lower half numbers the jobs of one mpirun.
  return MeetingPoint{std::string(addresses.substr(0, addresses.find_first_of(",:;"))), port_of(job >> 16)};
}

std::string first_host(std::string_view list) {
  std::string name;
  for (size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      name += list[at];
      continue;
    }
    const size_t close = list.find(']', at);
    const std::string_view numbers = list.substr(at + 1, close == list.npos ? list.npos : close - at - 1);
    name += numbers.substr(0, numbers.find_first_of(",-"));
    if (close == list.npos) break;
    at = close;
  }
  return name;
}

}  // namespace lockstep::job
