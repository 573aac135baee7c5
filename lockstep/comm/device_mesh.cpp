#include "lockstep/comm/device_mesh.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += fmt::format("{}{}", text.empty() ? "" : " x ", size);
  return text.empty() ? "nothing" : text;
}

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> compute_coordinate(int64_t rank, const std::vector<int64_t>& shape) {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    coordinate[d] = rank % shape[d];
    rank /= shape[d];
  }
  return coordinate;
}

}  // namespace

DeviceMesh::DeviceMesh(const ProcessGroup& group, std::vector<int64_t> shape,
                       std::vector<std::string> mesh_dim_names)
    : shape_(std::move(shape)), names_(std::move(mesh_dim_names)) {
  const bool positive = std::all_of(shape_.begin(), shape_.end(), [](int64_t size) { return size > 0; });
  if (shape_.empty() || !positive || product(shape_) != group.size()) {
    throw ValueError(fmt::format("a mesh of {} ranks cannot hold the {} ranks of the group", text_of(shape_),
                                 group.size()));
  }
  if (!names_.empty() && names_.size() != shape_.size()) {
    throw ValueError(fmt::format("a mesh of {} dimensions needs as many mesh_dim_names, not {}",
                                 shape_.size(), names_.size()));
  }
  coordinate_ = compute_coordinate(group.rank(), shape_);
  for (size_t d = 0; d < shape_.size(); ++d) {
    std::vector<std::vector<int>> lines;
    for (int first = 0; first < group.size(); ++first) {
      std::vector<int64_t> at = compute_coordinate(first, shape_);
      if (at[d] != 0) continue;
      lines.emplace_back();
      for (at[d] = 0; at[d] < shape_[d]; ++at[d]) lines.back().push_back(rank_at(at));
    }
    groups_.push_back(group.split_group(lines));
  }
}

int64_t DeviceMesh::size() const { return product(shape_); }

const ProcessGroup& DeviceMesh::get_group(const std::string& name) const {
  const auto it = std::find(names_.begin(), names_.end(), name);
  if (it == names_.end()) {
    std::string known;
    for (const std::string& other : names_) known += (known.empty() ? "" : ", ") + other;
    throw ValueError(fmt::format("the mesh has no dimension \"{}\"; it has: {}", name,
                                 known.empty() ? "no names" : known));
  }
  return groups_[static_cast<size_t>(it - names_.begin())];
}

int DeviceMesh::rank_at(const std::vector<int64_t>& coordinate) const {
  if (coordinate.size() != shape_.size()) {
    throw ValueError(fmt::format("a place in a mesh of {} has {} coordinates, not {}", text_of(shape_),
                                 shape_.size(), coordinate.size()));
  }
  int64_t rank = 0;
  for (size_t d = 0; d < shape_.size(); ++d) {
    if (coordinate[d] < 0 || coordinate[d] >= shape_[d]) {
      throw ValueError(fmt::format("coordinate {} is outside dimension {} of a mesh of {}", coordinate[d], d,
                                   text_of(shape_)));
    }
    rank = rank * shape_[d] + coordinate[d];
  }
  return static_cast<int>(rank);
}

size_t DeviceMesh::checked(int dim) const {
  if (dim < 0 || dim >= ndim()) {
    throw ValueError(fmt::format("the mesh has no dimension {}; it has {}", dim, ndim()));
  }
  return static_cast<size_t>(dim);
}

DeviceMesh init_device_mesh(std::vector<int64_t> shape, std::vector<std::string> mesh_dim_names) {
  return DeviceMesh(default_world(), std::move(shape), std::move(mesh_dim_names));
}

}  // namespace lockstep
