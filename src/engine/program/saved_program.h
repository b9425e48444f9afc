// A program's tensors in a checkpoint (checkpoint/checkpoint.h): parameters and buffers under the names that their
// module gives them, as in a model's files, and every other tensor that outlives a step by its key. Gradients are not
// saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_files.h"
#include "engine/program/program.h"

namespace stepc {

// Files that the caller adds to a checkpoint: texts by file name.
using Companions = std::map<std::string, std::string>;

struct SavedTensor {
  OwnedKey key;
  bool is_of_model = false;  // in the model's files; otherwise beside the optimizer's state
  at::Tensor tensor;
};
// The tensors of the program's last refresh, in the order of its keys.
std::vector<SavedTensor> saved_tensors(const Program& program);

// The default generators from which the program may draw: the CPU's and its device's, by the names of their states.
std::vector<std::pair<std::string, at::Generator>> saved_generators(const Program& program);

// Whether it is a large parameter that no step changes: it has a file of its own, which later checkpoints share.
bool is_kept(const SavedTensor& tensor);

// A checkpoint's tensors.
class SavedProgram {
 public:
  explicit SavedProgram(const std::filesystem::path& checkpoint);

  // nullptr if the checkpoint has no such tensor. `files` becomes the files that are searched for it.
  const TensorFiles::Tensor* find(const SavedTensor& tensor, const TensorFiles*& files) const;
  // Throws UserError for another program's checkpoint: one that lacks a tensor which the program had `before` state was
  // made for its optimizers, has a tensor that the program has not, or has one of another shape.
  void check(const Program& program, const std::vector<OwnedKey>& before) const;
  // The names of the tensors beside the model, without the generators' states.
  [[nodiscard]] std::vector<std::string> names_of_state() const;
  // Of a checkpoint from a CPU, a device's generator stays as it is.
  void load_generators(const Program& program) const;

 private:
  std::filesystem::path directory_;
  TensorFiles model_, state_;
};

// The checkpoint in this directory, or the newest complete one of a run's directory. Throws UserError if there is none.
Checkpoint find_checkpoint(const std::filesystem::path& from);

// For a program that one process holds: writes `output`/checkpoint-000200 and returns it.
std::filesystem::path save_program(Program& program, const std::filesystem::path& output, int64_t number,
                                   const Companions& companions);
// Loads a checkpoint into the program's tensors. Makes the state that its optimizers have not made yet.
void load_program(Program& program, const SavedProgram& saved);

// Copies `read` into a tensor of the program, and gives that tensor memory if it has none.
void put_into(const at::Tensor& tensor, const at::Tensor& read);

}  // namespace stepc
