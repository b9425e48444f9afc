// Times the blocked kernels beside ATen's and beside the micro-kernel's own peak, all three in turn in one run:
//   kernel_benchmark [matmul | attention | loss]...
// One line a case: GFLOP/s (useful ones only) of the peak, of ours and of ATen's, our share of the peak and its limit.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "aten/cpu_hook.h"
#include "base/text.h"
#include "benchmarks/stopwatch.h"
#include "blocked/attention.h"
#include "blocked/brgemm.h"
#include "blocked/linear_cross_entropy.h"
#include "blocked/matmul.h"
#include "runtime/micro_kernels.h"

namespace {

using namespace stepc;
using namespace stepc::blocked;

constexpr int kRounds = 15;

at::ScalarType aten_type(Number number) { return number == Number::kF32 ? at::kFloat : at::kBFloat16; }
const char* name_of(Number number) { return number == Number::kF32 ? "f32" : "bf16"; }

at::Tensor bytes(size_t count) { return at::empty({static_cast<int64_t>(count)}, at::kByte); }  // 64-byte aligned

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
      const at::Tensor a = a_[task], b = b_[task], c = c_[task];
      for (int i = 0; i < kRepeats; ++i) {
        if (number_ == Number::kF32) {
          multiply({kRows, kColumns, kDepth}, a.data_ptr<float>(), kDepth, b.data_ptr<float>(), kColumns,
                   c.data_ptr<float>(), kColumns, false);
        } else {
          multiply({kRows, kColumns, kDepth}, static_cast<const Bf16*>(a.data_ptr()), kDepth,
                   static_cast<const Bf16*>(b.data_ptr()), kColumns, c.data_ptr<float>(), kColumns, false);
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
  const Product product{kN, {w.data_ptr(), 1, kK}, {y.data_ptr(), number, kN}};
  const Matmul call{number, 1, kM, kK, {x.data_ptr(), kK, 1}, {&product, 1}};
  const at::Tensor workspace = bytes(workspace_bytes(call, threads));
  print_line(
      str("matmul 2048x2048x768 {} {} thread(s)", name_of(number), threads), 2.0 * kM * kN * kK, peak,
      [&] { matmul(call, kernels, threads, workspace.data_ptr()); },
      [&] { at::mm_out(const_cast<at::Tensor&>(y), x, w.t()); }, 0.85);
}

struct AttentionCase {
  int64_t batch, heads, sequence, dim;
  double forward_limit, backward_limit;
};

// Causal, bf16, (batch, sequence, heads, dim) in memory as models have it; only the flops of visible pairs count.
void attention_lines(const AttentionCase& c, int threads, const MicroKernels& kernels) {
  const auto tensor = [&] {
    return at::randn({c.batch, c.sequence, c.heads, c.dim}).to(at::kBFloat16).transpose(1, 2);
  };
  const at::Tensor q = tensor(), k = tensor(), v = tensor(), gradient = tensor();
  const at::Tensor out = at::empty_like(q), dq = at::empty_like(q), dk = at::empty_like(q), dv = at::empty_like(q);
  const at::Tensor logsumexp = at::empty({c.batch, c.heads, c.sequence});
  const HeadStrides strides{q.stride(0), q.stride(1), q.stride(2)};
  Attention call;
  call.type = Number::kBf16;
  call.batch = c.batch;
  call.heads = call.key_heads = c.heads;
  call.queries = call.keys = c.sequence;
  call.dim = call.value_dim = c.dim;
  call.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.dim)));
  call.after = 0;
  call.q = {q.data_ptr(), strides};
  call.k = {k.data_ptr(), strides};
  call.v = {v.data_ptr(), strides};
  const Peak peak(Number::kBf16, threads, kernels);
  const double pairs = 0.5 * static_cast<double>(c.sequence) * static_cast<double>(c.sequence + 1);
  const double flops = 4.0 * pairs * static_cast<double>(c.dim * c.heads * c.batch);
  const std::string what = str("{} x {}, bf16 causal, {} threads", c.sequence, c.dim, threads);
  const at::Tensor forward = bytes(workspace_bytes(call, threads));
  print_line(
      "attention forward " + what, flops, peak,
      [&] {
        attention(call, {out.data_ptr(), strides}, logsumexp.data_ptr<float>(), kernels, threads, forward.data_ptr());
      },
      [&] { at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, true); }, c.forward_limit);
  const AttentionGradient gradients{{gradient.data_ptr(), strides}, {out.data_ptr(), strides},
                                    logsumexp.data_ptr<float>(),    {dq.data_ptr(), strides},
                                    {dk.data_ptr(), strides},       {dv.data_ptr(), strides}};
  const at::Tensor backward = bytes(backward_workspace_bytes(call, threads));
  print_line(
      "attention backward " + what, 2.5 * flops, peak,
      [&] { attention_backward(call, gradients, kernels, threads, backward.data_ptr()); },
      [&] { at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, q, k, v, out, logsumexp, 0, true); },
      c.backward_limit);
}

// Counts what is live at most.
class LiveBytes : public AllocationClient {
 public:
  void* allocate(size_t, int) override { return nullptr; }
  void on_system_allocation(void* memory, size_t bytes, int) override {
    const std::lock_guard lock(mutex_);
    sizes_[memory] = bytes;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void on_system_free(void* memory) override {
    const std::lock_guard lock(mutex_);
    const auto at = sizes_.find(memory);
    if (at == sizes_.end()) return;
    live_ -= at->second;
    sizes_.erase(at);
  }
  void on_arena_free(void*, int) override {}
  size_t peak() const { return peak_; }

 private:
  std::mutex mutex_;
  std::map<void*, size_t> sizes_;
  size_t live_ = 0, peak_ = 0;
};

size_t peak_bytes(const std::function<void()>& piece) {
  LiveBytes live;
  const AllocationScope scope(live, true);
  piece();
  return live.peak();
}

// Eager as transformers does it: logits in the model's type, softmax in f32. Both leave the loss and both gradients.
void loss_lines(Number number, int threads, const MicroKernels& kernels) {
  constexpr int64_t kTokens = 2048, kWidth = 768, kClasses = 32000;
  const auto type = aten_type(number);
  const at::Tensor hidden = at::randn({kTokens, kWidth}).to(type),
                   weight = at::randn({kClasses, kWidth}).mul(0.02).to(type);
  const at::Tensor targets = at::randint(0, kClasses, {kTokens}, at::kLong);
  const auto eager = [&] {
    const at::Tensor logits = at::mm(hidden, weight.t()).to(at::kFloat);
    const at::Tensor logp = at::log_softmax(logits, 1);
    const auto [loss, total] = at::nll_loss_forward(logp, targets, {}, at::Reduction::Mean, -100);
    at::Tensor gradient = at::nll_loss_backward(at::ones({}), logp, targets, {}, at::Reduction::Mean, -100, total);
    gradient = at::_log_softmax_backward_data(gradient, logp, 1, at::kFloat).to(type);
    at::mm(gradient, weight);
    at::mm(gradient.t(), hidden);
  };
  const at::Tensor share = at::full({kTokens}, 1.0 / kTokens);
  LinearCrossEntropy call;
  call.type = call.weight_gradient_type = number;
  call.tokens = kTokens;
  call.width = call.hidden_stride = call.weight_stride = call.hidden_gradient_stride = kWidth;
  call.classes = kClasses;
  call.hidden = hidden.data_ptr();
  call.weight = weight.data_ptr();
  call.targets = targets.data_ptr<int64_t>();
  call.gradient = share.data_ptr<float>();
  const auto ours = [&] {
    const at::Tensor dh = at::empty_like(hidden), dw = at::empty_like(weight), loss = at::empty({kTokens});
    call.loss = loss.data_ptr<float>();
    call.hidden_gradient = dh.data_ptr();
    call.weight_gradient = dw.data_ptr();
    call.chunk = frugal_chunk(call);
    const at::Tensor workspace = bytes(workspace_bytes(call, threads));
    linear_cross_entropy(call, kernels, threads, workspace.data_ptr());
    loss.mean();
  };
  const Peak peak(number, threads, kernels);
  const std::vector<double> seconds = best_interleaved({[&] { peak(); }, ours, eager}, 4);
  const double flops = 6.0 * kTokens * kWidth * kClasses;
  const double eager_bytes = static_cast<double>(peak_bytes(eager)), our_bytes = static_cast<double>(peak_bytes(ours));
  const double results = static_cast<double>(kClasses + kTokens) * kWidth * static_cast<double>(bytes_of(number));
  std::printf(
      "linear + cross-entropy %s, 2048 tokens, 32000 classes, %d threads: peak %.0f  ours %.0f  eager %.0f GFLOP/s  "
      "share "
      "%.1f %%  %.2fx eager (limit 1.5x)  bytes %.0f / %.0f MB = %.1fx smaller, results aside %.1fx (limit 5x)\n",
      name_of(number), threads, peak.flops() / seconds[0] / 1e9, flops / seconds[1] / 1e9, flops / seconds[2] / 1e9,
      100 * flops / seconds[1] / (peak.flops() / seconds[0]), seconds[2] / seconds[1], our_bytes / 1e6,
      eager_bytes / 1e6, eager_bytes / our_bytes, (eager_bytes - results) / (our_bytes - results));
}

}  // namespace

int main(int argc, char** argv) {
  const MicroKernels kernels = probe_micro_kernels();
  std::printf("micro-kernels: %s\n", to_text(features_of(kernels)).c_str());
  const auto wanted = [&](const std::string& name) {
    for (int i = 1; i < argc; ++i) {
      if (name == argv[i]) return true;
    }
    return argc == 1;
  };
  install_cpu_hook();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    if (!wanted("matmul")) continue;
    for (const Number number : {Number::kBf16, Number::kF32}) matmul_lines(number, threads, kernels);
  }
  if (wanted("attention")) {
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      attention_lines({4, 12, 512, 64, 0.60, 0.53}, threads, kernels);
      attention_lines({1, 16, 2048, 128, 0.70, 0.70}, threads, kernels);
    }
  }
  if (wanted("loss")) {
    for (const Number number : {Number::kBf16, Number::kF32}) loss_lines(number, 2, kernels);
  }
  return 0;
}
