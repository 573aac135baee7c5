#include "bench/network/switch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/job/child_process.h"

namespace lockstep::bench {
namespace {

constexpr int kHeader = 12;  // virtio_net_hdr_v1
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kAlmostDue = 2000;  // a wait that ends this much too early is none

int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

struct Frame {
  int64_t due;
  std::vector<uint8_t> bytes;
};

struct Port {
  UniqueFd fd;
  std::array<uint8_t, 6> address{};
  bool is_known = false;
  int64_t out_free = 0, in_free = 0;
  std::deque<Frame> waiting;
};

/// A frame leaves its machine at the rate, arrives a delay later and enters its destination at the rate. Frames are segments
/// of up to 64 KiB, as the machines' offloads make them, so it sees few.
class Switch {
 public:
  Switch(const std::vector<pid_t>& machines, const CableSpeed& speed) : speed_(speed) {
    for (const pid_t machine : machines) open_port(machine);
  }

  [[noreturn]] void run() {
    ::prctl(PR_SET_TIMERSLACK, 1000);
    while (true) {
      wait();
      for (Port& port : ports_) take_frames(port);
      deliver();
    }
  }

 private:
  void open_port(pid_t machine) {
    const std::string place = fmt::format("/proc/{}/ns/net", machine);
    const UniqueFd space(::open(place.c_str(), O_RDONLY | O_CLOEXEC));
    if (!space.valid() || ::setns(space.get(), CLONE_NEWNET) != 0)
      throw Error(fmt::format("{}: {}", place, std::strerror(errno)));
    Port port;
    port.fd.reset(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!port.fd.valid()) throw Error(fmt::format("/dev/net/tun: {}", std::strerror(errno)));
    ifreq request{};
    std::strncpy(request.ifr_name, "cable0", sizeof request.ifr_name - 1);
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if (::ioctl(port.fd.get(), TUNSETIFF, &request) != 0)
      throw Error(fmt::format("a tap device: {}", std::strerror(errno)));
    int header = kHeader, most = 1 << 30;
    ::ioctl(port.fd.get(), TUNSETVNETHDRSZ, &header);
    ::ioctl(port.fd.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6);
    ::ioctl(port.fd.get(), TUNSETSNDBUF, &most);
    ports_.push_back(std::move(port));
  }

  void wait() {
    int64_t next = std::numeric_limits<int64_t>::max();
    std::vector<pollfd> polls;
    for (const Port& port : ports_) {
      if (!port.waiting.empty()) next = std::min(next, port.waiting.front().due);
      polls.push_back({port.fd.get(), POLLIN, 0});
    }
    const int64_t left = std::clamp<int64_t>(next - now(), 0, kSecond);
    const timespec time{.tv_sec = left / kSecond, .tv_nsec = left % kSecond};
    ::ppoll(polls.data(), polls.size(), &time, nullptr);
  }

  int64_t time_of(size_t bytes) const {
    if (speed_.bits_per_second == 0) return 0;
    return static_cast<int64_t>(8e9 * static_cast<double>(bytes) /
                                static_cast<double>(speed_.bits_per_second));
  }
  /// A queue of 50 ms, as that of the cables without delay.
  bool is_full(int64_t queued) const {
    constexpr int64_t kQueue = 50'000'000;
    return speed_.bits_per_second > 0 && queued > kQueue + time_of(size_t{300} << 10);
  }

  void take_frames(Port& from) {
    constexpr int kAtOnce = 64;
    for (int turn = 0; turn < kAtOnce; ++turn) {
      const ssize_t got = ::read(from.fd.get(), buffer_.data(), buffer_.size());
      if (got <= kHeader) return;
      const uint8_t* const ethernet = buffer_.data() + kHeader;
      std::memcpy(from.address.data(), ethernet + from.address.size(), from.address.size());
      from.is_known = true;
      const int64_t time = now(), takes = time_of(static_cast<size_t>(got - kHeader));
      const int64_t start = std::max(time, from.out_free);
      if (is_full(start - time)) continue;
      from.out_free = start + takes;
      pass_on(from, static_cast<size_t>(got), takes);
    }
  }

  void pass_on(const Port& from, size_t bytes, int64_t takes) {
    const uint8_t* const ethernet = buffer_.data() + kHeader;
    const bool is_for_all = (ethernet[0] & 1) != 0;
    const int64_t arrives = from.out_free + speed_.one_way_ns;
    for (Port& to : ports_) {
      if (&to == &from) continue;
      if (!is_for_all && to.is_known && std::memcmp(to.address.data(), ethernet, to.address.size()) != 0)
        continue;
      // A frame waits here only where several machines send to one.
      const int64_t enters = std::max(arrives - takes, to.in_free);
      if (is_full(enters - arrives)) continue;
      to.in_free = enters + takes;
      to.waiting.push_back({std::max(arrives, enters + takes), {buffer_.data(), buffer_.data() + bytes}});
    }
  }

  void deliver() {
    const int64_t time = now();
    for (Port& port : ports_) {
      while (!port.waiting.empty() && port.waiting.front().due <= time + kAlmostDue) {
        const Frame& frame = port.waiting.front();
        (void)!::write(port.fd.get(), frame.bytes.data(), frame.bytes.size());
        port.waiting.pop_front();
      }
    }
  }

  CableSpeed speed_;
  std::vector<Port> ports_;
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(size_t{1} << 17);
};

}  // namespace

pid_t start_switch(const std::vector<pid_t>& machines, const CableSpeed& speed) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("pipe: {}", std::strerror(errno)));
  const UniqueFd told(ends[0]);
  UniqueFd tell(ends[1]);
  const pid_t process = job::fork_helper("lockstep-switch");
  if (process == 0) {
    try {
      Switch here(machines, speed);
      (void)!::write(tell.get(), "+", 1);
      tell.reset();
      here.run();
    } catch (const Error& error) {
      const std::string why = error.what();
      (void)!::write(tell.get(), why.data(), why.size());
      ::_exit(1);
    }
  }
  tell.reset();
  std::string text;
  std::array<char, 256> buffer;
  for (ssize_t got = 0; (got = ::read(told.get(), buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(got));
  if (text != "+")
    throw Error(fmt::format("--rtt needs a switch in user space, which cannot be made: {}", text));
  return process;
}

}  // namespace lockstep::bench
