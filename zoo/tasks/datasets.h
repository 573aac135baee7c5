// What a recipe trains on, evaluates and predicts.
#pragma once

#include "lockstep/data/dataset.h"

namespace lockstep::tasks {

/// The datasets of a recipe.
struct Datasets {
  Dataset train{};       ///< empty: nothing is trained
  Dataset validation{};  ///< empty: there is no evaluation
  Dataset test{};        ///< empty: there is no prediction
};

}  // namespace lockstep::tasks
