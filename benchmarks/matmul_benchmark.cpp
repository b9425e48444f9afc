// The blocked matmul beside ATen's on the matmuls of the benchmark models' layers, each as fast mode would call it, in
// turn: matmul_benchmark [threads] [rounds]. One line a matmul: the median of the paired ratios, above 1 where ours is
// faster. What matmul_rule() (cost/features.h) says comes from it.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "benchmarks/stopwatch.h"
#include "blocked/matmul.h"
#include "runtime/micro_kernels.h"

namespace {

using namespace stepc;
using namespace stepc::blocked;

// As Graph nodes have them: forward x w', the input's gradient g w, the weight's gradient g' x.
enum class Form : uint8_t { kForward, kInputGradient, kWeightGradient };
constexpr const char* kNames[] = {"x w'", "g w", "g' x"};

struct Layer {
  const char* name;
  int64_t tokens, in, out;
};
constexpr Layer kLayers[] = {
    {"1.8M q,k,v,o", 512, 128, 128},   {"1.8M gate,up", 512, 128, 320}, {"1.8M down", 512, 320, 128},
    {"1.8M head", 512, 128, 4096},     {"10M q,k,v,o", 2048, 256, 256}, {"10M gate,up", 2048, 256, 672},
    {"10M down", 2048, 672, 256},      {"10M head", 2048, 256, 8192},   {"134M q,k,v,o", 2048, 768, 768},
    {"134M gate,up", 2048, 768, 2048}, {"134M down", 2048, 2048, 768},
};

// A row-major tensor, read as it lies or transposed.
Operand operand(const at::Tensor& x, bool transposed) {
  const int64_t ld = x.size(1);
  return transposed ? Operand{x.const_data_ptr(), 1, ld} : Operand{x.const_data_ptr(), ld, 1};
}

void compare(const Layer& layer, Form form, Number number, int rounds, const MicroKernels& kernels) {
  const at::ScalarType type = number == Number::kF32 ? at::kFloat : at::kBFloat16;
  const at::Tensor x = at::randn({layer.tokens, layer.in}).to(type);
  const at::Tensor g = at::randn({layer.tokens, layer.out}).to(type);
  const at::Tensor w = at::randn({layer.out, layer.in}).to(type);
  const at::Tensor& a = form == Form::kForward ? x : g;
  const at::Tensor& b = form == Form::kWeightGradient ? x : w;
  const bool transpose_a = form == Form::kWeightGradient;
  const bool transpose_b = form == Form::kForward;
  const int64_t m = a.size(transpose_a ? 1 : 0), k = a.size(transpose_a ? 0 : 1), n = b.size(transpose_b ? 0 : 1);
  const int threads = at::get_num_threads();
  const auto ours = [&] {
    const at::Tensor c = at::empty({m, n}, type);
    const Product product{n, operand(b, transpose_b), {c.mutable_data_ptr(), number, n}, {}};
    const Matmul call{number, 1, m, k, operand(a, transpose_a), {&product, 1}};
    const at::Tensor workspace = at::empty({static_cast<int64_t>(workspace_bytes(call, threads))}, at::kByte);
    matmul(call, kernels, threads, workspace.mutable_data_ptr());
  };
  const auto atens = [&] { at::mm(transpose_a ? a.t() : a, transpose_b ? b.t() : b); };
  std::vector<double> mine, theirs, ratios;
  for (int round = -2; round < rounds; ++round) {
    const double our_seconds = seconds_of(ours), aten_seconds = seconds_of(atens);
    if (round < 0) continue;
    mine.push_back(our_seconds);
    theirs.push_back(aten_seconds);
    ratios.push_back(aten_seconds / our_seconds);
  }
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  std::printf("%-4s %-14s %-5s %5ld x %5ld x %5ld   ours %6.0f  ATen %6.0f GFLOP/s   %5.2fx\n",
              number == Number::kF32 ? "f32" : "bf16", layer.name, kNames[static_cast<size_t>(form)], m, n, k,
              flops / median(mine) / 1e9, flops / median(theirs) / 1e9, median(ratios));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 31;
  const MicroKernels kernels = probe_micro_kernels();
  std::printf("micro-kernels: %s, %d threads\n", to_text(features_of(kernels)).c_str(), at::get_num_threads());
  for (const Number number : {Number::kF32, Number::kBf16})
    for (const Layer& layer : kLayers)
      for (const Form form : {Form::kForward, Form::kInputGradient, Form::kWeightGradient})
        compare(layer, form, number, rounds, kernels);
  return 0;
}
