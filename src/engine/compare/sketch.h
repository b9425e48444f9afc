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
  // Takes no memory from ATen where the tensor has no gaps. Of an undefined tensor: of nothing.
  explicit Sketch(const at::Tensor& tensor);
  Sketch() = default;
  // Of a tensor that comes in stretches, in order: the elements from `first` on of `count`, of floating point without
  // gaps. `first`: a multiple of 1024.
  void add(const at::Tensor& stretch, int64_t first, int64_t count);
  // What a dry run shows of a tensor of `count` elements (runtime/dry_run.h): all of it, or a stretch.
  void show(const at::Tensor& left, int64_t first, int64_t count);
  [[nodiscard]] bool is_defined() const { return kind_ != Kind::kNothing; }

  // To be compared with that of another sketch, as tensors are: floating point, with the root mean square of what was
  // sketched; for what is not, a number that differs when a bit does. Undefined for nothing.
  [[nodiscard]] at::Tensor values() const;

 private:
  std::shared_ptr<std::vector<double>> sums_;  // values() are these
  uint64_t hash_ = 0;
  enum class Kind : uint8_t { kNothing, kSums, kHash } kind_ = Kind::kNothing;
};

}  // namespace stepc
