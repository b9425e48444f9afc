// Undo: a copy of everything that a step may change, for as long as stepc does not know whether the step may keep its
// changes: tensors of the program, random generators, which gradients its parameters have, and what its host code keeps
// outside tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aten/generator_snapshot.h"
#include "engine/program/program.h"

namespace stepc {

// Which gradients a program's parameters have, to be put back. Handles only.
class SavedGradients {
 public:
  SavedGradients(const std::vector<OwnedKey>& keys, const std::vector<at::Tensor>& tensors);
  void restore() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // parameter, its gradient
};

class Undo {
 public:
  // Copies `tensors`, whose handles it keeps, and the process's default generator and `generators`. Without a program
  // its host code's state is left alone, until add_host_state().
  Undo(Program* program, std::vector<at::Tensor> tensors, const std::vector<at::Generator>& generators);

  // Copies what the program's host code keeps outside of tensors, if that was not done: it may run now.
  void add_host_state(Program& program);
  // Keeps the handles of the parameters' gradients, too. `tensors` are the program's by its `keys`.
  void add_gradients(const std::vector<OwnedKey>& keys, const std::vector<at::Tensor>& tensors);

  // Puts everything back.
  void restore();

  uint64_t bytes() const { return bytes_; }

 private:
  Program* program_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::byte> bytes_of_dense_;  // of the host's tensors without gaps, one after the other
  std::vector<at::Tensor> copies_;         // of the others
  std::vector<std::pair<at::Generator, GeneratorSnapshot>> generators_;
  std::shared_ptr<void> host_state_;
  std::optional<SavedGradients> gradients_;
  uint64_t bytes_ = 0;
};

// Runs `part` and then puts back what `saved` holds, also where `part` throws.
template <class Saved, class Part>
void run_and_restore(Saved& saved, const Part& part) {
  try {
    part();
  } catch (...) {
    saved.restore();
    throw;
  }
  saved.restore();
}

}  // namespace stepc
