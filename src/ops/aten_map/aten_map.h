// The ATen map: how a recorded ATen call is built from ops of the table, by name. A call without a row, or with
// arguments that its row does not know, stays an opaque node.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ir/trace.h"
#include "ops/graph_builder.h"

namespace stepc {

// One recorded call while it is mapped. Arguments count from 0; one that the row cannot take throws Unmapped.
class AtenMapper {
 public:
  struct Environment {
    std::function<TensorId(ValueId)> read;                        // what a value holds now
    std::function<TensorId(const ReadNumber&)> number;            // a number that an earlier call read, 0-dim
    std::function<TensorId(const std::vector<Arg>&)> rng;         // the rng input of the call's generator
    std::function<int64_t(const std::vector<Arg>&)> next_stream;  // for the next draw of the call's generator
  };
  struct Unmapped : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  // `results`: types of what the call writes, in the order of Call::writes, then of its fresh results. A row gives
  // tensors in this order.
  AtenMapper(GraphBuilder& builder, const Environment& environment, std::vector<Arg> args,
             std::vector<TensorType> results)
      : b(builder), environment_(environment), args_(std::move(args)), results_(std::move(results)) {}

  GraphBuilder& b;

  [[nodiscard]] bool has(size_t i) const;   // given and not none or undefined
  TensorId tensor(size_t i);                // a number becomes a 0-dim tensor
  TensorId tensor(size_t i, DType dtype);   // cast
  std::vector<TensorId> tensors(size_t i);  // a list
  // Without a default the argument must be given.
  int64_t integer(size_t i, std::optional<int64_t> otherwise = {}) const;
  double real(size_t i, std::optional<double> otherwise = {}) const;
  bool flag(size_t i, std::optional<bool> otherwise = {}) const;
  Shape ints(size_t i, std::optional<Shape> otherwise = {}) const;
  std::string text(size_t i, const std::string& otherwise) const;

  [[nodiscard]] size_t result_count() const { return results_.size(); }
  [[nodiscard]] const TensorType& result(size_t k) const;
  [[nodiscard]] const std::vector<Arg>& args() const { return args_; }
  [[nodiscard]] const std::vector<TensorType>& results() const { return results_; }
  [[nodiscard]] const Environment& environment() const { return environment_; }

  // PyTorch's type promotion: tensors with dimensions before 0-dim tensors before numbers, unless the kind is higher.
  [[nodiscard]] DType promoted(const std::vector<size_t>& arguments);
  // Shape and dtype of result k.
  TensorId as_result(TensorId x, size_t k = 0);
  TensorId random(std::string_view op, Shape shape, DType dtype);
  // Dimension from the front, of a tensor with `rank` dimensions.
  static int64_t dim(int64_t d, size_t rank);

  [[noreturn]] static void unmapped(std::string_view why) { throw Unmapped(std::string(why)); }

 private:
  const Environment& environment_;
  std::vector<Arg> args_;
  std::vector<TensorType> results_;
};

using AtenMapFn = std::vector<TensorId> (*)(AtenMapper& m);
struct AtenRow {
  std::string_view name;  // "add.Tensor"; in-place, out= and foreach forms find it too
  AtenMapFn map;
};

// The row and how to use it; nullptr: none. "aten::add_.Tensor" and "aten::add.out" find "add.Tensor".
struct AtenMatch {
  const AtenRow* row = nullptr;
  bool foreach = false;  // once for each element of the lists
};
AtenMatch find_aten_row(std::string_view op);
// The call's tensors from its row; Unmapped is thrown where it has none that fits.
std::vector<TensorId> map_aten(std::string_view op, AtenMapper& mapper);

// Whether an ATen call takes random numbers, by its name.
bool draws_random(std::string_view op);

// Rows by family. Private to ops/.
std::vector<AtenRow> aten_pointwise_rows();
std::vector<AtenRow> aten_shape_rows();
std::vector<AtenRow> aten_reduce_rows();
std::vector<AtenRow> aten_neural_rows();
std::vector<AtenRow> aten_convolution_rows();
std::vector<AtenRow> aten_optimizer_rows();

}  // namespace stepc
