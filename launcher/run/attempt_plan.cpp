#include "launcher/run/attempt_plan.h"

#include <fmt/format.h>

#include <unistd.h>

#include <string_view>

#include "launcher/machines/hosts.h"
#include "launcher/machines/rendezvous_host.h"
#include "launcher/process/scratch.h"
#include "lockstep/job/wire.h"

namespace lockstep::launcher {
namespace {

/// The terminal belongs to the ranks, unless lockrun runs in the background.
bool may_read_stdin() { return ::isatty(0) != 1 || ::tcgetpgrp(0) == ::getpgrp(); }

/// torchrun's only documented macro in arguments. `$$` and others are left to whoever reads them.
void put_local_rank(std::string& argument, int local_rank) {
  constexpr std::string_view macro = "${local_rank}";
  for (size_t at = argument.find(macro); at != argument.npos; at = argument.find(macro, at)) {
    argument.replace(at, macro.size(), std::to_string(local_rank));
  }
}

job::ProcessSpec plan_store(const Job& job, int null_fd) {
  const int listener = job.listener.fd.get();
  return job::ProcessSpec{job.store_path,
                          {job.store_path, std::to_string(listener)},
                          job.inherited_environment,
                          null_fd,
                          null_fd,
                          2,
                          {listener}};
}

/// What the ranks of several machines show each other. The file may be gone when the job restarts.
std::string secret_for_ranks(const Job& job) {
  if (job.agent == nullptr) return {};
  static const std::string secret = read_secret(job.options.nodes);
  return job::derive_secret(secret, job.environment.attempt());
}

}  // namespace

std::string attempt_directory(const Job& job) {
  return fmt::format("{}/attempt_{}", job.directory, job.attempt);
}

std::string rank_directory(const Job& job, int local_rank) {
  return fmt::format("{}/{}", attempt_directory(job), local_rank);
}

std::string error_file(const Job& job, int local_rank) {
  return fmt::format("{}/error.json", rank_directory(job, local_rank));
}

AttemptPlan plan_attempt(const Job& job, int segment_fd, int null_fd, const sigset_t& worker_mask,
                         const JobCgroup* cgroup, Output& output, StdinCopies& copies, int spares) {
  AttemptPlan plan;
  job::LaunchEnvironment environment = job.environment;
  environment.segment_fd = segment_fd;
  if (const int columns = output.terminal_columns(); columns > 0) {
    environment.terminal_columns = columns;
    environment.terminal = output.terminal_name();
  }
  const std::string secret = secret_for_ranks(job);
  for (int local_rank = 0; local_rank < environment.local_world_size; ++local_rank) {
    job::LaunchEnvironment told = environment.of_local_rank(local_rank);
    told.error_file = error_file(job, local_rank);
    plan.outputs.push_back(output.add_worker(told.rank));
    job::ProcessSpec spec{job.program.path, job.program.argv, told.to_env(job.inherited_environment)};
    const std::string secret_mark = std::string(job::kSecretVariable) + "=";
    std::erase_if(spec.environment, [&](const std::string& entry) {
      return entry.starts_with(scratch_mark("")) || entry.starts_with(secret_mark);
    });
    spec.environment.push_back(scratch_mark(job.scratch_directory));
    if (!secret.empty()) spec.environment.push_back(secret_mark + secret);
    for (size_t i = 1; i < spec.argv.size(); ++i) put_local_rank(spec.argv[i], local_rank);
    if (job.options.pass_local_rank) {
      spec.argv.insert(spec.argv.begin() + static_cast<std::ptrdiff_t>(job.program.first_argument),
                       fmt::format("--local-rank={}", local_rank));
    }
    spec.stdin_fd = null_fd;
    if (job.options.stdin_all && may_read_stdin()) {
      plan.inputs.push_back(copies.add_worker());
      spec.stdin_fd = plan.inputs.back().get();
    } else if (job.options.stdin_rank == told.rank && may_read_stdin()) {
      spec.stdin_fd = 0;
    }
    spec.stdout_fd = plan.outputs.back().out.get();
    spec.stderr_fd = plan.outputs.back().err.get();
    spec.inherited_fds = {segment_fd};
    // A process group each and the guardian's session in common: Linux divides a core among sessions first
    // (autogroup) and sched_yield gives way only within one, so ranks that share a core would yield in vain.
    spec.group = job::Group::own;
    if (cgroup != nullptr) spec.cgroup_fd = cgroup->fd();
    if (!job.cores.empty()) spec.cores = job.cores[static_cast<size_t>(local_rank)];
    plan.guardian.workers.push_back(std::move(spec));
  }
  for (int slot = 0; slot < spares; ++slot) {
    job::ProcessSpec spec = plan.guardian.workers.front();
    plan.outputs.push_back(output.add_spare(slot));
    spec.stdin_fd = null_fd;
    spec.stdout_fd = plan.outputs.back().out.get();
    spec.stderr_fd = plan.outputs.back().err.get();
    spec.cores.clear();
    plan.guardian.spares.push_back(std::move(spec));
  }
  if (job.listener.fd.valid()) plan.guardian.store = plan_store(job, null_fd);
  plan.guardian.scratch_directory = job.scratch_directory;
  for (int i = 0; i < environment.local_world_size && !job.options.logs.wanted(); ++i) {
    plan.guardian.directories.push_back(rank_directory(job, i));
  }
  plan.guardian.leftover_timeout = job.options.leftover_timeout;
  plan.guardian.cgroup = cgroup;
  plan.guardian.worker_mask = worker_mask;
  plan.guardian.lockrun_fds = output.read_ends();
  for (const int fd : copies.write_ends()) plan.guardian.lockrun_fds.push_back(fd);
  for (const int fd : job.hosts != nullptr ? job.hosts->fds() : std::vector<int>()) {
    plan.guardian.lockrun_fds.push_back(fd);
  }
  return plan;
}

}  // namespace lockstep::launcher
