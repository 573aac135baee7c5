#include "lockstep/checkpoint/parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/publish.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep::checkpoint {
namespace {

std::string stem_of_rank(const std::string& name, int rank, int world_size) {
  return fmt::format("{}-rank-{}-of-{}", name, rank, world_size);
}

struct Place {
  std::optional<ProcessGroup> group;  // with several ranks
  int rank = 0, world_size = 1;
};

Place place_in(const std::optional<ProcessGroup>& given) {
  if (!given && !is_initialized()) return {};
  const ProcessGroup& group = given ? *given : default_world();
  if (group.size() == 1) return {};
  return {group, group.rank(), group.size()};
}

/// Throws FileError on all ranks when one has an error.
void throw_on_all(const Place& place, const std::string& error) {
  if (!place.group) {
    if (!error.empty()) throw FileError(error);
    return;
  }
  const std::vector<std::string> errors = place.group->all_gather_bytes(error);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) throw FileError(fmt::format("rank {}: {}", rank, errors[rank]));
  }
}

/// What `work` throws, as a text.
std::string catch_error(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const CommError&) {
    throw;
  } catch (const StepFailedError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "unknown error" : text;
  }
}

void wait_for(const Writer& writer, std::chrono::milliseconds timeout) {
  const WriterStatus status = writer.wait(timeout);
  if (status.state == WriterState::failed) throw FileError(status.error);
  if (status.state == WriterState::writing || status.state == WriterState::committing) {
    throw FileError(fmt::format("{} was not written within {} s",
                                (writer.folder() / checkpoint_name(status.step)).string(),
                                std::chrono::duration_cast<std::chrono::seconds>(timeout).count()));
  }
}

}  // namespace

Part::Part(std::string name, torch::nn::Module& module)
    : name_(std::move(name)),
      add_([this_name = name_, &module](Snapshot& snapshot, int rank, int) {
        if (rank == 0) snapshot.add_module(this_name, module);
      }),
      load_([this_name = name_, &module](const Checkpoint& checkpoint, int, int) {
        checkpoint.load_module(this_name, module);
      }) {}

Part::Part(std::string name, torch::optim::Optimizer& optimizer)
    : name_(std::move(name)),
      add_([this_name = name_, &optimizer](Snapshot& snapshot, int rank, int world_size) {
        const bool is_divided = dynamic_cast<const ShardedOptimizer*>(&optimizer) != nullptr;
        if (is_divided && world_size > 1) {
          snapshot.add_state(stem_of_rank(this_name, rank, world_size), optimizer_state_dict(optimizer));
        } else if (rank == 0) {
          snapshot.add_state(this_name, optimizer_state_dict(optimizer));
        }
      }),
      load_([this_name = name_, &optimizer](const Checkpoint& checkpoint, int, int) {
        std::vector<StateDict> parts;
        if (checkpoint.has_tensors(this_name)) {
          parts.push_back(checkpoint.read_state(this_name));
        } else {
          for (int rank = 0; rank < checkpoint.world_size(); ++rank) {
            parts.push_back(checkpoint.read_state(stem_of_rank(this_name, rank, checkpoint.world_size())));
          }
        }
        load_optimizer_state_dict(optimizer, parts);
      }) {}

Part::Part(std::string name, SavedBy saved_by, std::function<StateDict()> save,
           std::function<void(const StateDict&)> load)
    : name_(std::move(name)),
      add_([this_name = name_, saved_by, save = std::move(save)](Snapshot& snapshot, int rank,
                                                                 int world_size) {
        if (saved_by == SavedBy::each_rank) {
          snapshot.add_state(stem_of_rank(this_name, rank, world_size), save());
        } else if (rank == 0) {
          snapshot.add_state(this_name, save());
        }
      }),
      load_([this_name = name_, saved_by, load = std::move(load)](const Checkpoint& checkpoint, int rank,
                                                                  int world_size) {
        if (saved_by == SavedBy::first_rank) return load(checkpoint.read_state(this_name));
        if (checkpoint.world_size() != world_size) {
          throw ValueError(fmt::format(
              "{}: {} was saved by each of {} ranks, so it cannot be loaded by {}; start {} ranks",
              checkpoint.path().string(), this_name, checkpoint.world_size(), world_size,
              checkpoint.world_size()));
        }
        load(checkpoint.read_state(stem_of_rank(this_name, rank, world_size)));
      }) {}

void Part::add_to(Snapshot& snapshot, int rank, int world_size) const { add_(snapshot, rank, world_size); }

void Part::load_from(const Checkpoint& checkpoint, int rank, int world_size) const {
  load_(checkpoint, rank, world_size);
}

void save(const std::filesystem::path& directory, const std::vector<Part>& parts, SaveOptions options) {
  const std::string name = directory.filename().string();
  const auto step = parse_step(name);
  if (!step) {
    throw ValueError(fmt::format("{} is no name of a checkpoint; expected one such as {}/checkpoint-100",
                                 directory.string(), directory.parent_path().string()));
  }
  const auto folder = directory.has_parent_path() ? directory.parent_path() : std::filesystem::path(".");
  const Place place = place_in(options.process_group);
  std::optional<Writer> writer;
  throw_on_all(place, catch_error([&] {
                 writer.emplace(folder, place.rank, place.world_size,
                                WriterOptions{.save_total_limit = options.save_total_limit,
                                              .max_shard_bytes = options.max_shard_bytes,
                                              .files = options.files});
               }));
  // What fails from here on is removed by the Writer's destructor.
  throw_on_all(place, catch_error([&] {
                 Snapshot snapshot = writer->snapshot();
                 for (const Part& part : parts) part.add_to(snapshot, place.rank, place.world_size);
                 if (place.rank == 0 && options.record != RunRecord())
                   snapshot.add_text(kRunRecordName, options.record.to_json());
                 writer->begin(*step, std::move(snapshot));
                 wait_for(*writer, options.timeout);
               }));
  throw_on_all(place, catch_error([&] {
                 writer->commit(options.kept);
                 wait_for(*writer, options.timeout);
               }));
  if (const std::string warning = writer->status().warning; !warning.empty()) log::warning(warning);
}

void check_shared_folder(const std::filesystem::path& folder, const ProcessGroup& group, bool is_tried) {
  const Place place = place_in(group);
  const std::shared_ptr<Files> files = posix_files();
  std::string probe;
  throw_on_all(place, catch_error([&] {
                 if (is_tried) return;
                 make_directories(*files, folder);
                 if (place.rank != 0) return;
                 // Its name is new, so that no cache of a network file system knows that it is not there.
                 std::string name = (folder / (std::string(kProbeStart) + "XXXXXX")).string();
                 const UniqueFd file(::mkstemp(name.data()));
                 if (!file.valid()) {
                   throw FileError(
                       fmt::format("cannot create a file in {}: {}", folder.string(), std::strerror(errno)));
                 }
                 probe = std::filesystem::path(name).filename().string();
               }));
  if (!place.group) return files->remove(folder / probe);
  probe = place.group->broadcast_bytes(probe);
  const bool sees_it = is_tried || std::filesystem::exists(folder / probe);
  const std::vector<std::string> seen = place.group->all_gather_bytes(sees_it ? "yes" : "no");
  if (place.rank == 0 && !is_tried) files->remove(folder / probe);
  std::vector<size_t> without;
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    if (seen[rank] != "yes") without.push_back(rank);
  }
  if (without.empty()) return;
  throw FileError(
      fmt::format("{} is not one folder for all ranks: rank {} do{} not see what rank 0 has written "
                  "there; checkpoints need a file system that all machines share",
                  folder.string(), fmt::join(without, ", "), without.size() == 1 ? "es" : ""));
}

RunRecord read_record(const Checkpoint& checkpoint) {
  if (!checkpoint.has(kRunRecordName)) return {};
  return RunRecord::from_json(checkpoint.read_text(kRunRecordName),
                              (checkpoint.path() / kRunRecordName).string());
}

void check_record(const Checkpoint& checkpoint, RunRecord& record,
                  const std::set<RecordKind>& resume_anyway) {
  const std::string place = checkpoint.path().string();
  if (!checkpoint.has(kRunRecordName)) {
    log::warning(
        fmt::format("{} has no {}: whether it is of the same run is not known", place, kRunRecordName));
    return;
  }
  const RunRecord saved = read_record(checkpoint);
  const RecordCheck found = check(compare(saved, record), resume_anyway);
  refuse_changes(found.refused, place, "resume_anyway ");
  for (const auto& each : found.said) log::warning(describe(each));
  for (const auto& each : saved.resumed_anyway()) record.add(each);
  if (!found.allowed.empty()) record.add(describe_resume(checkpoint.step(), found.allowed));
}

void load(const Checkpoint& checkpoint, const std::vector<Part>& parts, LoadPartsOptions options) {
  if (options.record != nullptr) check_record(checkpoint, *options.record, options.resume_anyway);
  const Place place = place_in(options.process_group);
  for (const Part& part : parts) part.load_from(checkpoint, place.rank, place.world_size);
}

void load(const std::filesystem::path& directory, const std::vector<Part>& parts, LoadPartsOptions options) {
  load(open(directory), parts, std::move(options));
}

}  // namespace lockstep::checkpoint
