// What generated kernels reach beside the memory traffic that they stand for, one thread, in one run:
//   AdamW against an in-place loop that reads four arrays and writes three; softmax, RMS norm and silu times up against
//   a loop that reads and writes as much. Prints a line each, with its share.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "base/check.h"
#include "codegen/codegen.h"
#include "ops/graph_builder.h"
#include "passes/decompose.h"

namespace {

using namespace stepc;

// The best of several runs: other programs only make it longer.
template <class F>
double seconds(F&& run) {
  double best = 1e9;
  for (int turn = 0; turn < 9; ++turn) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

TensorId input(GraphBuilder& b, DType dtype, Shape shape) {
  const std::string key = str("{}", b.graph().inputs.size());
  return b.graph().add_input({InputKind::kCaptured, key, {}, {}, 0}, {dtype, std::move(shape)});
}
void give(GraphBuilder& b, TensorId id) {
  b.graph().outputs.emplace_back();
  b.graph().outputs.back().tensor = id;
}

struct Memory {
  explicit Memory(int64_t bytes) : bytes(static_cast<size_t>(bytes) + 64, 1) {
    void* at = this->bytes.data();
    size_t space = this->bytes.size();
    start = std::align(64, static_cast<size_t>(bytes), at, space);
  }
  std::vector<uint8_t> bytes;
  void* start;
};

void run(const Kernel& kernel, const std::vector<void*>& buffers, void* scratch) {
  for (const KernelPhase& phase : kernel.phases) phase.run(buffers.data(), 0, phase.items, scratch);
}

// Adds the memory of the outputs that are not in place.
double kernel_seconds(KernelCompiler& compiler, Graph graph, std::vector<void*> buffers, bool in_place) {
  graph = decompose(std::move(graph));
  const auto kernel = compiler.compile(lower(graph));
  std::vector<Memory> made;
  for (uint32_t k = 0; k < graph.outputs.size(); ++k) {
    const auto pair = std::ranges::find(kernel->in_place, k, &std::pair<uint32_t, uint32_t>::second);
    if (in_place && pair != kernel->in_place.end()) {
      buffers.push_back(buffers[pair->first]);
      continue;
    }
    made.emplace_back(bytes_of(graph.type(graph.outputs[k].tensor)));
    buffers.push_back(made.back().start);
  }
  Memory scratch(kernel->scratch_bytes);
  return seconds([&] { run(*kernel, buffers, scratch.start); });
}

void line(const char* name, double bytes, double kernel, double stream) {
  std::printf("%-22s %7.2f GB/s, stream %7.2f GB/s: %3.0f %%\n", name, bytes / kernel * 1e-9, bytes / stream * 1e-9,
              100 * stream / kernel);
}

void adamw(KernelCompiler& compiler) {
  constexpr int64_t kCount = 16 << 20;
  std::vector<Memory> arrays;
  for (int k = 0; k < 4; ++k) arrays.emplace_back(kCount * 4);
  std::vector<double> numbers = {3, 1e-3, 0.9, 0.999, 0.1, 1e-8};
  GraphBuilder b;
  std::vector<TensorId> in;
  std::vector<void*> buffers;
  for (Memory& array : arrays) {
    in.push_back(input(b, DType::kF32, {kCount}));
    std::fill_n(static_cast<float*>(array.start), kCount, 0.5F);
    buffers.push_back(array.start);
  }
  for (double& value : numbers) {
    in.push_back(input(b, DType::kF64, {}));
    buffers.push_back(&value);
  }
  for (TensorId id : b.add_all("adamw_update", in)) give(b, id);
  const double kernel = kernel_seconds(compiler, b.take(), buffers, true);

  auto* const p = static_cast<float*>(arrays[0].start);
  auto* const g = static_cast<float*>(arrays[1].start);
  auto* const m = static_cast<float*>(arrays[2].start);
  auto* const v = static_cast<float*>(arrays[3].start);
  const double stream = seconds([&] {
#pragma GCC ivdep
    for (int64_t i = 0; i < kCount; ++i) {
      const float gradient = g[i];
      p[i] += gradient;
      m[i] += gradient;
      v[i] += gradient;
    }
  });
  line("AdamW f32", 7.0 * 4 * kCount, kernel, stream);
}

// One array read for each of `reads`, one written.
double stream_seconds(size_t reads, int64_t bytes) {
  std::vector<Memory> arrays;
  for (size_t k = 0; k <= reads; ++k) arrays.emplace_back(bytes);
  const auto* const a = static_cast<const float*>(arrays[0].start);
  const auto* const b = static_cast<const float*>(arrays[reads - 1].start);
  auto* const out = static_cast<float*>(arrays[reads].start);
  return seconds([&] {
#pragma GCC ivdep
    for (int64_t i = 0; i < bytes / 4; ++i) out[i] = a[i] + b[i];
  });
}

void rows(KernelCompiler& compiler, DType dtype) {
  constexpr int64_t kRows = 8192;
  constexpr int64_t kColumns = 2048;
  const Shape shape = {kRows, kColumns};
  const int64_t bytes = kRows * kColumns * size_of(dtype);
  Memory x(bytes);
  Memory y(bytes);
  const std::string type(name_of(dtype));
  {
    GraphBuilder b;
    give(b, b.add("softmax", {input(b, dtype, shape)}, {{"dim", int64_t{1}}}));
    const double kernel = kernel_seconds(compiler, b.take(), {x.start}, false);
    line(("softmax " + type).c_str(), 2.0 * static_cast<double>(bytes), kernel, stream_seconds(1, bytes));
  }
  {
    GraphBuilder b;
    const TensorId in = input(b, dtype, shape);
    const TensorId weight = input(b, dtype, {kColumns});
    const TensorId wide = b.cast(in, DType::kF32);
    const TensorId mean = b.add("mean", {b.add("square", {wide})}, {{"dims", Shape{1}}, {"keepdim", true}});
    const TensorId rstd = b.add("rsqrt", {b.add("add", {mean, b.full(1e-5, DType::kF32)})});
    give(b, b.add("mul", {b.cast(b.add("mul", {wide, rstd}), dtype), weight}));
    const double kernel = kernel_seconds(compiler, b.take(), {x.start, y.start}, false);
    line(("RMS norm " + type).c_str(), 2.0 * static_cast<double>(bytes), kernel, stream_seconds(1, bytes));
  }
  {
    GraphBuilder b;
    const TensorId gate = input(b, dtype, shape);
    const TensorId up = input(b, dtype, shape);
    give(b, b.add("mul", {b.add("silu", {gate}), up}));
    const double kernel = kernel_seconds(compiler, b.take(), {x.start, y.start}, false);
    line(("silu(gate) * up " + type).c_str(), 3.0 * static_cast<double>(bytes), kernel, stream_seconds(2, bytes));
  }
}

}  // namespace

int main() {
  try {
    KernelCompiler compiler(host_cpu());
    adamw(compiler);
    rows(compiler, DType::kF32);
    rows(compiler, DType::kBF16);
    const CompilerStatistics statistics = compiler.statistics();
    std::printf("%zu kernels compiled in %.1f ms each\n", statistics.compiled,
                1e3 * statistics.compile_seconds / static_cast<double>(statistics.compiled));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "codegen_benchmark: %s\n", error.what());
    return 1;
  }
  return 0;
}
