// ShardedState: the tensors of a program that runs on several ranks. The program itself holds only shapes; this rank
// holds its part of each tensor, in the layout of the planned steps. Owns the parts.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "checkpoint/tensor_files.h"
#include "comm/ranks.h"
#include "ir/graph.h"
#include "ir/trace.h"
#include "passes/partition/partition.h"
#include "schedule/schedule.h"

namespace stepc {

// This rank's part of a whole tensor: a window on it where that can be, else a copy. Padding repeats the last element.
at::Tensor part_of(const at::Tensor& whole, const Sharding& sharding, const Mesh& mesh, int64_t rank);

class ShardedState {
 public:
  ShardedState(Mesh mesh, std::shared_ptr<Ranks> ranks);

  // Learns of the tensors of the program that one rank's step has. It takes memory where values are put, or load() is
  // called. UserError where another step wants one of them in other parts.
  void add(const Schedule& schedule);
  // Memory, zero, for all that has none.
  void load();

  [[nodiscard]] bool has(Owner owner, const std::string& key) const { return parts_.contains({owner, key}); }
  // Of a whole tensor this rank's part, in the dtype that the steps want. Nothing where no step has it. UserError for
  // another shape.
  void put(Owner owner, const std::string& key, const at::Tensor& whole);
  // The part, all of it one number.
  void fill(Owner owner, const std::string& key, double number);
  // Whether the rank's part is the whole, and such a tensor can be it.
  [[nodiscard]] bool is_whole(Owner owner, const std::string& key, const at::Tensor& tensor) const;
  // The same of a tensor that lies in files: no more of it is read than this rank's part, or what lies between its
  // elements.
  void put(Owner owner, const std::string& key, const TensorFiles& files, const TensorFiles::Tensor& tensor);
  // All of them, in order.
  [[nodiscard]] std::vector<std::pair<Owner, std::string>> names() const;
  // The ranks that hold the same part as `rank`, itself among them.
  [[nodiscard]] std::vector<int64_t> holders(Owner owner, const std::string& key, int64_t rank) const;
  struct Slice {
    std::vector<int64_t> shape;   // of the whole
    Box box;                      // in the whole
    std::vector<int64_t> inside;  // where it begins in the part
    [[nodiscard]] uint64_t elements() const;
  };
  // Of a tensor what this rank holds, padding left out, as boxes of the whole.
  [[nodiscard]] std::vector<Slice> held(Owner owner, const std::string& key) const;
  // What is this rank's to save of it: those of all ranks cover the whole once. Of ranks that have the same, the one
  // whose `turn` it is saves it.
  [[nodiscard]] std::vector<Slice> slices(Owner owner, const std::string& key, size_t turn) const;
  // A window on the part.
  [[nodiscard]] at::Tensor window(Owner owner, const std::string& key, const Slice& slice) const;
  // Bytes of the whole, and of an element.
  [[nodiscard]] uint64_t whole_bytes(Owner owner, const std::string& key) const;
  [[nodiscard]] uint64_t element_bytes(Owner owner, const std::string& key) const;
  // Where each axis of the mesh splits the tensor once, into ranges as equal as possible, as PyTorch's DTensor
  // does: the dimension that it splits, -1 for none. Nothing for other parts.
  [[nodiscard]] std::optional<std::vector<int64_t>> split_dims(Owner owner, const std::string& key) const;
  // The part without padding, of such a tensor.
  [[nodiscard]] at::Tensor unpadded_part(Owner owner, const std::string& key) const;
  // The part itself.
  [[nodiscard]] const at::Tensor& part(Owner owner, const std::string& key) const;
  // The whole, a copy. All ranks ask for the same at once.
  [[nodiscard]] at::Tensor whole(Owner owner, const std::string& key) const;
  // What a step left in its stead, of the same look.
  void replace(Owner owner, const std::string& key, const at::Tensor& part);
  // Sets all of an owner's to zero.
  void clear(Owner owner);

  [[nodiscard]] uint64_t bytes() const;
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  [[nodiscard]] Ranks& ranks() const { return *ranks_; }

 private:
  struct Part {
    PartOf of;
    at::ScalarType type = at::kFloat;
    c10::Device device = c10::kCPU;
    std::vector<int64_t> sizes, strides;
    at::Tensor tensor;
  };
  [[nodiscard]] const Part& find(Owner owner, const std::string& key) const;
  static void take_memory(Part& part);

  Mesh mesh_;
  std::shared_ptr<Ranks> ranks_;
  std::map<std::pair<Owner, std::string>, Part> parts_;
};

}  // namespace stepc
