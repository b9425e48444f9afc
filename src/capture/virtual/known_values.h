// Which storages hold values that really exist during a virtual capture: the batch, constants, and what was computed
// from them alone. Everything else has a geometry only. Holds weak references to storages, never tensors.
//
// Known storages that the program owned before are changed for real by the calls that change them (a step counter):
// their bytes are kept and put back by restore(), so that a capture leaves the program as it found it.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "aten/generator_snapshot.h"

namespace stepc {

// Largest result that is computed although nothing is executed: masks and positions, not activations.
inline constexpr size_t kLargestKnownInteger = size_t{16} << 20;
inline constexpr size_t kLargestKnownFloat = size_t{1} << 20;
// Largest tensor of numbers that is taken for known without being told: step counters, scales.
inline constexpr size_t kLargestAssumedFloat = 4096;

// The limit in bytes for what a factory makes. One that is like another tensor, or is not filled yet, becomes a
// gradient or an optimizer's state more often than a mask.
size_t largest_filled(c10::ScalarType dtype, bool is_like);

class KnownValues {
 public:
  // What the program says about a tensor of its own; without a word integers, booleans and small numbers are known.
  void mark(const at::Tensor& tensor, bool known);

  bool is_known(const at::Tensor& tensor);

  // A call made this tensor, with or without its values.
  void made(const at::Tensor& tensor, bool known);

  // Before a call that is really run writes to `tensor` or draws from `generator`.
  void keep(const at::Tensor& tensor);
  void keep(const at::Generator& generator);

  // Puts the program's storages and generators back to what they were. Idempotent.
  void restore();

 private:
  struct Storage {
    c10::weak_intrusive_ptr<c10::StorageImpl> weak;  // keeps its address from meaning another storage
    bool known = false;
    bool owned_by_program = false;
    std::unique_ptr<std::string> before;
  };

  Storage& find(const at::Tensor& tensor);

  std::unordered_map<c10::StorageImpl*, Storage> storages_;
  std::vector<Storage*> kept_;  // in the order of their first write; map entries do not move
  std::vector<std::pair<at::Generator, GeneratorSnapshot>> generators_;
};

}  // namespace stepc
