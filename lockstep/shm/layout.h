// The layout of the segment that the ranks of one node share. This is its only description; a change to
// anything in this file that a running peer could notice raises kLayoutVersion.
//
//   SegmentHeader | RankRecord[ranks] | Doorbell[ranks] | FlightRing[ranks] | AreaRecord[kMaxGroups] |
//   control areas [kMaxGroups] | set-up logs [ranks] | arenas [ranks]
//
// The segment is sparse: what is not touched costs no memory. Every location is an offset from its start,
// since each process maps it at an address of its own. All fields that two processes touch are atomics with
// one writer, unless said otherwise.
//
// One word for each part of memory, here and wherever buffers are divided:
//
//   segment  the memory that the ranks of a node share
//   area     what a group has in the segment: posts, slices, channels, staging buffers, windows
//   arena    the part of the segment from which one rank allocates
//   set-up log  what one rank got from the others before its first step, for a process that replaces it
//   window   kWindowBytes through which a buffer outside the segment passes
//   block    kBlockBytes of a window, or of a message from rank to rank
//   slice    the part of a reduction that one rank owns
//   chunk    a unit of a slice: what the owner or a helper reduces at once
//   part     elements of a buffer that the caller names, as in reduce_parts
//   range    bytes of a buffer, from `begin` to before `end`
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

inline constexpr uint64_t kMagic = 0x31504554534b4c4cULL;
inline constexpr uint32_t kLayoutVersion = 14;
inline constexpr int kMaxRanks = 256;
inline constexpr int kMaxGroups = 512;
/// Two cache lines: the unit that x86's adjacent-line prefetcher moves.
inline constexpr size_t kLine = 128;
inline constexpr size_t kCacheLine = 64;
/// Operations of one group that may be in flight.
inline constexpr uint32_t kSlots = 64;
/// What at most this many bytes of a collective travels inside its post.
inline constexpr size_t kInlineBytes = 64;
/// A message from rank to rank of at most this many bytes travels inside the channel's entry.
inline constexpr size_t kMessageInlineBytes = 88;
/// A message of at most this many bytes is copied through the group's staging buffers, in one
/// synchronization.
inline constexpr size_t kStagingBytes = 16 * 1024;
/// Buffers that a rank uses in turn while its peers keep up, so that they stay in its cache, and one more per
/// slot.
inline constexpr uint32_t kHotStaging = 8;
inline constexpr uint32_t kStagingDepth = kHotStaging + kSlots;
/// A reduction of at most this many bytes goes through staging even where buffers lie in the segment: one
/// synchronization instead of two.
inline constexpr size_t kStagedReductionBytes = 1024;
/// A buffer outside the segment passes through a window of this many blocks in the rank's arena.
inline constexpr size_t kBlockBytes = 128 * 1024;
inline constexpr uint32_t kWindowBlocks = 4;
inline constexpr size_t kWindowBytes = kBlockBytes * kWindowBlocks;

/// Arenas begin at multiples of this, in the segment and in every mapping of it.
inline constexpr size_t kHugePage = size_t{2} << 20;

enum class RankState : uint32_t {
  absent,    ///< not yet attached
  attached,  ///< takes part
  left,      ///< has left in good order
  exited,    ///< its process has ended (written by the launcher)
};

/// Values of RankRecord::is_healable; 0 before.
inline constexpr uint32_t kIsHealable = 1, kWasHealable = 2;
/// Values of RankRecord::outlives_machine; 0: it is not known yet. The same on all ranks of the job.
inline constexpr uint32_t kOutlivesMachine = 1;  ///< another machine may take the place of one that is lost
inline constexpr uint32_t kHasOwnState = 2;      ///< no: ranks have state that is lost with them
inline constexpr uint32_t kHasOwnSetUp = 3;      ///< no: what some got before the first step is nowhere else

struct alignas(kLine) RankRecord {
  std::atomic<uint32_t> state;
  std::atomic<int32_t> pid;  ///< 0 -> by the process that joins as this rank: whoever comes first is the rank
  std::atomic<int32_t> wait_status;     ///< as from waitpid; valid once state is exited
  std::atomic<uint32_t> last_kind;      ///< OpKind of the newest operation
  std::atomic<uint64_t> operations;     ///< operations started so far, over all groups: the launcher's pulse
  std::atomic<uint64_t> last_bytes;     ///< size of the newest operation
  std::atomic<uint64_t> pid_namespace;  ///< in which `pid` names it

  // Where a rank that dies may be replaced (SegmentHeader::can_heal):
  std::atomic<uint32_t> incarnation;  ///< processes that were this rank before; written by the launcher
  std::atomic<uint32_t>
      changed_at;  ///< the epoch that began when the last of them was replaced; by the launcher
  std::atomic<uint32_t> has_log;  ///< 1: its set-up log is whole, also after its death
  /// kIsHealable: its process has the job's state and heals when another rank is replaced; kWasHealable: it did, and has
  /// left its Recovery.
  std::atomic<uint32_t> is_healable;
  std::atomic<uint32_t> outlives_machine;
  std::atomic<uint64_t> committed_step;  ///< release: steps that it has ended
  std::atomic<uint64_t> meeting;         ///< release: epoch << 8 | stage, see WorldChange
  std::atomic<uint64_t> note;            ///< a number of the rank's own for the process that takes its place

  // What Pulse counts for a group over several machines, whose calls start several operations here, or none:
  std::atomic<uint32_t> counts_calls;    ///< 1: a launcher looks at these, not at the operations
  std::atomic<uint32_t> last_call_kind;  ///< OpKind
  std::atomic<uint64_t> calls, last_call_bytes;
};

/// What a rank's process sleeps on.
struct alignas(kLine) Doorbell {
  std::atomic<uint32_t> sleeping;  ///< threads of it
  std::atomic<uint32_t>
      waiting;  ///< those among them that wait for an operation to end: what a launcher watches
  std::atomic<uint32_t> rings;  ///< futex word
};

struct alignas(4096) SegmentHeader {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t ranks;
  uint64_t total_bytes;
  uint64_t rank_table_offset;
  uint64_t doorbell_table_offset;
  uint64_t flight_table_offset;
  uint64_t area_table_offset;
  uint64_t group_table_offset;
  uint64_t group_bytes;  ///< distance between the control areas of two groups
  uint64_t arena_table_offset;
  uint64_t arena_bytes;  ///< distance between the arenas of two ranks
  uint32_t cores;        ///< that all ranks together may use
  uint32_t can_heal;     ///< 1: a rank that dies may be replaced while the others go on
  uint64_t nonce;        ///< random; proves that two processes see the same memory
  uint64_t setup_log_offset;
  uint64_t setup_log_bytes;  ///< distance between the set-up logs of two ranks; 0: there are none
  /// How often a rank was replaced, of those on all machines. Written by the launcher, before RankRecord::changed_at.
  std::atomic<uint32_t> epoch;
};

enum class OpKind : uint8_t {
  none,
  barrier,
  all_reduce,
  reduce,
  reduce_scatter,
  broadcast,
  scatter,
  gather,
  all_gather,
  all_to_all,
  send,
  recv
};

constexpr const char* op_name(OpKind kind) {
  constexpr const char* kNames[] = {"nothing",        "barrier",    "all_reduce", "reduce",
                                    "reduce_scatter", "broadcast",  "scatter",    "gather",
                                    "all_gather",     "all_to_all", "send",       "recv"};
  constexpr size_t kCount = sizeof(kNames) / sizeof(kNames[0]);
  return static_cast<size_t>(kind) < kCount ? kNames[static_cast<size_t>(kind)] : "unknown";
}

/// An operation in a rank's flight recorder.
struct alignas(64) FlightEntry {
  std::atomic<uint64_t> number;     ///< among the rank's operations, from 1; 0: empty. Stored last (release).
  std::atomic<uint64_t> sequence;   ///< within the group; of a message: its tag
  std::atomic<uint64_t> count;      ///< elements; of a message: bytes
  std::atomic<int64_t> started_ms;  ///< CLOCK_MONOTONIC, to some milliseconds
  std::atomic<uint32_t> peer;       ///< root, or the other end of a message
  std::atomic<uint16_t> area;       ///< of the group
  std::atomic<OpKind> kind;
  std::atomic<uint8_t> dtype;
  std::atomic<uint8_t> reduce_op;
  std::atomic<bool> finished;
};

inline constexpr uint64_t kFlightEntries = 32;
struct FlightRing {
  FlightEntry entries[kFlightEntries];
};

/// Who uses a control area.
struct alignas(64) AreaRecord {
  std::atomic<uint32_t> used;          ///< 0 -> 1 by whoever claims it
  std::atomic<uint32_t> members_left;  ///< that have not left; the last one clears the area and frees it
  std::atomic<uint32_t> generation;    ///< groups that have lived here before
};

/// Where the bytes lie that a rank offers.
enum class Memory : uint8_t {
  none,     ///< it offers nothing
  post,     ///< in its post
  staging,  ///< in a staging buffer of the group
  arena,    ///< in its arena, all of them
  window,   ///< pass through a window of kWindowBytes in its arena, block by block
};

/// What a rank announces when it starts an operation.
struct Announcement {
  OpKind kind;
  uint8_t dtype;
  uint8_t reduce_op;
  Memory memory;
  uint32_t root;
  uint64_t count;   ///< elements
  uint64_t sent;    ///< bytes that this rank offers
  uint64_t offset;  ///< of them, or of the window, in the segment
};

/// One rank's entry for one operation. `sequence` is stored last (release) and read first (acquire). What it
/// sends lies in one cache line: the first where there is room, else the second.
struct alignas(kLine) Post {
  static constexpr size_t kFirstLineBytes = kCacheLine - sizeof(uint64_t) - sizeof(Announcement);
  std::atomic<uint64_t> sequence;
  Announcement what;
  std::byte first_line[kFirstLineBytes];
  std::byte second_line[kInlineBytes];
  std::byte* payload(size_t bytes) { return bytes <= kFirstLineBytes ? first_line : second_line; }
};
static_assert(sizeof(Post) == kLine);

/// The part of a large reduction that a rank owns. The owner takes chunks from the front, helpers from the
/// back.
struct alignas(kLine) Slice {
  std::atomic<uint64_t>
      unclaimed;               ///< front << 32 | back, in chunks; initialized by the owner before its post
  std::atomic<uint32_t> done;  ///< release: that many chunks are in place in every rank's buffer, or, without
                               ///< slices, that many blocks (or the whole) have been read
  std::atomic<uint32_t> filled;  ///< release: that many blocks have been put into the rank's window
};

/// One message of a channel. `number`, counted from 1 in the channel, is stored last (release) and read first
/// (acquire). A message that does not fit into the payload is copied block by block into the sender's arena:
/// block b to place b % places, once the receiver has copied what was there before. Behind the places, at the
/// next line, stands its MessageFlow.
struct alignas(kLine) ChannelEntry {
  std::atomic<uint64_t> number;
  uint64_t bytes;
  uint64_t offset;  ///< in the segment; unused when the bytes travel in the payload
  uint64_t tag;
  uint32_t places;
  unsigned char payload[kMessageInlineBytes];
};
static_assert(sizeof(ChannelEntry) == kLine);

struct alignas(kLine) MessageFlow {
  std::atomic<uint32_t> filled;    ///< release: so many blocks of kBlockBytes have been put there
  std::atomic<uint32_t> taken;     ///< release, by the receiver: it has copied so many
  std::atomic<uint32_t> received;  ///< release, by the receiver: 1 when it has copied all
};

/// The messages from one rank to another, in order.
inline constexpr uint32_t kChannelDepth = 16;
struct alignas(kLine) Channel {
  std::atomic<uint64_t> taken;  ///< release, by the receiver: it no longer needs the entries up to this one
  ChannelEntry entries[kChannelDepth];
};

enum class MemberState : uint32_t {
  active,
  stopped,  ///< knows that the group is broken: it touches no other rank's memory any more
  left,     ///< has destroyed its part of the group
};

struct alignas(kLine) MemberProgress {
  std::atomic<uint64_t> consumed;  ///< release: this rank has finished with every operation up to here
  std::atomic<MemberState> state;
  std::atomic<uint64_t> closed;  ///< release: it starts no operation from this one on; 0: it may start any
};

enum class FailureKind : uint32_t {
  none,
  timeout,
  peer_lost,  ///< a member died
  peer_left,  ///< a member left the group or the job
  mismatch,
  step,           ///< a member's step failed: the group is renewed and goes on
  world_changed,  ///< a member was replaced: the group is renewed with the new process
};

/// Some of a group's ranks, one bit each.
struct RankSet {
  uint64_t words[kMaxRanks / 64];
  void insert(int rank) { words[rank / 64] |= uint64_t{1} << (rank % 64); }
  bool contains(int rank) const { return (words[rank / 64] >> (rank % 64) & 1) != 0; }
};

/// The first failure of a group. `state` goes 0 -> 1 (being written, by whoever won the exchange) -> 2
/// (readable).
struct alignas(kLine) FailureRecord {
  std::atomic<uint32_t> state;
  FailureKind kind;
  int32_t reported_by;
  int32_t lost_rank;
  RankSet missing;
  char message[1024 - 48];
};

constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/// Offsets inside a group's control area, for a group of `ranks` members.
struct GroupLayout {
  explicit constexpr GroupLayout(size_t ranks)
      : progress(sizeof(FailureRecord)),
        posts(progress + ranks * sizeof(MemberProgress)),
        slices(posts + kSlots * ranks * sizeof(Post)),
        channels(slices + kSlots * ranks * sizeof(Slice)),
        staging(round_up(channels + ranks * ranks * sizeof(Channel), 4096)),
        windows(round_up(staging + ranks * kStagingDepth * kStagingBytes, 4096)),
        total(windows + ranks * kWindowBytes) {}
  /// `windows`: one for each rank, for an operation that finds no room in the rank's arena.
  size_t progress, posts, slices, channels, staging, windows, total;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace lockstep::shm
