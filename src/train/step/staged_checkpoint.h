// What a checkpoint holds of a learner, copied aside in one go: training changes the tensors again while the copy is
// written. Its memory is taken once, before the first step, and stays as long as it lives.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/tensors.h"

namespace stepc::train {

// Of such a copy: a tensor that is in both lists, as master weights are, is copied once.
uint64_t staged_bytes(const NamedTensors& weights, const NamedTensors& state);

// Of the files: there it stands twice.
uint64_t saved_bytes(const NamedTensors& weights, const NamedTensors& state);

class StagedCheckpoint {
 public:
  // Takes memory for tensors of these shapes and touches it, so that no later copy() waits for pages.
  StagedCheckpoint(const NamedTensors& weights, const NamedTensors& state);

  // The stall of a save: the same tensors, as they are now.
  void copy(const NamedTensors& weights, const NamedTensors& state);

  // As of the last copy().
  [[nodiscard]] const NamedTensors& weights() const { return weights_; }
  [[nodiscard]] const NamedTensors& state() const { return state_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  NamedTensors weights_, state_;
  std::vector<bool> state_is_weight_;
  uint64_t bytes_ = 0;
};

}  // namespace stepc::train
