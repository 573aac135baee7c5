#include "bench/network/network.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/job/child_process.h"

namespace lockstep::bench {
namespace {

void write_text(const char* path, const std::string& text) {
  const UniqueFd fd(::open(path, O_WRONLY | O_CLOEXEC));
  if (!fd.valid() || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw Error(fmt::format("{}: {}", path, std::strerror(errno)));
}

/// Throws Error with what the commands say.
void run_shell(const std::string& script) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("pipe: {}", std::strerror(errno)));
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  const pid_t process = job::fork_helper("lockstep-network");
  if (process == 0) {
    ::dup2(to.get(), STDERR_FILENO);
    ::dup2(to.get(), STDOUT_FILENO);
    ::execl("/bin/sh", "sh", "-ec", script.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  to.reset();
  std::string said;
  char buffer[1024];
  for (ssize_t got = 0; (got = ::read(from.get(), buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<size_t>(got));
  int status = 0;
  ::waitpid(process, &status, 0);
  if (status == 0) return;
  throw Error(fmt::format(
      "the network of several machines cannot be made; this needs ip, tc and nsenter (apt-get install iproute2 util-linux): "
      "{}",
      said.substr(0, said.find('\n'))));
}

/// A process that keeps a new network namespace. Blocks until it is there.
pid_t start_holder() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("pipe: {}", std::strerror(errno)));
  const UniqueFd told(ends[0]);
  UniqueFd tell(ends[1]);
  const pid_t process = job::fork_helper("lockstep-machine");
  if (process == 0) {
    if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) ::_exit(1);
    // /sys shows the network of whoever mounted it, and UCX looks there. Where that is refused, Gloo works.
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0)
      (void)::mount("sysfs", "/sys", "sysfs", 0, nullptr);
    (void)!::write(tell.get(), "+", 1);
    tell.reset();
    for (;;) ::pause();
  }
  tell.reset();
  char mark = 0;
  if (::read(told.get(), &mark, 1) != 1) throw Error("a network namespace cannot be made");
  return process;
}

void kill_holder(pid_t process) {
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
}

}  // namespace

void enter_own_network() {
  // ip and tc lie where only root looks.
  env::set(env::kPath, env::get(env::kPath).value_or("/usr/bin:/bin") + ":/usr/sbin:/sbin");
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(user == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    throw Error(fmt::format(
        "--machines makes network namespaces, which this kernel refuses here ({}): run it as root, or where user "
        "namespaces are allowed",
        std::strerror(errno)));
  }
  if (user != 0) {
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", fmt::format("0 {} 1", user));
    write_text("/proc/self/gid_map", fmt::format("0 {} 1", group));
  }
  run_shell("ip link set lo up");
}

Network::Network(int machines, const std::string& rate, const CableSpeed& speed) {
  try {
    for (int m = 0; m < machines; ++m) machines_.push_back(start_holder());
    connect(rate, speed);
  } catch (const Error&) {
    stop();
    throw;
  }
}

Network::~Network() { stop(); }

void Network::connect(const std::string& rate, const CableSpeed& speed) {
  const bool has_delay = speed.one_way_ns > 0;
  std::string script;
  if (has_delay) {
    switch_ = start_switch(machines_, speed);
  } else {
    script += "ip link add bridge0 type bridge; ip link set bridge0 up\n";
  }
  for (size_t m = 0; m < machines_.size(); ++m) {
    const std::string inside = fmt::format("nsenter --net=/proc/{}/ns/net ", machines_[m]);
    if (!has_delay) {
      script += fmt::format("ip link add port{0} type veth peer name cable0 netns {1}\n", m, machines_[m]);
      script += fmt::format("ip link set port{} master bridge0 up\n", m);
    }
    script += inside + "ip link set lo up\n";
    script += inside + fmt::format("ip addr add {}/24 dev cable0\n", address(static_cast<int>(m)));
    script += inside + "ip link set cable0 up\n";
    if (has_delay || rate.empty()) continue;
    const std::string limit = fmt::format("root tbf rate {} burst 256kb latency 50ms\n", rate);
    script += fmt::format("tc qdisc add dev port{} {}", m, limit);
    script += inside + "tc qdisc add dev cable0 " + limit;
  }
  run_shell(script);
}

void Network::stop() noexcept {
  if (switch_ > 0) kill_holder(switch_);
  for (const pid_t machine : machines_) kill_holder(machine);
  // Its ports go with the namespaces, when the kernel comes to it.
  try {
    if (switch_ < 0)
      run_shell("ip link del bridge0; for n in $(seq 0 15); do ip link del port$n 2>/dev/null || true; done");
  } catch (const Error&) {  // there was none
  }
  switch_ = -1;
  machines_.clear();
}

std::string Network::address(int machine) { return fmt::format("10.88.0.{}", machine + 1); }

std::string Network::on(int machine, const std::string& command) const {
  return fmt::format("exec nsenter --net=/proc/{0}/ns/net --mount=/proc/{0}/ns/mnt {1}",
                     machines_[static_cast<size_t>(machine)], command);
}

}  // namespace lockstep::bench
