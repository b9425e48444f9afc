// A tensor as a few numbers, which give its distance from another tensor when neither of the two is left: the elements
// of a large tensor are added up in 1024 sums with random signs, always the same signs (a CountSketch). The difference
// of two sketches is the sketch of the difference, so the root mean square of a sketch is that of the tensor, within
// some percent.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stepc {

class Sketch {
 public:
  // Takes no memory from ATen if the tensor lies on the host and has no gaps. An undefined tensor gives the sketch of
  // nothing.
  explicit Sketch(const at::Tensor& tensor);
  Sketch() = default;
  // Adds a chunk of a tensor that comes in order: the elements from `first` on, of `count` elements in all, of a
  // floating type and without gaps. `first` is a multiple of 1024.
  void add(const at::Tensor& chunk, int64_t first, int64_t count);
  // Adds what a dry run shows of a tensor of `count` elements (runtime/dry_run.h): the whole tensor, or a chunk.
  void show(const at::Tensor& left, int64_t first, int64_t count);
  [[nodiscard]] bool is_defined() const { return kind_ != Kind::kNothing; }

  // The sketch as a tensor, to be compared with that of another sketch. Of floating point: a tensor with the root mean
  // square of the sketched one. Of any other type: a number that differs if a bit differs. Undefined for nothing.
  [[nodiscard]] at::Tensor values() const;

 private:
  std::shared_ptr<std::vector<double>> sums_;  // values() returns these
  uint64_t hash_ = 0;
  enum class Kind : uint8_t { kNothing, kSums, kHash } kind_ = Kind::kNothing;
};

}  // namespace stepc
