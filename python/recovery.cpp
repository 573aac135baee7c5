#include "python/recovery.h"

#include <chrono>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random_key.h"
#include "lockstep/comm/process_group/impl.h"

namespace lockstep::python {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

std::shared_ptr<Healing>& kept() {
  static auto* const kept = new std::shared_ptr<Healing>();
  return *kept;
}

}  // namespace

void Healing::keep_own(std::vector<at::Tensor> statistics) {
  if (statistics.empty()) return;
  own_ = std::make_unique<detail::OwnStatistics>(std::move(statistics), job_->log(), /*number=*/0);
  if (!is_new()) own_->commit(0);
}

void Healing::begin(int64_t steps) {
  if (own_) job_->set_before_collective([this, steps] { own_->keep(steps + 1); });
}

void Healing::go_to(int64_t steps, int donor) {
  if (own_) own_->go_to(steps, ProcessGroup(world_), donor);
}

void Healing::commit(int64_t steps) {
  job_->set_before_collective({});
  if (own_) own_->commit(steps);
  job_->record().committed_step.store(static_cast<uint64_t>(steps), std::memory_order_release);
}

bool Healing::meet(shm::WorldChange::Stage stage, double timeout) {
  try {
    return job_->meet(epoch_, stage, milliseconds(timeout));
  } catch (const PeerLostError&) {
    // Over machines a rank that dies is lost before it is replaced.
    if (!job_->machines().are_several() || !job_->has_changed_since(epoch_, /*looks_like_death=*/true)) throw;
    return false;
  }
}

bool Healing::stop(double timeout) {
  const bool are_several = job_->machines().are_several();
  job_->set_before_collective({});
  epoch_ = job_->world_change().epoch();
  if (!has_renewed_) {
    // What this rank had cleared may have been used since.
    if (are_several) {
      job_->renew_on_machine();
    } else {
      world_->renew();
    }
  }
  world_->interrupt("a rank has died and is being replaced");
  if (!meet(shm::WorldChange::Stage::stopped, timeout)) return false;
  if (!meet(shm::WorldChange::Stage::arrived, timeout)) return false;
  job_->end_replay();
  has_renewed_ = false;
  world_->clear();
  world_->follow_ups()->give_up(std::make_exception_ptr(StepFailedError(
      "the operation was started before a rank died, which has been replaced: start it again")));
  return true;
}

bool Healing::go_on(double timeout) {
  if (!meet(shm::WorldChange::Stage::cleared, timeout)) return false;
  try {
    if (job_->machines().are_several()) job_->connect(epoch_, milliseconds(timeout));
    world_->renew();
  } catch (const CommError&) {
    if (!job_->machines().are_several() || !job_->has_changed_since(epoch_, /*looks_like_death=*/true)) throw;
    return false;
  }
  job_->have_connected();
  has_renewed_ = true;
  job_->world_change().have_met(epoch_);
  return true;
}

std::shared_ptr<Healing> make_healing(std::shared_ptr<ProcessGroup::Impl> world) {
  auto job = backends::HealableJob::current();
  if (!job || !world || world->size() < 2) return nullptr;
  if (!job->is_replaying() && !job->is_recording()) return nullptr;
  auto healing = std::make_shared<Healing>(std::move(job), std::move(world));
  kept() = healing;
  return healing;
}

void end_healing(const std::shared_ptr<Healing>& healing) {
  if (kept() != healing) return;
  healing->set_healable(shm::kWasHealable);
  kept().reset();
}

uint64_t seed_of_step(uint64_t seed, uint64_t rank, uint64_t step) { return random_key({seed, rank, step}); }

}  // namespace lockstep::python
