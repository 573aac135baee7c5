// Ranks as a grid, with a group along each of its dimensions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// All ranks of a group, in row-major order, as a grid of one, two or more dimensions (torch's DeviceMesh).
/// The group of dimension d holds the ranks that differ from this one in coordinate d alone. Cheap to copy.
class DeviceMesh {
 public:
  /// shape: sizes whose product is group.size(). mesh_dim_names: one per dimension, or none. Collective over
  /// `group`: all ranks must give the same. Blocks. Throws ValueError.
  DeviceMesh(const ProcessGroup& group, std::vector<int64_t> shape,
             std::vector<std::string> mesh_dim_names = {});

  int ndim() const { return static_cast<int>(shape_.size()); }               ///< number of dimensions
  const std::vector<int64_t>& shape() const { return shape_; }               ///< ranks along each dimension
  const std::vector<std::string>& mesh_dim_names() const { return names_; }  ///< as given; may be empty
  /// Ranks of the whole mesh, or along dimension `dim`.
  int64_t size() const;
  /// Ranks along dimension `dim`.
  int64_t size(int dim) const { return shape_.at(checked(dim)); }
  /// This rank's place: one number per dimension.
  const std::vector<int64_t>& get_coordinate() const { return coordinate_; }
  /// This rank's place along dimension `dim`.
  int get_local_rank(int dim) const { return get_group(dim).rank(); }
  /// Returns this rank's place along the dimension `name`. Throws ValueError where there is none.
  int get_local_rank(const std::string& name) const { return get_group(name).rank(); }
  /// Its members are ranked by their coordinate along `dim`.
  const ProcessGroup& get_group(int dim = 0) const { return groups_.at(checked(dim)); }
  /// Returns the group along the dimension `name`. Throws ValueError where there is none.
  const ProcessGroup& get_group(const std::string& name) const;
  /// The rank, in the group that the mesh was made of, at `coordinate`.
  int rank_at(const std::vector<int64_t>& coordinate) const;

 private:
  size_t checked(int dim) const;
  std::vector<int64_t> shape_, coordinate_;
  std::vector<std::string> names_;
  std::vector<ProcessGroup> groups_;
};

/// torch's name for the constructor over the default group.
DeviceMesh init_device_mesh(std::vector<int64_t> shape, std::vector<std::string> mesh_dim_names = {});

}  // namespace lockstep
