// Groups that a training step is made of, small, one of each form that loops take.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/chunked_loss.h"
#include "ops/graph_builder.h"
#include "passes/rewrite/decompose.h"

namespace stepc {

inline TensorId group_input(GraphBuilder& b, DType dtype, Shape shape) {
  const std::string key = std::to_string(b.graph().inputs.size());
  return b.graph().add_input({InputKind::kCaptured, key, {}, {}, 0}, {dtype, std::move(shape)});
}
inline void group_output(GraphBuilder& b, TensorId id) {
  b.graph().outputs.emplace_back();
  b.graph().outputs.back().tensor = id;
}

struct NamedGroup {
  std::string name;
  Graph graph;
};

inline Graph adamw_group(int64_t count) {
  GraphBuilder b;
  std::vector<TensorId> in;
  for (int k = 0; k < 4; ++k) in.push_back(group_input(b, DType::kF32, {count}));
  for (int k = 0; k < 6; ++k) in.push_back(group_input(b, DType::kF64, {}));
  for (TensorId id : b.add_all("adamw_update", in)) group_output(b, id);
  return decompose(b.take());
}

// Updates of parameters of these shapes by one clip's scale, which nothing else connects.
inline Graph updates_group(const std::vector<Shape>& shapes) {
  GraphBuilder b;
  const TensorId norm = group_input(b, DType::kF32, {});
  std::vector<TensorId> numbers;
  for (int k = 0; k < 6; ++k) numbers.push_back(group_input(b, DType::kF64, {}));
  const TensorId scale = b.add("minimum", {b.add("reciprocal", {norm}), b.full(1, DType::kF32)});
  for (const Shape& shape : shapes) {
    std::vector<TensorId> in;
    for (int k = 0; k < 4; ++k) in.push_back(group_input(b, DType::kF32, shape));
    in[1] = b.add("mul", {in[1], scale});
    in.insert(in.end(), numbers.begin(), numbers.end());
    for (TensorId id : b.add_all("adamw_update", in)) group_output(b, id);
  }
  return decompose(b.take());
}

inline std::vector<NamedGroup> step_groups() {
  std::vector<NamedGroup> out;
  const auto add = [&](std::string name, auto&& build) {
    GraphBuilder b;
    build(b);
    out.push_back({std::move(name), decompose(b.take())});
  };
  out.push_back({"adamw", adamw_group(1000)});
  out.push_back({"updates", updates_group({{40, 30}, {7}, {1200}, {40, 30}, {1}, {133}, {40, 30}})});
  for (DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    const std::string name(name_of(dtype));
    // As passes/fp8 scales: by the largest element of each row.
    add("scaled to " + name, [&](GraphBuilder& b) {
      const TensorId x = group_input(b, DType::kBF16, {7, 133});
      const TensorId amax = b.add("max", {b.add("abs", {x})}, {{"dims", Shape{1}}, {"keepdim", true}});
      const TensorId scale = b.add("div", {b.full(448, DType::kF32), b.cast(amax, DType::kF32)});
      group_output(b, b.cast(b.add("mul", {b.cast(x, DType::kF32), scale}), dtype));
    });
    add("from " + name, [&](GraphBuilder& b) {
      const TensorId x = b.cast(group_input(b, dtype, {7, 133}), DType::kF32);
      group_output(b, b.add("mul", {x, group_input(b, DType::kF32, {7, 1})}));
    });
  }
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (int64_t columns : {1, 5, 64, 133}) {
      const std::string size = std::string(name_of(dtype)) + " " + std::to_string(columns);
      const Shape shape = {6, 11, columns};
      add("softmax " + size, [&](GraphBuilder& b) {
        group_output(b, b.add("softmax", {group_input(b, dtype, shape)}, {{"dim", int64_t{2}}}));
      });
      add("layer norm " + size, [&](GraphBuilder& b) {
        const Attrs attrs = {{"dims", int64_t{1}}, {"eps", 1e-5}};
        const TensorId x = group_input(b, dtype, shape);
        const TensorId weight = group_input(b, dtype, {columns});
        for (TensorId id : b.add_all("layer_norm", {x, weight, group_input(b, dtype, {columns})}, attrs))
          group_output(b, id);
      });
      // Rows for the input's gradient, shares over all rows for the weight's and the bias's.
      add("layer norm backward " + size, [&](GraphBuilder& b) {
        const TensorId gradient = group_input(b, dtype, shape);
        const TensorId x = group_input(b, dtype, shape);
        const TensorId mean = group_input(b, DType::kF32, {6, 11, 1});
        const TensorId rstd = group_input(b, DType::kF32, {6, 11, 1});
        const TensorId weight = group_input(b, dtype, {columns});
        for (TensorId id : b.add_all("layer_norm_backward", {gradient, x, mean, rstd, weight}, {{"dims", int64_t{1}}}))
          group_output(b, id);
      });
    }
  add("bias gradient", [](GraphBuilder& b) { group_output(b, b.sum(group_input(b, DType::kF32, {300, 70}), {0})); });
  add("few rows", [](GraphBuilder& b) { group_output(b, b.sum(group_input(b, DType::kF32, {3, 500}), {0})); });
  add("heads of a group", [](GraphBuilder& b) {
    group_output(b, b.sum(group_input(b, DType::kBF16, {2, 3, 4, 10, 8}), {2}));
  });
  add("squared norm", [](GraphBuilder& b) {
    const TensorId x = b.cast(group_input(b, DType::kBF16, {300, 171}), DType::kF32);
    group_output(b, b.add("sqrt", {b.sum(b.add("square", {x}), {0, 1})}));
  });
  add("squared norm of a window", [](GraphBuilder& b) {
    const TensorId x = group_input(b, DType::kF32, {300, 171});
    b.graph().inputs[0].strides = {200, 1};
    b.graph().inputs[0].offset = 3;
    group_output(b, b.sum(b.add("square", {x}), {0, 1}));
  });
  // Two halves change places, one of them negated; read from (batch, seq, head, dim), written as (batch, head, seq,
  // dim).
  add("rotary", [](GraphBuilder& b) {
    const TensorId x = b.transpose(group_input(b, DType::kBF16, {2, 7, 3, 20}), {0, 2, 1, 3});
    const TensorId cosine = group_input(b, DType::kBF16, {1, 1, 7, 20});
    const TensorId sine = group_input(b, DType::kBF16, {1, 1, 7, 20});
    const TensorId low = b.slice(x, {0, 0, 0, 0}, {2, 3, 7, 10}, {1, 1, 1, 1});
    const TensorId high = b.slice(x, {0, 0, 0, 10}, {2, 3, 7, 10}, {1, 1, 1, 1});
    const TensorId rotated = b.add("concat", {b.add("neg", {high}), low}, {{"dim", int64_t{3}}});
    group_output(b, b.add("add", {b.add("mul", {x, cosine}), b.add("mul", {rotated, sine})}));
  });
  add("dropout", [](GraphBuilder& b) {
    const TensorId x = group_input(b, DType::kF32, {9, 50});
    const TensorId rng = b.graph().add_input({InputKind::kRng, "", {}, {}, 0}, {DType::kI64, {2}});
    const TensorId drawn =
        b.add("random_uniform", {rng}, {{"shape", Shape{9, 50}}, {"dtype", DType::kF32}, {"stream", int64_t{4}}});
    const TensorId kept = b.add("lt", {drawn, b.full(0.9, DType::kF32)});
    group_output(b, b.add("where", {kept, b.add("mul", {x, b.full(1 / 0.9, DType::kF32)}), b.full(0, DType::kF32)}));
    group_output(b, kept);
  });
  add("embedding", [](GraphBuilder& b) {
    const TensorId table = group_input(b, DType::kBF16, {7, 33});
    const TensorId ids = group_input(b, DType::kI64, {4, 6});
    const TensorId rows = b.cast(b.add("take", {table, ids}, {{"dim", int64_t{0}}}), DType::kF32);
    group_output(b, rows);
    group_output(b, b.sum(b.add("square", {rows}), {2}, true));
  });
  for (size_t operands = 3; operands <= 5; ++operands)
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const Graph rows = loss_rows({{"ignore_index", int64_t{2}}}, dtype, 9, 133, operands);
      out.push_back({std::string(name_of(dtype)) + " loss of " + std::to_string(operands), rows});
    }
  return out;
}

}  // namespace stepc
