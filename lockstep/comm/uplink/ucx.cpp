#include "lockstep/comm/uplink/ucx.h"

#include "lockstep/base/error.h"

#ifdef LOCKSTEP_UCX

#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/mutex.h"
#include "lockstep/shm/process.h"

namespace lockstep::uplink {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// A wait that sleeps looks again after this, should nobody wake it.
constexpr milliseconds kLongestSleep{1000};
/// So long an uplink that goes waits until its last messages have left.
constexpr milliseconds kWaitAtEnd{2000};

// clang-format off
#define LOCKSTEP_UCX_FUNCTIONS(X) \
  X(ucp_get_version_string) X(ucp_config_read) X(ucp_config_modify) \
  X(ucp_config_release) X(ucp_init_version) X(ucp_worker_create) \
  X(ucp_worker_destroy) X(ucp_worker_query) X(ucp_worker_release_address) \
  X(ucp_worker_get_efd) X(ucp_worker_arm) X(ucp_worker_progress) \
  X(ucp_worker_signal) X(ucp_worker_flush_nbx) X(ucp_ep_create) \
  X(ucp_ep_close_nbx) X(ucp_tag_send_nbx) X(ucp_tag_recv_nbx) \
  X(ucp_tag_recv_request_test) X(ucp_request_check_status) X(ucp_request_free) \
  X(ucs_status_string)
// clang-format on

/// The library and its context: one a process, opened once, never closed.
struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares
#define LOCKSTEP_UCX_POINTER(name) decltype(&::name) name = nullptr;
  LOCKSTEP_UCX_FUNCTIONS(LOCKSTEP_UCX_POINTER)
#undef LOCKSTEP_UCX_POINTER
  ucp_context_h context = nullptr;
  std::string problem{};

  explicit Library(const std::string& interface) {
    // It reads them while it is loaded: no hooks in munmap, no handlers of SIGSEGV.
    set_default("UCX_MEM_EVENTS", "n");
    set_default("UCX_ERROR_SIGNALS", "");
    set_default("UCX_LOG_LEVEL", "fatal");  // it writes to standard output
    void* const handle = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      problem = ::dlerror();
      return;
    }
// NOLINTBEGIN(bugprone-macro-parentheses): it assigns to a member
#define LOCKSTEP_UCX_FIND(name)                                    \
  name = reinterpret_cast<decltype(name)>(::dlsym(handle, #name)); \
  if (name == nullptr) problem = "libucp.so.0 has no " #name ", so it is too old";
    LOCKSTEP_UCX_FUNCTIONS(LOCKSTEP_UCX_FIND)
#undef LOCKSTEP_UCX_FIND
    // NOLINTEND(bugprone-macro-parentheses)
    if (problem.empty()) open(interface);
  }

  void check(ucs_status_t status, const char* what) const {
    if (status != UCS_OK) throw CommError(fmt::format("UCX: {}: {}", what, ucs_status_string(status)));
  }

 private:
  static void set_default(const char* name, const char* value) {
    if (!env::get(name)) env::set(name, value);
  }
  void open(const std::string& interface) {
    ucp_config_t* config = nullptr;
    try {
      check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
      const auto modify = [&](const char* name, const std::string& value) {
        if (env::get(std::string("UCX_") + name)) return;
        check(ucp_config_modify(config, name, value.c_str()), name);
      };
      modify("TLS", "^self,sm,posix,sysv,cma,xpmem");  // the others are on other machines
      modify("RNDV_THRESH", "inf");                    // one trip, not three
      // Otherwise a flush asks the other machines for an answer if not all is quiet (two that connect at once have a second
      // connection for a moment), and they answer only while they wait for something themselves.
      modify("FLUSH_WORKER_EPS", "n");
      if (!interface.empty()) modify("NET_DEVICES", interface);
      ucp_params_t params{};
      params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
      params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
      params.mt_workers_shared = 1;  // each group has a worker, and a thread
      check(ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context), "ucp_init");
    } catch (const CommError& error) {
      const auto chosen = env::get(kUcxDevices);
      const std::string device = chosen ? fmt::format("{}={}", kUcxDevices, *chosen) : interface;
      problem = fmt::format("{}{} (UCX_LOG_LEVEL=warn says more)", error.what(),
                            device.empty() ? "" : ", with " + device);
    }
    if (config != nullptr) ucp_config_release(config);
  }
};

/// The first call opens it.
Library& library(const std::string& interface = "") {
  static auto* const opened = new Library(interface);
  return *opened;
}

uint64_t draw_number() {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) throw CommError("UCX: no random numbers");
  return number;
}

/// A message on its way, whose memory UCX has.
struct Request {
  void* handle = nullptr;  // null: has ended
  ucs_status_t status = UCS_OK;
  Buffer buffer{};
  int peer = -1;
  bool is_received = false;
};

/// One thread at a time, but for stop() and end().
class Worker {
 public:
  Worker(int machine, int machines);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  /// A random number, which the other machines' tags carry, and UCX's own address.
  std::string address() const {
    ucp_worker_attr_t attributes{};
    attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
    attributes.address_flags = UCP_WORKER_ADDRESS_FLAG_NET_ONLY;
    library().check(library().ucp_worker_query(worker_, &attributes), "ucp_worker_query");
    std::string blob(sizeof number_, '\0');
    std::memcpy(blob.data(), &number_, sizeof number_);
    blob.append(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
    library().ucp_worker_release_address(worker_, attributes.address);
    return blob;
  }
  /// If that machine cannot be reached, the first message to or from it fails.
  void connect(int machine, const std::string& address) {
    Peer& peer = peers_[static_cast<size_t>(machine)];
    if (address.size() <= sizeof peer.number) {
      peer.status = UCS_ERR_UNREACHABLE;
      return;
    }
    std::memcpy(&peer.number, address.data(), sizeof peer.number);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data() + sizeof peer.number);
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {[](void* lost, ucp_ep_h /*endpoint*/, ucs_status_t status) {
                            static_cast<Peer*>(lost)->status = status;
                          },
                          &peer};
    const ucs_status_t status = library().ucp_ep_create(worker_, &params, &peer.endpoint);
    if (status == UCS_OK) return;
    peer.status = status;
    peer.endpoint = nullptr;
  }

  Request send(int to, int tag, Buffer buffer) {
    const base::LockGuard lock(using_);
    check(to);
    Peer& peer = peers_[static_cast<size_t>(to)];
    const ucp_request_param_t params{};
    void* const handle = library().ucp_tag_send_nbx(peer.endpoint, buffer.data(), buffer.bytes,
                                                    make_tag(peer.number, tag, machine_), &params);
    return started(handle, std::move(buffer), to, /*is_received=*/false);
  }
  Request recv(int from, int tag, Buffer buffer) {
    const base::LockGuard lock(using_);
    check(from);
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    void* const handle = library().ucp_tag_recv_nbx(worker_, buffer.data(), buffer.bytes,
                                                    make_tag(number_, tag, from), ~uint64_t{0}, &params);
    return started(handle, std::move(buffer), from, /*is_received=*/true);
  }
  void wait(Request& request, milliseconds timeout) {
    const base::LockGuard lock(using_);
    wait_for(request, timeout);
  }
  /// What was sent has left this process.
  void flush(milliseconds timeout) {
    const base::LockGuard lock(using_);
    check(-1);
    const ucp_request_param_t params{};
    Request flushed = started(library().ucp_worker_flush_nbx(worker_, &params), {}, -1, false);
    wait_for(flushed, timeout);
  }

  /// Its memory stays until the worker goes.
  void keep(Request request) {
    const base::LockGuard lock(using_);
    kept_.push_back(std::move(request));
  }
  void stop() noexcept {
    is_stopped_ = true;
    const base::LockGuard lock(signaling_);
    if (worker_ != nullptr) library().ucp_worker_signal(worker_);
  }
  /// The process ends: what uses the worker is stopped, and it goes, unless its user does not give it back in time.
  void end() noexcept {
    stop();
    const auto end = Clock::now() + kWaitAtEnd;
    while (!using_.try_lock()) {
      if (Clock::now() >= end) return;
      std::this_thread::sleep_for(milliseconds(1));
    }
    destroy();
    using_.unlock();
  }

 private:
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    uint64_t number = 0;
    ucs_status_t status = UCS_OK;
  };

  /// UCX's. Messages of one tag stay in order.
  static uint64_t make_tag(uint64_t number, int tag, int sender) {
    const uint64_t mixed = number ^ (static_cast<uint64_t>(tag) << 16);
    return (mixed & ~uint64_t{0xFFFF}) | static_cast<uint64_t>(sender);
  }
  void check(int peer) const {
    if (is_stopped_) throw CommError("the group has stopped");
    if (worker_ == nullptr) throw CommError("the process ends");
    if (peer < 0) return;
    const ucs_status_t status = peers_[static_cast<size_t>(peer)].status;
    if (status != UCS_OK) throw CommError(library().ucs_status_string(status));
  }
  static Request started(void* handle, Buffer buffer, int peer, bool is_received) {
    if (UCS_PTR_IS_ERR(handle)) library().check(UCS_PTR_STATUS(handle), "a message");
    return {.handle = UCS_PTR_IS_PTR(handle) ? handle : nullptr,
            .buffer = std::move(buffer),
            .peer = peer,
            .is_received = is_received};
  }
  static bool has_ended(Request& request) {
    if (request.handle == nullptr) return true;
    if (request.is_received) {
      ucp_tag_recv_info_t info{};
      request.status = library().ucp_tag_recv_request_test(request.handle, &info);
      if (request.status == UCS_OK && info.length != request.buffer.bytes)
        request.status = UCS_ERR_MESSAGE_TRUNCATED;
    } else {
      request.status = library().ucp_request_check_status(request.handle);
    }
    if (request.status == UCS_INPROGRESS) return false;
    library().ucp_request_free(std::exchange(request.handle, nullptr));
    return true;
  }
  void wait_for(Request& request, milliseconds timeout) LOCKSTEP_REQUIRES(using_) {
    const auto end = Clock::now() + timeout;
    while (worker_ == nullptr || !has_ended(request)) {
      check(request.peer);
      if (library().ucp_worker_progress(worker_) != 0) continue;
      if (has_ended(request)) break;  // the end of a flush does not count as progress
      const ucs_status_t armed = library().ucp_worker_arm(worker_);
      if (armed == UCS_ERR_BUSY) continue;
      library().check(armed, "ucp_worker_arm");
      const auto now = Clock::now();
      if (now >= end) throw TimeoutError("there is no answer");
      sleep(end - now);
    }
    if (request.status != UCS_OK) throw CommError(library().ucs_status_string(request.status));
  }
  void sleep(Clock::duration longest) const {
    pollfd moved{descriptor_, POLLIN, 0};
    ::poll(&moved, 1,
           static_cast<int>(
               std::chrono::ceil<milliseconds>(std::min<Clock::duration>(longest, kLongestSleep)).count()));
  }
  /// `gently`: what is on its way leaves first.
  void close(Peer& peer, bool gently) {
    if (peer.endpoint == nullptr) return;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = gently ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
    void* const handle = library().ucp_ep_close_nbx(std::exchange(peer.endpoint, nullptr), &params);
    if (!UCS_PTR_IS_PTR(handle)) return;
    const auto end = Clock::now() + kWaitAtEnd;
    while (library().ucp_request_check_status(handle) == UCS_INPROGRESS && Clock::now() < end) {
      library().ucp_worker_progress(worker_);
    }
    library().ucp_request_free(handle);
  }
  void destroy() LOCKSTEP_REQUIRES(using_) {
    ucp_worker_h worker = nullptr;
    {
      const base::LockGuard lock(signaling_);
      worker = worker_;
    }
    if (worker == nullptr) return;
    const bool is_well = !is_stopped_;
    for (Peer& peer : peers_) close(peer, is_well && peer.status == UCS_OK);
    {
      const base::LockGuard lock(signaling_);
      worker_ = nullptr;
    }
    // Receives that have not ended end with it, and only so.
    library().ucp_worker_destroy(worker);
  }

  int machine_;
  uint64_t number_ = draw_number();
  base::Mutex using_;  // held while UCX works, also in waits
  // Held while the worker is woken, or goes. worker_ is written with both held and read with either, which no annotation says.
  base::Mutex signaling_;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  std::vector<Peer> peers_;  // by machine
  std::vector<Request> kept_ LOCKSTEP_GUARDED_BY(using_);
  std::atomic<bool> is_stopped_{false};
};

/// Those that there are. A thread of UCX's own serves them, and must not meet the end of the library's memory: a process may end
/// while it has groups.
class Workers {
 public:
  static Workers& of_process() {
    static auto* const workers = [] {
      auto* const made = new Workers();
      std::atexit([] { of_process().end_all(); });
      return made;
    }();
    return *workers;
  }
  void add(Worker* worker) {
    const base::LockGuard lock(mutex_);
    all_.insert(worker);
  }
  void remove(Worker* worker) {
    const base::LockGuard lock(mutex_);
    all_.erase(worker);
  }

 private:
  void end_all() noexcept {
    if (process_.is_copy()) return;
    const base::LockGuard lock(mutex_);
    for (Worker* const worker : all_) worker->end();
  }
  shm::RankProcess process_;
  base::Mutex mutex_;
  std::set<Worker*> all_ LOCKSTEP_GUARDED_BY(mutex_);
};

Worker::Worker(int machine, int machines) : machine_(machine), peers_(static_cast<size_t>(machines)) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  library().check(library().ucp_worker_create(library().context, &params, &worker_), "ucp_worker_create");
  library().check(library().ucp_worker_get_efd(worker_, &descriptor_), "ucp_worker_get_efd");
  Workers::of_process().add(this);
}

Worker::~Worker() {
  Workers::of_process().remove(this);
  const base::LockGuard lock(using_);
  destroy();
}

class UcxTransfer final : public Transfer {
 public:
  UcxTransfer(std::shared_ptr<Worker> worker, Request request)
      : worker_(std::move(worker)), request_(std::move(request)) {}
  UcxTransfer(const UcxTransfer&) = delete;
  UcxTransfer& operator=(const UcxTransfer&) = delete;
  ~UcxTransfer() override {
    if (request_.handle != nullptr) worker_->keep(std::move(request_));
  }
  void wait(milliseconds timeout) override { worker_->wait(request_, timeout); }

 private:
  std::shared_ptr<Worker> worker_;
  Request request_;
};

class UcxUplink final : public Uplink {
 public:
  UcxUplink(int machine, int machines, const ExchangeAddresses& exchange)
      : machine_(machine), machines_(machines), worker_(std::make_shared<Worker>(machine, machines)) {
    const std::vector<std::string> addresses = exchange(worker_->address());
    for (int m = 0; m < machines; ++m) {
      if (m != machine) worker_->connect(m, addresses[static_cast<size_t>(m)]);
    }
  }
  int machine() const override { return machine_; }
  int machines() const override { return machines_; }
  std::shared_ptr<Transfer> send(int to, int tag, Buffer buffer) override {
    sent_bytes_ += buffer.bytes;
    return std::make_shared<UcxTransfer>(worker_, worker_->send(to, tag, std::move(buffer)));
  }
  std::shared_ptr<Transfer> recv(int from, int tag, Buffer buffer) override {
    return std::make_shared<UcxTransfer>(worker_, worker_->recv(from, tag, std::move(buffer)));
  }
  void flush(milliseconds timeout) override { worker_->flush(timeout); }
  void stop() noexcept override { worker_->stop(); }
  uint64_t sent_bytes() const override { return sent_bytes_; }

 private:
  int machine_, machines_;
  std::shared_ptr<Worker> worker_;
  std::atomic<uint64_t> sent_bytes_{0};
};

}  // namespace

std::string ucx_problem(const std::string& interface) { return library(interface).problem; }

std::string ucx_version() { return library().problem.empty() ? library().ucp_get_version_string() : ""; }

std::unique_ptr<Uplink> make_ucx_uplink(int machine, int machines, const ExchangeAddresses& exchange) {
  if (const std::string& problem = library().problem; !problem.empty()) throw CommError(problem);
  return std::make_unique<UcxUplink>(machine, machines, exchange);
}

}  // namespace lockstep::uplink

#else

namespace lockstep::uplink {

std::string ucx_problem(const std::string& /*interface*/) {
  return "this build has no UCX: its headers (libucx-dev) were not there when Lockstep was built";
}
std::string ucx_version() { return ""; }
std::unique_ptr<Uplink> make_ucx_uplink(int /*machine*/, int /*machines*/,
                                        const ExchangeAddresses& /*exchange*/) {
  throw CommError(ucx_problem(""));
}

}  // namespace lockstep::uplink

#endif
