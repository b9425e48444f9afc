// Times the blocked kernels beside ATen's and beside the micro-kernel's own peak, all three in turn in one run:
//   kernel_benchmark [matmul | attention | loss]...
// One line a case: GFLOP/s (useful ones only) of the peak, of ours and of ATen's, our share of the peak and its limit.
#include <cstdio>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/text.h"
#include "benchmarks/stopwatch.h"
#include "blocked/brgemm.h"
#include "blocked/matmul.h"

namespace {

using namespace stepc;
using namespace stepc::blocked;

constexpr int kRounds = 15;

at::ScalarType aten_type(Number number) { return number == Number::kF32 ? at::kFloat : at::kBFloat16; }
const char* name_of(Number number) { return number == Number::kF32 ? "f32" : "bf16"; }

at::Tensor bytes(size_t count) { return at::empty({static_cast<int64_t>(count) + 64}, at::kByte); }
void* aligned_data(const at::Tensor& memory) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data_ptr()) + 63) / 64 * 64);
}

// The micro-kernel over and over on one block that stays in the cache, on every thread.
class Peak {
 public:
  Peak(Number number, int threads, const MicroKernels& kernels)
      : number_(number), threads_(threads), kernels_(kernels), table_(rows_of(kernels.avx512)) {
    const auto type = aten_type(number);
    a_ = at::ones({threads, kRows, kDepth}, type);
    b_ = at::ones({threads, kDepth, kColumns}, type);
    c_ = at::zeros({threads, kRows, kColumns});
  }
  void operator()() const {
    for_tasks(kernels_, threads_, threads_, [&](int, int64_t task) {
      const BlockProduct multiply(kernels_, table_);
      float* c = c_[task].data_ptr<float>();
      for (int i = 0; i < kRepeats; ++i) {
        if (number_ == Number::kF32) {
          multiply({kRows, kColumns, kDepth}, a_[task].data_ptr<float>(), kDepth, b_[task].data_ptr<float>(), kColumns,
                   c, kColumns, false);
        } else {
          multiply({kRows, kColumns, kDepth}, static_cast<const Bf16*>(a_[task].data_ptr()), kDepth,
                   static_cast<const Bf16*>(b_[task].data_ptr()), kColumns, c, kColumns, false);
        }
      }
    });
  }
  double flops() const { return 2.0 * kRows * kColumns * kDepth * kRepeats * threads_; }

 private:
  static constexpr int64_t kRows = 128, kColumns = 64, kDepth = 512;
  static constexpr int kRepeats = 200;
  Number number_;
  int threads_;
  const MicroKernels& kernels_;
  RowTable table_;
  at::Tensor a_, b_, c_;
};

// Times peak, ours and ATen's in turn and prints the line.
void print_line(const std::string& what, double flops, const Peak& peak, const std::function<void()>& ours,
                const std::function<void()>& atens, double limit) {
  const std::vector<double> seconds = best_interleaved({[&] { peak(); }, ours, atens}, kRounds);
  const double top = peak.flops() / seconds[0];
  const double rate = flops / seconds[1];
  std::printf("%-52s peak %6.0f  ours %6.0f  ATen %6.0f GFLOP/s  share %4.1f %% (limit %.0f %%)  %.2fx ATen\n",
              what.c_str(), top / 1e9, rate / 1e9, flops / seconds[2] / 1e9, 100 * rate / top, 100 * limit,
              seconds[2] / seconds[1]);
  std::fflush(stdout);
}

void matmul_lines(Number number, int threads, const MicroKernels& kernels) {
  constexpr int64_t kM = 2048, kN = 2048, kK = 768;
  const auto type = aten_type(number);
  const at::Tensor x = at::randn({kM, kK}).to(type), w = at::randn({kN, kK}).to(type), y = at::empty({kM, kN}, type);
  const Peak peak(number, threads, kernels);
  const at::Tensor packed = bytes(packed_b_bytes(number, kK, kN));
  const Operand weight{w.data_ptr(), 1, kK};
  pack_b(number, kK, kN, weight, kernels, threads, aligned_data(packed));
  const double flops = 2.0 * kM * kN * kK;
  for (const bool prepacked : {false, true}) {
    const Product product{
        kN, prepacked ? Operand{aligned_data(packed)} : weight, prepacked, {y.data_ptr(), number, kN}, {}};
    const Matmul call{number, 1, kM, kK, {x.data_ptr(), kK, 1}, {&product, 1}, {}};
    const at::Tensor workspace = bytes(workspace_bytes(call, threads));
    print_line(
        str("matmul 2048x2048x768 {} {} thread(s), {}", name_of(number), threads,
            prepacked ? "packed before" : "packed in the call"),
        flops, peak, [&] { matmul(call, kernels, threads, aligned_data(workspace)); },
        [&] { at::mm_out(const_cast<at::Tensor&>(y), x, w.t()); }, 0.85);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const MicroKernels kernels = probe_micro_kernels();
  std::printf("micro-kernels: %s\n", to_text(kernels).c_str());
  const auto wanted = [&](const std::string& name) {
    for (int i = 1; i < argc; ++i) {
      if (name == argv[i]) return true;
    }
    return argc == 1;
  };
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    if (!wanted("matmul")) continue;
    for (const Number number : {Number::kBf16, Number::kF32}) matmul_lines(number, threads, kernels);
  }
  return 0;
}
