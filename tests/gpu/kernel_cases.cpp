#include "tests/gpu/kernel_cases.h"

#include <algorithm>

#include "codegen/cuda_source.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/model_groups.h"
#include "tests/codegen/random_program.h"
#include "tests/codegen/run_gpu.h"

namespace stepc {

namespace {

constexpr int64_t kRows = 16384;
constexpr int64_t kColumns = 2048;
constexpr DType kNarrow = DType::kBF16;
constexpr DType kWide = DType::kF32;

// ---- what a step's kernels are, as autograd and fusion leave them: operands in bf16, arithmetic in f32

class RateGraph {
 public:
  RateGraph(int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {}

  TensorId rows_in(DType dtype = kNarrow) { return group_input(b, dtype, {rows_, columns_}); }
  TensorId row_number_in() { return group_input(b, kWide, {rows_, 1}); }  // one a row
  TensorId weight_in(DType dtype = kNarrow) { return group_input(b, dtype, {columns_}); }
  TensorId wide(TensorId x) { return b.cast(x, kWide); }
  TensorId narrow(TensorId x) { return b.cast(x, kNarrow); }
  TensorId mul(TensorId x, TensorId y) { return b.add("mul", {x, y}); }
  TensorId add(TensorId x, TensorId y) { return b.add("add", {x, y}); }
  TensorId row_mean(TensorId x) { return mul(b.sum(x, {1}, true), b.full(1 / static_cast<double>(columns_), kWide)); }
  TensorId row_scale(TensorId x) {  // of a norm by the root of the mean square
    return b.add("rsqrt", {add(row_mean(b.add("square", {x})), b.full(1e-5, kWide))});
  }
  void out(TensorId x) { group_output(b, x); }
  void out(const std::vector<TensorId>& all) {
    for (TensorId one : all) out(one);
  }
  Graph take() { return decompose(b.take()); }

  GraphBuilder b;  // NOLINT: the graph is what is built

 private:
  int64_t rows_, columns_;
};

void rms_norm(RateGraph& g, TensorId x) {
  const TensorId scale = g.row_scale(x);
  g.out(g.narrow(g.mul(g.mul(x, scale), g.wide(g.weight_in()))));
  g.out(scale);
}
void rms_norm_backward(RateGraph& g) {
  const TensorId gradient = g.wide(g.rows_in());
  const TensorId x = g.wide(g.rows_in());
  const TensorId scale = g.row_number_in();
  const TensorId normal = g.mul(x, scale);
  const TensorId of_normal = g.mul(gradient, g.wide(g.weight_in()));
  const TensorId along = g.mul(normal, g.row_mean(g.mul(of_normal, normal)));
  g.out(g.narrow(g.mul(g.b.add("sub", {of_normal, along}), scale)));
  g.out(g.narrow(g.b.sum(g.mul(gradient, normal), {0})));
}
void layer_norm(RateGraph& g) {
  const Attrs attrs = {{"dims", int64_t{1}}, {"eps", 1e-5}};
  const TensorId x = g.rows_in();
  const TensorId weight = g.weight_in();
  g.out(g.b.add_all("layer_norm", {x, weight, g.weight_in()}, attrs));
}
void layer_norm_backward(RateGraph& g) {
  const TensorId gradient = g.rows_in();
  const TensorId x = g.rows_in();
  const TensorId mean = g.row_number_in();
  const TensorId scale = g.row_number_in();
  g.out(g.b.add_all("layer_norm_backward", {gradient, x, mean, scale, g.weight_in()}, {{"dims", int64_t{1}}}));
}
void softmax(RateGraph& g) { g.out(g.b.add("softmax", {g.rows_in()}, {{"dim", int64_t{1}}})); }
void swiglu(RateGraph& g) {
  const TensorId gate = g.rows_in();
  g.out(g.mul(g.b.add("silu", {gate}), g.rows_in()));
}
void swiglu_backward(RateGraph& g) {
  const TensorId gradient = g.rows_in();
  const TensorId gate = g.rows_in();
  const TensorId up = g.rows_in();
  g.out(g.b.add("silu_backward", {g.mul(gradient, up), gate}));
  g.out(g.mul(gradient, g.b.add("silu", {gate})));
}
void gelu_with_bias(RateGraph& g) {
  const TensorId x = g.rows_in();
  g.out(g.b.add("gelu_tanh", {g.add(x, g.weight_in())}));
}
void gelu_backward(RateGraph& g) {  // the bias's gradient with it
  const TensorId gradient = g.rows_in();
  const TensorId x = g.rows_in();
  const TensorId of_x = g.b.add("gelu_tanh_backward", {gradient, g.add(x, g.weight_in())});
  g.out(of_x);
  g.out(g.narrow(g.b.sum(g.wide(of_x), {0})));
}
void adamw(RateGraph& g, DType dtype) {
  std::vector<TensorId> in;
  for (int k = 0; k < 4; ++k) in.push_back(g.rows_in(dtype));
  for (int k = 0; k < 6; ++k) in.push_back(group_input(g.b, DType::kF64, {}));
  g.out(g.b.add_all("adamw_update", in));
}

}  // namespace

std::vector<RateCase> rate_cases(int64_t instead) {
  std::vector<RateCase> out;
  const auto add = [&](std::string name, int64_t columns, std::function<void(RateGraph&)> build, int64_t rows = kRows) {
    if (instead != 0) rows = instead;
    name += str(" {} x {}", rows, columns);
    out.push_back({std::move(name), rows, [columns, build = std::move(build)](int64_t some) {
                     RateGraph g(some, columns);
                     build(g);
                     return g.take();
                   }});
  };
  add("copy bf16", kColumns, [](RateGraph& g) { g.out(g.b.add("neg", {g.rows_in()})); });
  add("copy f32", kColumns, [](RateGraph& g) { g.out(g.b.add("neg", {g.rows_in(kWide)})); });
  add("rms norm", kColumns, [](RateGraph& g) { rms_norm(g, g.wide(g.rows_in())); });
  add("rms norm backward", kColumns, rms_norm_backward);
  add("residual and rms norm", kColumns, [](RateGraph& g) {
    const TensorId x = g.rows_in();
    const TensorId sum = g.add(x, g.rows_in());
    g.out(sum);
    rms_norm(g, g.wide(sum));
  });
  add("layer norm", kColumns, layer_norm);
  add("layer norm backward", kColumns, layer_norm_backward);
  add("softmax", kColumns, softmax);
  add("softmax in shared memory", 16400, softmax, 4096);
  add("softmax of long rows", 50304, softmax, 2048);
  add("softmax backward", kColumns, [](RateGraph& g) {
    const TensorId gradient = g.rows_in();
    g.out(g.b.add("softmax_backward", {gradient, g.rows_in()}, {{"dim", int64_t{1}}}));
  });
  add("swiglu", 5632, swiglu);
  add("swiglu backward", 5632, swiglu_backward);
  add("gelu with bias", 8192, gelu_with_bias);
  add("gelu with bias backward", 8192, gelu_backward);
  add(
      "adamw f32", kColumns, [](RateGraph& g) { adamw(g, kWide); }, 32768);
  add(
      "adamw bf16", kColumns, [](RateGraph& g) { adamw(g, kNarrow); }, 32768);
  add("column sums f32", kColumns, [](RateGraph& g) { g.out(g.b.sum(g.rows_in(kWide), {0})); });
  add("bias gradient bf16", kColumns, [](RateGraph& g) { g.out(g.narrow(g.b.sum(g.wide(g.rows_in()), {0}))); });
  add("squared norm bf16", kColumns, [](RateGraph& g) {
    g.out(g.b.sum(g.b.add("square", {g.wide(g.rows_in())}), {0, 1}));
  });
  return out;
}

GpuProgram program_of(const RateCase& one) { return gpu_program(one.graph(one.rows)); }

std::vector<Array> KernelCase::inputs() const { return random_arrays(graph, seed, specials); }

std::vector<KernelCase> kernel_cases(const std::filesystem::path& root) {
  std::vector<KernelCase> out;
  const auto add = [&](const std::string& name, const Graph& graph) {
    out.push_back({name, graph, gpu_program(graph)});
  };
  constexpr int64_t kMostElements = 1 << 21;  // seconds for a machine of many cores
  for (const NamedGroup& one : step_groups()) add(one.name, one.graph);
  for (const RateCase& one : rate_cases()) add("three rows of " + one.name, one.graph(3));
  for (const NamedGroup& one : small_model_groups(root / "tests/codegen/models", kMostElements))
    add(one.name, one.graph);
  constexpr uint64_t kPrograms = 300;
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    int number = 0;
    for_each_random_group(seed, [&](const Graph& group, const std::vector<Array>&) {
      add(str("random program {} group {}", seed, number++), group);
      out.back().seed = seed;
      out.back().specials = seed % 3 == 0;
    });
  }
  return out;
}

std::string kernel_name(size_t program, size_t phase) { return str("group{}_phase{}", program, phase); }

std::vector<KernelBatch> batches_of(const std::vector<KernelCase>& cases) {
  constexpr size_t kAtOnce = 16;
  std::vector<KernelBatch> out;
  for (size_t first = 0; first < cases.size(); first += kAtOnce) {
    KernelBatch batch{first, std::min(cases.size(), first + kAtOnce), std::string(cuda_prelude())};
    for (size_t k = batch.first; k < batch.last; ++k)
      batch.source += cuda_kernels(cases[k].program, str("group{}_phase", k));
    out.push_back(std::move(batch));
  }
  return out;
}

bool is_exact(const GpuProgram& program) {
  for (const LoopPhase& phase : program.loops.phases)
    for (const LoopInstruction& one : phase.instructions)
      if (one.op >= LoopOp::kExp && one.op <= LoopOp::kFmod && is_real(one.type)) return false;
  return true;
}

}  // namespace stepc
