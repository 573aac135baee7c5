// Messages with tags on one of Gloo's groups, whose waits can be ended.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/uplink/uplink.h"

namespace at {
class Tensor;
}
namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace lockstep::uplink {

/// A message that may come from any rank.
class AnyTransfer : public Transfer {
 public:
  /// Who has sent it, once it has come.
  virtual int sender() const = 0;
};

/// What is under way on one engine. Thread-safe. Memory of a message that has not ended is kept for Gloo, which may still
/// touch it.
class GlooTransfers {
 public:
  explicit GlooTransfers(c10::intrusive_ptr<c10d::Backend> engine);
  GlooTransfers(const GlooTransfers&) = delete;
  ~GlooTransfers();

  /// Messages of one tag between two ranks stay in order. These do not block, and throw CommError after stop().
  std::shared_ptr<Transfer> send(int to, int tag, Buffer buffer);
  std::shared_ptr<Transfer> recv(int from, int tag, Buffer buffer);
  std::shared_ptr<AnyTransfer> recv_from_any(int tag, Buffer buffer);

  /// Every wait ends with CommError.
  void stop();

 private:
  class Waits;
  class GlooTransfer;
  using Begin =
      std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend& engine, std::vector<at::Tensor>& tensors)>;
  std::shared_ptr<GlooTransfer> begin(Buffer buffer, const Begin& begin);

  c10::intrusive_ptr<c10d::Backend> engine_;
  std::shared_ptr<Waits> waits_;
};

}  // namespace lockstep::uplink
