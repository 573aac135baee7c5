#include "lockstep/zoo/tasks/predictions.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::tasks {

void write_predictions(const std::filesystem::path& path, const at::Tensor& logits,
                       const std::vector<std::string>& labels, const std::vector<int64_t>& indices) {
  const auto rows = logits.to(at::kFloat).contiguous();
  const auto* value = rows.const_data_ptr<float>();
  const int64_t num_labels = rows.size(1);
  write_file_atomically(path, [&](const auto& append) {
    for (int64_t row = 0; row < rows.size(0); ++row, value += num_labels) {
      const auto best = std::max_element(value, value + num_labels) - value;
      const nlohmann::json line = {{"index", indices.empty() ? row : indices.at(static_cast<size_t>(row))},
                                   {"label", labels.at(static_cast<size_t>(best))},
                                   {"logits", std::vector<float>(value, value + num_labels)}};
      append(dump_json(line) + "\n");
    }
  });
}

}  // namespace lockstep::tasks
