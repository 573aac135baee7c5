#include "lockstep/zoo/tasks/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <utility>

#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/zoo/text/metrics/squad_scores.h"

namespace lockstep::tasks {
namespace {

/// An answer that a window offers.
struct Candidate {
  text::CharSpan place{};  // {0, 0}: no answer
  float start_logit = 0, end_logit = 0, score = 0;
  bool is_null() const { return place == text::CharSpan{}; }
};

/// A window's logits.
struct Scores {
  std::vector<float> starts, ends;
};

Scores count_scores(const at::Tensor& row) {
  const auto* value = row.const_data_ptr<float>();
  Scores scores;
  for (int64_t i = 0; i < row.size(0); ++i) {
    scores.starts.push_back(*value++);
    scores.ends.push_back(*value++);
  }
  return scores;
}

/// The places of the `count` greatest values, greatest first, and of equal ones the later first, as the peer sorts.
std::vector<int64_t> best_places(const std::vector<float>& values, int64_t count) {
  std::vector<int64_t> places(values.size());
  std::iota(places.begin(), places.end(), 0);
  const auto end =
      places.begin() + std::min<std::ptrdiff_t>(count, static_cast<std::ptrdiff_t>(places.size()));
  std::partial_sort(places.begin(), end, places.end(), [&](int64_t a, int64_t b) {
    const float left = values[static_cast<size_t>(a)], right = values[static_cast<size_t>(b)];
    return left != right ? left > right : a > b;
  });
  places.erase(end, places.end());
  return places;
}

Candidate null_candidate(const Scores& scores) {
  return {.start_logit = scores.starts[0],
          .end_logit = scores.ends[0],
          .score = scores.starts[0] + scores.ends[0]};
}

/// Appends what a window offers.
void add_candidates(const QuestionWindows& all, const QuestionWindow& window, const Scores& scores,
                    const AnswerOptions& options, std::vector<Candidate>& candidates) {
  const auto& spans = all.contexts[all.file.questions[window.question].context].spans;
  const int64_t first = all.context_begin(window), behind = all.length(window) - 1;
  const auto is_context = [&](int64_t place) { return place >= first && place < behind; };
  const auto span_at = [&](int64_t place) {
    return spans[window.begin + static_cast<size_t>(place - first)];
  };
  const auto ends = best_places(scores.ends, options.n_best_size);
  for (const int64_t start : best_places(scores.starts, options.n_best_size)) {
    for (const int64_t end : ends) {
      if (!is_context(start) || !is_context(end) || end < start ||
          end - start + 1 > options.max_answer_length)
        continue;
      const float start_logit = scores.starts[static_cast<size_t>(start)];
      const float end_logit = scores.ends[static_cast<size_t>(end)];
      candidates.push_back({.place = {.begin = span_at(start).begin, .end = span_at(end).end},
                            .start_logit = start_logit,
                            .end_logit = end_logit,
                            .score = start_logit + end_logit});
    }
  }
}

/// Sets the probabilities: the softmax of the scores.
void set_probabilities(std::vector<RankedAnswer>& answers, const std::vector<double>& scores) {
  const double greatest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (size_t i = 0; i < answers.size(); ++i) sum += answers[i].probability = std::exp(scores[i] - greatest);
  for (auto& answer : answers) answer.probability /= sum;
}

FoundAnswer choose(const QuestionWindows& all, size_t question, std::vector<Candidate> candidates,
                   const Candidate& null, const AnswerOptions& options) {
  if (options.version_2_with_negative) candidates.push_back(null);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  candidates.resize(std::min(candidates.size(), static_cast<size_t>(options.n_best_size)));
  const bool has_null =
      std::any_of(candidates.begin(), candidates.end(), [](auto& c) { return c.is_null(); });
  if (options.version_2_with_negative && !has_null) candidates.push_back(null);

  const std::string& context = all.file.contexts[all.file.questions[question].context];
  const auto offsets = character_offsets(context);
  FoundAnswer found{.question = question};
  std::vector<double> scores;
  for (const auto& candidate : candidates) {
    const size_t begin = offsets[static_cast<size_t>(candidate.place.begin)];
    const size_t end = offsets[static_cast<size_t>(candidate.place.end)];
    found.n_best.push_back({.text = context.substr(begin, end - begin),
                            .start_logit = candidate.start_logit,
                            .end_logit = candidate.end_logit});
    scores.push_back(candidate.score);
  }
  // As the peer has it where no part of the text can be an answer.
  if (found.n_best.empty() || (found.n_best.size() == 1 && found.n_best[0].text.empty())) {
    found.n_best.insert(found.n_best.begin(), {.text = "empty"});
    scores.insert(scores.begin(), 0);
  }
  set_probabilities(found.n_best, scores);
  if (!options.version_2_with_negative) {
    found.text = found.n_best[0].text;
    return found;
  }
  const auto best =
      std::find_if(found.n_best.begin(), found.n_best.end(), [](auto& a) { return !a.text.empty(); });
  if (best == found.n_best.end()) return found;
  found.score_diff = null.score - best->start_logit - best->end_logit;
  if (*found.score_diff <= options.null_score_diff_threshold) found.text = best->text;
  return found;
}

/// Writes an object of one line a question.
void write_object(const std::filesystem::path& path, const QuestionWindows& windows,
                  const std::vector<FoundAnswer>& answers,
                  const std::function<nlohmann::json(const FoundAnswer&)>& value_of) {
  write_file_atomically(path, [&](const auto& append) {
    append("{");
    for (size_t i = 0; i < answers.size(); ++i) {
      const nlohmann::json id = windows.file.questions[answers[i].question].id;
      append(
          fmt::format("{}\n    {}: {}", i == 0 ? "" : ",", dump_json(id), dump_json(value_of(answers[i]))));
    }
    append("\n}\n");
  });
}

}  // namespace

std::vector<FoundAnswer> find_answers(const QuestionWindows& windows, const std::vector<int64_t>& samples,
                                      const at::Tensor& logits, const AnswerOptions& options) {
  const at::Tensor rows = logits.to(at::kCPU, at::kFloat).contiguous();
  std::map<size_t, std::vector<int64_t>> by_question;  // rows, in the order of the windows
  for (size_t row = 0; row < samples.size(); ++row) {
    by_question[windows.windows.at(static_cast<size_t>(samples[row])).question].push_back(
        static_cast<int64_t>(row));
  }
  std::vector<FoundAnswer> answers;
  for (auto& [question, of_question] : by_question) {
    std::sort(of_question.begin(), of_question.end(), [&](int64_t a, int64_t b) {
      return samples[static_cast<size_t>(a)] < samples[static_cast<size_t>(b)];
    });
    std::vector<Candidate> candidates;
    std::optional<Candidate> null;  // of the window that is the least sure that there is none
    for (const int64_t row : of_question) {
      const Scores scores = count_scores(rows[row]);
      if (const auto other = null_candidate(scores); !null || other.score < null->score) null = other;
      add_candidates(windows, windows.windows[static_cast<size_t>(samples[static_cast<size_t>(row)])], scores,
                     options, candidates);
    }
    answers.push_back(choose(windows, question, std::move(candidates), *null, options));
  }
  return answers;
}

std::map<std::string, double> score_answers(const QuestionWindows& windows,
                                            const std::vector<FoundAnswer>& answers,
                                            const AnswerOptions& options) {
  const bool v2 = options.version_2_with_negative;
  struct Sums {
    double exact = 0, f1 = 0, total = 0;
  };
  Sums all, with, without;
  for (const auto& answer : answers) {
    std::vector<std::string> texts;
    for (const auto& right : windows.file.questions[answer.question].answers) texts.push_back(right.text);
    const auto score =
        text::score_answer(answer.text, texts, v2 ? text::SquadVersion::v2 : text::SquadVersion::v1);
    for (Sums* sums : {&all, texts.empty() ? &without : &with}) {
      sums->exact += score.exact;
      sums->f1 += score.f1;
      sums->total += 1;
    }
  }
  std::map<std::string, double> scores;
  const auto add = [&](const std::string& prefix, const Sums& sums) {
    if (sums.total == 0) return;
    scores[prefix + "exact"] = 100 * sums.exact / sums.total;
    scores[prefix + "f1"] = 100 * sums.f1 / sums.total;
    scores[prefix + "total"] = sums.total;
  };
  add("", all);
  if (v2) {
    add("HasAns_", with);
    add("NoAns_", without);
    return scores;
  }
  return {{"exact_match", scores["exact"]}, {"f1", scores["f1"]}};
}

void write_answers(const std::filesystem::path& directory, const std::string& prefix,
                   const QuestionWindows& windows, const std::vector<FoundAnswer>& answers) {
  using nlohmann::json;
  const auto file = [&](const char* name) { return directory / fmt::format("{}_{}.json", prefix, name); };
  write_object(file("predictions"), windows, answers,
               [](const FoundAnswer& answer) { return json(answer.text); });
  write_object(file("nbest_predictions"), windows, answers, [](const FoundAnswer& answer) {
    json list = json::array();
    for (const auto& ranked : answer.n_best) {
      list.push_back({{"text", ranked.text},
                      {"start_logit", ranked.start_logit},
                      {"end_logit", ranked.end_logit},
                      {"probability", ranked.probability}});
    }
    return list;
  });
  const bool has_odds =
      std::any_of(answers.begin(), answers.end(), [](auto& answer) { return answer.score_diff; });
  if (!has_odds) return;
  write_object(file("null_odds"), windows, answers, [](const FoundAnswer& answer) {
    return answer.score_diff ? json(*answer.score_diff) : json();
  });
}

}  // namespace lockstep::tasks
