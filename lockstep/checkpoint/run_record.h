// What gives the weights of a checkpoint their meaning: tokenizer, labels, model, data, flags, seeds. No tensors.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// The file of a checkpoint that holds its RunRecord.
inline constexpr const char* kRunRecordName = "run_record.json";

/// What an entry of a RunRecord describes. A resume refuses another value of any kind but `world`, unless the user
/// names the kind: --resume-anyway data,labels.
enum class RecordKind : uint8_t {
  data,      ///< rows, columns and content of the training set
  labels,    ///< labels and classes, in order
  model,     ///< the model's configuration, and the tokenizer, whose numbers it reads
  flags,     ///< of the program, if they change data or model
  seed,      ///< of the order of samples, of new weights, of dropout
  sampling,  ///< how samples are drawn
  world,     ///< ranks and threads: another number is said, not refused
};

/// "data", "labels" and so on.
const char* name_of(RecordKind kind);
/// The kinds of a list such as "data,labels"; none for an empty text. Throws ValueError that names the known ones for
/// any other name, and for "world", which needs no permission.
std::set<RecordKind> parse_record_kinds(std::string_view list);

/// An entry that differs between two records.
struct RecordDifference {
  std::string name;   ///< "tokenizer.hash"; within a JSON object "model_config.hidden_size"
  RecordKind kind;    ///< as the newer record has it, or the older if the newer has no such entry
  std::string saved;  ///< the older value as JSON, shortened; "nothing" if there is none
  std::string now;    ///< the newer value in the same form
};

/// "labels: [\"ham\", \"spam\"] in the checkpoint, now [\"spam\", \"ham\"]".
std::string describe(const RecordDifference& difference);

/// A resume that went on although something differed.
struct ResumedAnyway {
  int64_t step = 0;                      ///< of the checkpoint it resumed from
  std::set<RecordKind> kinds{};          ///< of those that differed
  std::vector<std::string> differences;  ///< as describe() says them
  bool operator==(const ResumedAnyway&) const = default;
};

/// What the record of a run notes that resumes from `step` although the `allowed` entries differ. Pure.
ResumedAnyway describe_resume(int64_t step, const std::vector<RecordDifference>& allowed);

/// Named values of a run. Two runs with equal entries give the same meaning to the same weights. A value; equality
/// compares entries and history.
///
///     lockstep::checkpoint::RunRecord record;
///     record.set("labels", RecordKind::labels, std::vector<std::string>{"ham", "spam"});
///     record.set("max_seq_length", RecordKind::flags, 128);
///     record.set_json("model_config", RecordKind::model, config.to_json());
class RunRecord {
 public:
  /// The value of one name.
  struct Entry {
    RecordKind kind{};   ///< what it gives meaning to
    std::string json{};  ///< in one line, keys sorted
    bool operator==(const Entry&) const = default;
  };

  /// Sets an entry; one of that name is replaced. Texts need not be UTF-8: other bytes become U+FFFD.
  void set(const std::string& name, RecordKind kind, std::string_view text);
  /// Text, as above.
  void set(const std::string& name, RecordKind kind, const char* text) {
    set(name, kind, std::string_view(text));
  }
  /// Text, as above.
  void set(const std::string& name, RecordKind kind, const std::string& text) {
    set(name, kind, std::string_view(text));
  }
  /// A number. NaN and infinities are kept as their texts.
  void set(const std::string& name, RecordKind kind, double value);
  /// A whole number, or true or false.
  template <std::integral T>
  void set(const std::string& name, RecordKind kind, T value) {
    if constexpr (std::same_as<T, bool>) {
      set_json(name, kind, value ? "true" : "false");
    } else {
      set_json(name, kind, std::to_string(value));
    }
  }
  /// A list, whose order counts.
  void set(const std::string& name, RecordKind kind, const std::vector<std::string>& texts);
  /// A JSON value, such as a model's config.json. Spaces and the order of keys do not count. Throws ValueError for
  /// what is not JSON.
  void set_json(const std::string& name, RecordKind kind, std::string_view json);
  /// Takes in all entries of `other`; those of the same names are replaced.
  void add(const RunRecord& other);
  /// Takes an entry out, if it is there.
  void remove(const std::string& name) { entries_.erase(name); }

  /// All entries by name.
  const std::map<std::string, Entry>& entries() const { return entries_; }
  /// Whether there is an entry of this name.
  bool has(const std::string& name) const { return entries_.contains(name); }
  /// Whether there is no entry.
  bool empty() const { return entries_.empty(); }

  /// Resumes of this run that went on with other entries, the oldest first.
  const std::vector<ResumedAnyway>& resumed_anyway() const { return resumed_anyway_; }
  /// Notes such a resume.
  void add(ResumedAnyway resumed) { resumed_anyway_.push_back(std::move(resumed)); }

  bool operator==(const RunRecord&) const = default;

  /// run_record.json.
  std::string to_json() const;
  /// The opposite. Throws FileError that begins with `source`, the file's name.
  static RunRecord from_json(std::string_view text, const std::string& source);

 private:
  std::map<std::string, Entry> entries_{};
  std::vector<ResumedAnyway> resumed_anyway_{};
};

/// What differs, by name. An entry that only one of them has is a difference. Pure.
std::vector<RecordDifference> compare(const RunRecord& saved, const RunRecord& now);

/// Whether a run may go on.
struct RecordCheck {
  std::vector<RecordDifference> refused{};  ///< neither allowed nor of the kind `world`
  std::vector<RecordDifference> allowed{};  ///< differ, of a kind in `anyway`
  std::vector<RecordDifference> said{};     ///< of the kind `world`
};
/// Sorts differences by what a resume does about them. Pure.
RecordCheck check(std::vector<RecordDifference> differences, const std::set<RecordKind>& anyway);

/// Throws ValueError with every old and new value if something is `refused`: in one line, and where they are many, the rest in
/// lines below it. `place`: the checkpoint. `how`: how the user allows it; the kinds follow: "--resume-anyway ". Pure.
void refuse_changes(const std::vector<RecordDifference>& refused, const std::string& place,
                    const std::string& how);

}  // namespace lockstep::checkpoint
