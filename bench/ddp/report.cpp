#include "bench/ddp/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/collectives/in_turn.h"
#include "bench/collectives/spread.h"
#include "lockstep/base/json.h"

namespace lockstep::bench_ddp {
namespace {

using bench::Spread;

/// Returns the spread of what `figure` makes of each round's samples of two contestants.
template <class Figure>
Spread over_rounds(const std::vector<Sample>& own, const std::vector<Sample>& other, const Figure& figure) {
  std::vector<double> values;
  for (size_t round = 0; round < own.size(); ++round) values.push_back(figure(own[round], other[round]));
  return bench::spread_of(std::move(values));
}

struct Figures {
  struct Of {
    Contestant contestant;
    Spread step;  // seconds
    Spread as_fast_as_ddp;
  };
  std::vector<Of> contestants;
  bench::Added ddp;
  Spread memory;  // that DDP adds, in gradients
  int64_t gradients = 0;
  bool has_python = false, has_timeline = false;
  Spread faster_than_python;
  bench::Added timeline;
  double events = 0, span_seconds = 0;
};

bench::Added added(const Options& options, const std::vector<Sample>& samples) {
  std::vector<std::vector<double>> steps;
  for (const Sample& sample : samples) steps.push_back(sample.slowest);
  return bench::added_in_turn(steps, bench::block_of(options.model));
}

Figures compute_figures(const Options& options, const Samples& samples) {
  Figures figures;
  const auto& ddp = samples.at("Lockstep, DDP");
  const auto by_ddp = [](const Sample& own, const Sample& base) { return base.step / own.step; };
  const auto own_step = [](const Sample& own, const Sample& /*same*/) { return own.step; };
  for (const Contestant& contestant : contestants_of(options)) {
    const auto& own = samples.at(contestant.name);
    if (contestant.mode == Mode::in_turn) {
      figures.ddp = added(options, own);
    } else if (contestant.mode == Mode::timeline) {
      figures.has_timeline = true;
      figures.timeline = added(options, own);
      const auto events = [](const Sample& sample, const Sample& /*same*/) { return sample.recorded; };
      const auto span = [](const Sample& sample, const Sample& /*same*/) { return sample.span_seconds; };
      figures.events = over_rounds(own, own, events).median;
      figures.span_seconds = over_rounds(own, own, span).median;
    } else {
      figures.contestants.push_back(
          {contestant, over_rounds(own, own, own_step), over_rounds(own, ddp, by_ddp)});
    }
  }
  figures.gradients = ddp.front().gradients;
  figures.memory =
      over_rounds(samples.at("Lockstep, without DDP"), ddp, [](const Sample& alone, const Sample& with) {
        return (with.pss - alone.pss) / static_cast<double>(with.gradients);
      });
  const auto python = samples.find("Python, DDP on Gloo");
  figures.has_python = python != samples.end();
  if (figures.has_python) figures.faster_than_python = over_rounds(ddp, python->second, by_ddp);
  return figures;
}

std::string text(const Spread& spread, const char* format, double scale = 1) {
  const auto number = [&](double value) { return fmt::format(fmt::runtime(format), value * scale); };
  return fmt::format("{} ({} to {})", number(spread.median), number(spread.least), number(spread.most));
}

std::string text(const bench::Added& added) {
  return fmt::format(
      "{:.2f} us a step, {:.2f} % ({} {:.2f} to {:.2f} us, {:.2f} to {:.2f} %; {} comparisons of "
      "steps with and without it, in turn in the same processes)",
      added.seconds * 1e6, added.percent(added.seconds),
      added.is_interval() ? "95 % interval" : "least to most:", added.least * 1e6, added.most * 1e6,
      added.percent(added.least), added.percent(added.most), added.units);
}

nlohmann::json json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
}

nlohmann::json json(const bench::Added& added) {
  return {{"seconds", added.seconds},
          {"seconds_low", added.least},
          {"seconds_high", added.most},
          {"of_seconds", added.without},
          {"comparisons", added.units}};
}

}  // namespace

std::string text_of(const Options& options, const Samples& samples) {
  const Figures figures = compute_figures(options, samples);
  std::string all = fmt::format(
      "{}, {} ranks with one thread each, {} rounds of {} steps: median (min to max) over rounds\n",
      options.model, options.nproc_per_node, options.rounds, options.steps);
  const char* const unit = options.model == "toy" ? "{:.4f}" : "{:.1f}";
  for (const auto& [contestant, step, as_fast] : figures.contestants) {
    all += fmt::format("  {:28} {} ms a step\n", contestant.name, text(step, unit, 1e3));
    if (contestant.hook.empty()) continue;
    all += fmt::format("  {:28} {} times as fast as without a hook\n", "", text(as_fast, "{:.2f}"));
  }
  all += fmt::format("DDP adds {}\n", text(figures.ddp));
  const double gradients_kib = static_cast<double>(figures.gradients) / 1024;
  all += fmt::format("DDP adds {} KiB to a rank's memory (PSS); its gradients have {:.1f} KiB\n",
                     text(figures.memory, "{:.0f}", gradients_kib), gradients_kib);
  if (figures.has_python) {
    all += fmt::format("A step is {} times faster than Python's under DDP on Gloo\n",
                       text(figures.faster_than_python, "{:.2f}"));
  }
  if (figures.has_timeline) {
    const double by_count = figures.events * figures.span_seconds;
    all += fmt::format("Recording a timeline adds {}\n", text(figures.timeline));
    all += fmt::format(
        "  by the count: {:.1f} events a step, {:.0f} ns for an empty span: {:.2f} us, {:.3f} %\n",
        figures.events, figures.span_seconds * 1e9, by_count * 1e6, figures.timeline.percent(by_count));
  }
  return all;
}

std::string json_of(const Options& options, const Samples& samples) {
  const Figures figures = compute_figures(options, samples);
  std::string lines;
  const auto add = [&](nlohmann::json line) {
    line["model"] = options.model;
    line["ranks"] = options.nproc_per_node;
    line["rounds"] = options.rounds;
    line["steps"] = options.steps;
    lines += dump_json(line) + "\n";
  };
  for (const auto& [contestant, step, as_fast] : figures.contestants) {
    nlohmann::json line{{"contestant", contestant.name}, {"step_seconds", json(step)}};
    if (!contestant.hook.empty()) line["times_as_fast_as_without_a_hook"] = json(as_fast);
    add(std::move(line));
  }
  add({{"ddp_adds", json(figures.ddp)}});
  add({{"ddp_adds_pss_by_gradients", json(figures.memory)}, {"gradient_bytes", figures.gradients}});
  if (figures.has_python) add({{"times_faster_than_python_ddp", json(figures.faster_than_python)}});
  if (figures.has_timeline) {
    add({{"timeline_adds", json(figures.timeline)},
         {"events_a_step", figures.events},
         {"empty_span_seconds", figures.span_seconds}});
  }
  return lines;
}

}  // namespace lockstep::bench_ddp
