// Computes metrics for comparison with the peers': metrics_runner INPUTS. The file holds tensors N.outputs and
// N.labels, N from 0. Each line of standard input names a case and a metric: "N METRIC [AVERAGE|CLASS,ZERO_DIVISION|K]"; a
// line of output has its value. Samples come in two batches.
#include <fmt/format.h>

#include <cctype>
#include <iostream>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/metrics/classification.h"
#include "lockstep/metrics/regression.h"

namespace {

using namespace lockstep;

PrecisionRecallOptions options_of(const std::string& argument) {
  const size_t comma = argument.find(',');
  const std::string average = argument.substr(0, comma);
  PrecisionRecallOptions options{.zero_division = std::stod(argument.substr(comma + 1))};
  if (std::isdigit(static_cast<unsigned char>(average[0])) != 0) {
    options.of_class = std::stoll(average);
  } else {
    options.average = average;
  }
  return options;
}

std::shared_ptr<Metric> metric_of(const std::string& name, const std::string& argument) {
  if (name == "accuracy") return accuracy();
  if (name == "top_k") return top_k_accuracy({.k = std::stoll(argument)});
  if (name == "precision") return precision(options_of(argument));
  if (name == "recall") return recall(options_of(argument));
  if (name == "f1") return f1(options_of(argument));
  if (name == "perplexity") return perplexity();
  if (name == "mae") return mean_absolute_error();
  if (name == "mse") return mean_squared_error();
  if (name == "rmse") return root_mean_squared_error();
  if (name == "pearson") return pearson();
  if (name == "spearman") return spearman();
  if (name == "r2") return r2();
  throw ValueError("unknown metric " + name);
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("metrics_runner", [&] {
    if (argc != 2) throw ValueError("usage: metrics_runner INPUTS");
    const auto tensors = checkpoint::load_safetensors(argv[1]).tensors;
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string number, name, argument;
      words >> number >> name >> argument;
      const at::Tensor& outputs = tensors.at(number + ".outputs");
      const at::Tensor& labels = tensors.at(number + ".labels");
      const auto metric = metric_of(name, argument);
      const int64_t half = labels.size(0) / 2;
      metric->update(outputs.narrow(0, 0, half), labels.narrow(0, 0, half));
      metric->update(outputs.narrow(0, half, labels.size(0) - half),
                     labels.narrow(0, half, labels.size(0) - half));
      std::cout << fmt::format("{:.17g}\n", metric->compute());
    }
    return 0;
  });
}
