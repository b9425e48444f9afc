// A random training step as a Graph of the last stage: matmuls, pointwise work, norms, windows, look-ups, scatters,
// random draws, some of it read again backwards; updates, gradients and results leave. Values stay near one, so that
// rounding stays small. `interrupted`: it pauses, and host code changes some of the weights later.
#pragma once

#include <random>
#include <vector>

#include "base/text.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "passes/pass.h"

namespace stepc::test {

inline Graph random_step(uint64_t seed, bool interrupted = false) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  GraphBuilder b;
  const Shape shape = {8, 8};
  const TensorId rng = b.graph().add_input({InputKind::kRng, "", {}, {}, 0}, {DType::kI64, {2}});
  const TensorId index = b.graph().add_input({InputKind::kBatch, "index", {}, {}, 0}, {DType::kI64, {8}});
  std::vector<TensorId> values = {b.graph().add_input({InputKind::kBatch, "x", {}, {}, 0}, {DType::kF32, shape})};
  const size_t first_weight = b.graph().inputs.size();
  std::vector<TensorId> weights;
  for (size_t i = 0, n = 2 + below(4); i < n; ++i) {
    GraphInput input{InputKind::kParameter, str("{}", i), {}, {}, 0};
    if (below(6) == 0) input.strides = {1, 8};  // the program's memory is laid out as it likes
    weights.push_back(b.graph().add_input(input, {DType::kF32, shape}));
  }
  std::vector<bool> filled(weights.size(), false);  // by host code
  const auto recent = [&] { return values[values.size() - 1 - below(std::min<size_t>(values.size(), 6))]; };
  const auto weight = [&] { return weights[below(weights.size())]; };
  const auto update_step = [&] { return b.add("mul", {recent(), b.full(0.1, DType::kF32)}); };
  const auto updated_weight = [&](size_t w, TensorId step) {
    return b.add("tanh", {b.add("sub", {weights[w], step})});
  };
  int64_t stream = 0;
  const auto interrupt = [&](bool pauses) {
    HostCode code;
    code.event = pauses ? 0 : 1;
    code.pauses = pauses;
    code.given = {{recent(), {}}, {{}, {}}, {recent(), {1, 8}}};
    std::vector<size_t> slots;  // weights
    for (size_t w = 0; w < weights.size(); ++w) {
      const TensorId held = weights[w];
      if (below(2) == 0) weights[w] = updated_weight(w, update_step());
      if (weights[w] == held && (pauses || below(2) == 0)) continue;
      code.slots.push_back({static_cast<uint32_t>(first_weight + w), weights[w], {}});
      slots.push_back(w);
    }
    if (pauses)
      for (const char* key : {"0", "1"}) {
        code.slots.push_back({static_cast<uint32_t>(b.graph().inputs.size()), {}, {}});
        code.slots.back().before = b.graph().add_input({InputKind::kIncoming, key, {}, {}, 0}, {DType::kF32, shape});
      }
    const std::vector<TensorId> after =
        b.add_aten(node_of(code), std::vector<TensorType>(code.slots.size(), {DType::kF32, shape}));
    for (size_t s = 0; s < slots.size(); ++s) {
      weights[slots[s]] = after[s];
      filled[slots[s]] = true;
    }
    values.insert(values.end(), after.begin() + static_cast<ptrdiff_t>(slots.size()), after.end());
  };
  const size_t steps = 8 + below(30);
  for (size_t i = 0; i < steps; ++i) {
    if (interrupted && (i == steps / 3 || i == 2 * steps / 3)) interrupt(i == steps / 3);
    b.set_source({i < steps / 2 ? Phase::kForward : Phase::kBackward, str("layer.{}", i / 4)});
    const TensorId x = recent();
    TensorId made = x;
    switch (below(12)) {
      case 0:
      case 1:
        made = b.add("matmul", {x, weight()}, {{"transpose_a", below(2) == 0}, {"transpose_b", below(2) == 0}});
        made = b.add("tanh", {made});
        break;
      case 2:
        made = b.add("tanh", {b.add(below(2) == 0 ? "add" : "sub", {x, recent()})});
        break;
      case 3:
        made = b.add("mul", {x, b.add("tanh", {recent()})});
        break;
      case 4:
        made = b.add("softmax", {x}, {{"dim", int64_t{1}}});
        break;
      case 5:
        made = b.transpose(b.reshape(x, {4, 16}), {1, 0});
        made = b.reshape(made, shape);  // cannot be a window
        break;
      case 6:
        made = b.transpose(x, {1, 0});
        break;
      case 7:
        made = b.add("take", {weight(), index}, {{"dim", int64_t{0}}});
        break;
      case 8:
        made =
            b.add(below(2) == 0 ? "put" : "put_add",
                  {x, b.slice(index, {0}, {2}, {1}), b.slice(recent(), {3, 0}, {2, 8}, {1, 1})}, {{"dim", int64_t{0}}});
        made = b.add("tanh", {made});
        break;
      case 9: {
        const TensorId draw =
            b.add("random_uniform", {rng}, {{"shape", shape}, {"dtype", DType::kF32}, {"stream", stream++}});
        made = b.add("mul", {x, b.cast(b.add("lt", {draw, b.full(0.8, DType::kF32)}), DType::kF32)});
        break;
      }
      case 10: {  // finished where it is made: a bias, and its norm
        const TensorId biased = b.add("add", {b.add("matmul", {x, weight()}), b.sum(weight(), {0})});
        const TensorId norm = b.sum(b.add("square", {biased}), {0, 1});
        values.push_back(b.add("tanh", {biased}));
        made = b.add("matmul", {biased, weight()});
        made = b.add("tanh", {b.add("mul", {made, b.add("rsqrt", {b.add("add", {norm, b.full(1, DType::kF32)})})})});
        break;
      }
      default:
        made =
            b.add("sub",
                  {x, b.expand(b.reshape(b.add("mean", {x}, {{"dims", Shape{1}}, {"keepdim", true}}), {8, 1}), shape)});
    }
    values.push_back(made);
  }
  b.set_source({Phase::kUpdate, ""});
  for (size_t w = 0; w < weights.size(); ++w) {
    const bool stays = below(5) == 0;
    if (stays && !filled[w]) continue;
    const TensorId step = update_step();
    const TensorId updated = stays ? weights[w] : updated_weight(w, step);
    b.graph().outputs.push_back(
        {GraphOutput::Kind::kUpdate, updated, static_cast<uint32_t>(first_weight + w), {}, {}, {}});
    if (below(4) == 0)  // its gradient stays with the program
      b.graph().outputs.push_back({GraphOutput::Kind::kRebind, step, 0, InputKind::kGradient, str("{}", w), {}});
    if (below(6) == 0)  // and so do its old values
      b.graph().outputs.push_back({GraphOutput::Kind::kReturn, weights[w], 0, {}, {}, {}});
  }
  b.graph().outputs.push_back({GraphOutput::Kind::kReturn, recent(), 0, {}, {}, {}});
  b.graph().outputs.push_back({GraphOutput::Kind::kReturn, b.sum(recent(), {0, 1}), 0, {}, {}, {}});
  return b.take();
}

// A mesh of up to 12 ranks and what to split on it.
inline Strategy random_strategy(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<MeshAxis> axes;
  for (const char* name : {"dp_replicate", "dp_shard", "cp", "tp"})
    if (random() % 2 == 0) axes.push_back({name, static_cast<int64_t>(axes.size() < 2 ? 2 + random() % 2 : 1)});
  if (axes.empty()) axes = {{"dp_shard", 2}};
  return {make_mesh(axes), static_cast<int>(random() % 4), random() % 2 == 0};
}

// Through the whole pass table. `strategy`: that of a rank where it has a mesh.
inline Graph random_fused_step(uint64_t seed, const MatmulRule& matmuls, bool interrupted = false,
                               const Strategy& strategy = {}) {
  Graph graph = random_step(seed, interrupted);
  verify_ops(graph);
  RunOptions options;
  options.settings.matmuls = matmuls;
  options.settings.strategy = strategy;
  options.verify = !strategy.mesh.axes.empty();
  graph = run_passes(std::move(graph), options).graph;
  verify_stage(graph, Stage::kFused);
  return graph;
}

}  // namespace stepc::test
