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

// What somebody adds to a checkpoint: texts by the names of their files.
using Companions = std::map<std::string, std::string>;

struct SavedTensor {
  OwnedKey key;
  bool is_of_model = false;  // in the model's files, else beside the optimizer's state
  at::Tensor tensor;
};
// Of the program's last refresh, in the order of its keys.
std::vector<SavedTensor> saved_tensors(const Program& program);

// A large parameter that no step changes: such have files of their own, which later checkpoints share.
bool is_kept(const SavedTensor& tensor);

// A checkpoint's tensors.
class SavedProgram {
 public:
  explicit SavedProgram(const std::filesystem::path& checkpoint);

  // nullptr where it has none. `files` gets where it lies.
  const TensorFiles::Tensor* find(const SavedTensor& tensor, const TensorFiles*& files) const;
  // UserError where it is of another program: it lacks what the program had `before` state was made for its optimizers,
  // has what the program has not, or has it in another shape.
  void check(const Program& program, const std::vector<OwnedKey>& before) const;
  // The names of what lies beside the model, but for the generator.
  [[nodiscard]] std::vector<std::string> names_of_state() const;
  void load_generator() const;

 private:
  std::filesystem::path directory_;
  TensorFiles model_, state_;
};

// A checkpoint's directory, or the newest whole one of a run's. UserError where there is none.
Checkpoint find_checkpoint(const std::filesystem::path& from);

// Of a program that one process holds: writes `output`/checkpoint-000200 and returns it.
std::filesystem::path save_program(Program& program, const std::filesystem::path& output, int64_t number,
                                   const Companions& companions);
// And the way back, into the tensors that the program has. What its optimizers have not made yet is made.
void load_program(Program& program, const SavedProgram& saved);

// Copies what was read into a tensor of the program, and gives it memory if it has none.
void put_into(const at::Tensor& tensor, const at::Tensor& read);

}  // namespace stepc
