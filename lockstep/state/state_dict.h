// What something needs to go on where it stopped: named tensors and scalars.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

namespace lockstep {

/// What state_dict() returns and load_state_dict() takes. Names have parts with dots between them, so that
/// the states of several things fit into one. A value: copies of it share the tensors' memory.
struct StateDict {
  /// What JSON can hold beside lists and objects.
  using Scalar = std::variant<bool, int64_t, double, std::string>;

  /// By name. They may share memory with the object whose state this is.
  std::map<std::string, at::Tensor> tensors{};
  std::map<std::string, Scalar> scalars{};  ///< by name

  /// The scalar of that name. T: bool, int64_t, double (an integer will do, and "inf", "-inf" and "nan", as which
  /// scalars_to_json() writes what JSON has no number for) or std::string. Throws ValueError
  /// that begins with `who` where there is none, or one of another type.
  template <class T>
  T get(std::string_view who, const std::string& name) const;

  /// Takes in all of `other`, with "`prefix`." before each name.
  void add(std::string_view prefix, const StateDict& other);
  /// What add(prefix, ...) has taken in, under its own names.
  StateDict part(std::string_view prefix) const;

  /// The scalars as a JSON object in one line, for files that hold tensors and text.
  std::string scalars_to_json() const;
  /// The scalars of a text that scalars_to_json() wrote. Throws ValueError for anything else than a JSON object of
  /// scalars.
  static std::map<std::string, Scalar> scalars_from_json(std::string_view text);
};

}  // namespace lockstep
