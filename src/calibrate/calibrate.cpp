#include "calibrate/calibrate.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <c10/core/GradMode.h>

#include "aten/draws_leave_no_trace.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "blocked/attention.h"
#include "calibrate/measured.h"
#include "calibrate/small_calls.h"
#include "codegen/cpu_target.h"
#include "loops/expand_math.h"
#include "loops/loop_work.h"
#include "runtime/micro_kernels.h"

namespace stepc {

namespace {

constexpr double kTooLong = 0.5;  // for one run of one kernel
constexpr double kSlowest = 1e9;  // matmuls, flops a second

c10::ScalarType scalar_of(DType dtype) { return dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat; }

class Calibration {
 public:
  Calibration(KernelSources& kernels, const std::function<void(const std::string&)>& progress)
      : kernels_(kernels), progress_(progress), threads_(at::get_num_threads()), calls_(kernels, threads_) {}

  // Everything in rounds, seconds apart, of which the shortest time counts: what else the machine does for a second or
  // two is not taken for its rate.
  Target run(int rounds) {
    for (int round = 0; round < rounds; ++round)
      measure(rounds == 1 ? std::string() : str(", {} of {}", round + 1, rounds));
    return target_;
  }

 private:
  void measure(const std::string& which) {
    const auto say = [&](const std::string& what) {
      if (progress_) progress_(what + which);
    };
    target_ = Target();
    rates_ = Rates();
    best_f32_ = best_narrow_ = kSlowest;
    target_.features = features_of(kernels_.micro_kernels);
    target_.threads = threads_;
    target_.cpu = host_cpu().name;
    say("instructions and calls");
    calls_.measure(rates_);
    measure_starts();
    say("memory");
    measure_streams();
    say("generated kernels");
    measure_loops();
    say("LibTorch's kernels");
    measure_aten();
    say("matmuls");
    rates_.matmuls.clear();
    for (const DType dtype : {DType::kF32, DType::kBF16}) measure_matmuls(dtype);
    say("attention kernels");
    rates_.attentions.clear();
    for (const DType dtype : {DType::kF32, DType::kBF16}) measure_attention(dtype);
    say("convolutions");
    measure_convolutions();
    target_.rates = rates_;
  }

  // Of the one call that `call` makes on `tensors`, as the executor makes it.
  double call_seconds(const std::string& key, const std::vector<at::Tensor>& tensors,
                      const std::function<void()>& call) {
    return shortest_.of(key, Measured(tensors, call, threads_).seconds());
  }
  // The same between other small calls: what one of LibTorch's products of small matrices needs is not at hand in a
  // step, where some stand between two of a kind.
  double product_seconds(const std::string& key, const std::vector<at::Tensor>& tensors,
                         const std::function<void()>& call) {
    return shortest_.of(key, Measured(tensors, call, threads_).seconds([&] { calls_.run_some(); }));
  }
  double seconds_of(const std::string& graph) {
    return shortest_.of(graph, Measured(graph, kernels_, threads_).seconds());
  }

  void measure_starts() {
    alone_seconds_ = seconds_of(
        "input %0: f32[16] = batch \"0\"\n"
        "%1: f32[16] = add(%0, %0) | forward \"\" group 0\n"
        "return %1\n");
    const auto fork = [&] {
      const auto begin = Clock::now();
      at::parallel_for(0, threads_, 1, [](int64_t, int64_t) {});
      return seconds_since(begin);
    };
    rates_.fork_seconds = std::max(1e-9, shortest_.of("fork", median_seconds(fork)));
  }

  // Two streams that come round and round: each byte was last touched as long ago as all of them are.
  void measure_streams() {
    rates_.streams.clear();
    for (const int64_t bytes : {1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28}) {
      const int64_t count = bytes / 8;
      const double seconds =
          seconds_of(str("input %0: f32[{0}] = batch \"0\"\n"
                         "input %1: f32[{0}] = parameter \"w\"\n"
                         "%2: f32[{0}] = add(%0, %0) | forward \"\" group 0\n"
                         "update %1 = %2\n",
                         count));
      const double forks = count > 16384 && threads_ > 1 ? rates_.fork_seconds : 0;
      const double own = std::max(seconds * 0.2, seconds - alone_seconds_ - forks);
      rates_.streams.push_back({static_cast<double>(bytes), static_cast<double>(bytes) / own});
    }
    target_.bytes_per_second = rates_.streams.back().bytes_per_second;
  }

  // Seconds beyond the start of a kernel, and what it does.
  std::pair<double, LoopWork> loops(const std::string& graph) {
    Measured measured(graph, kernels_, threads_);
    LoopWork sum;
    int forks = 0;
    for (const LoopProgram& compact : measured.schedule().programs) {
      const LoopProgram program = expand_math(compact);
      for (const LoopPhase& phase : program.phases) {
        const LoopWork work = work_of(program, phase);
        sum.lane_ops += work.lane_ops;
        sum.lane_roots += work.lane_roots;
        sum.gathers += work.gathers;
        forks += phase.items > phase.grain ? 1 : 0;
      }
    }
    const double seconds = shortest_.of(graph, measured.seconds());
    return {std::max(seconds * 0.2, seconds - alone_seconds_ - forks * rates_.fork_seconds), sum};
  }

  static std::string chain(const std::string& first, const std::string& second, int length) {
    std::string graph = "input %0: f32[65536] = batch \"0\"\ninput %1: f32[65536] = batch \"1\"\n";
    for (int i = 0; i < length; ++i)
      graph += str("%{}: f32[65536] {}%{}, %{}) | forward \"\" group 0\n", i + 2, i % 2 == 0 ? first : second,
                   i == 0 ? 0 : i + 1, i % 2);
    return graph + str("return %{}\n", length + 1);
  }

  void measure_loops() {
    const auto [arithmetic_seconds, arithmetic] = loops(chain("= mul(", "= add(", 48));
    rates_.lane_ops_per_second = arithmetic.lane_ops / arithmetic_seconds;
    const auto [root_seconds, roots] = loops(chain("= div(", "= div(", 16));
    rates_.lane_roots_per_second =
        roots.lane_roots / std::max(root_seconds * 0.2, root_seconds - roots.lane_ops / rates_.lane_ops_per_second);
    const auto [gather_seconds, gathers] = loops(
        "input %0: f32[256, 256] = batch \"0\"\n"
        "input %1: f32[256, 256] = batch \"1\"\n"
        "%2: f32[256, 256] = transpose(%0) {permutation=[1, 0]} | forward \"\" group 0\n"
        "%3: f32[256, 256] = add(%2, %1) | forward \"\" group 0\n"
        "return %3\n");
    if (gathers.gathers > 0) rates_.gathers_per_second = gathers.gathers / gather_seconds;
    rates_.scalar_ops_per_second = rates_.lane_ops_per_second / 16;
  }

  // What the tables of calls and products do not tell.
  void measure_aten() {
    const at::Tensor x = at::full({256, 1024}, 0.5), out = at::empty_like(x);
    const auto elements = static_cast<double>(x.numel());
    const double over = rates_.aten_call_seconds + (threads_ > 1 ? rates_.fork_seconds : 0);
    const auto own = [&](const std::string& key, const std::vector<at::Tensor>& tensors,
                         const std::function<void()>& call) {
      const double seconds = call_seconds(key, tensors, call);
      return std::max(seconds * 0.2, seconds - over);
    };
    constexpr double kFlopsOfAFunction = 10;  // in the op table
    const double functions = own("exponentials", {x}, [&] { (void)at::exp(x); }) +
                             own("hyperbolic tangents", {x}, [&] { (void)at::tanh(x); });
    rates_.aten_flops_per_second = 2 * kFlopsOfAFunction * elements / functions;
    rates_.aten_roots_per_second = elements / own("roots", {x}, [&] { (void)at::sqrt(x); });
    const at::Tensor square = at::full({512, 512}, 0.5), turned = at::empty_like(square);
    rates_.aten_strided_bytes_per_second = 8.0 * static_cast<double>(square.numel()) /
                                           own("transposed", {square, turned}, [&] { turned.copy_(square.t()); });
    const double sums =
        own("rows", {x}, [&] { (void)at::sum(x, {1}); }) + own("columns", {x}, [&] { (void)at::sum(x, {0}); });
    rates_.aten_reduction_bytes_per_second = 2 * 4.0 * elements / sums;
    const at::Tensor ids = at::arange(1024).remainder(512), gradient = at::full({1024, 64}, 0.5);
    rates_.aten_scatter_bytes_per_second = 4.0 * (1024 + 512) * 64 / own("embedding", {gradient, ids}, [&] {
                                             (void)at::embedding_dense_backward(gradient, ids, 512, -1, false);
                                           });
    const at::Tensor scale = at::ones({1024});
    const double norms =
        own("layer norm", {x, scale}, [&] { (void)at::native_layer_norm(x, {1024}, scale, scale, 1e-5); }) +
        own("log softmax", {x}, [&] { (void)at::_log_softmax(x, 1, false); });
    const at::Tensor images = at::full({8, 64, 16, 16}, 0.5), channels = at::ones({64});
    const at::Tensor mean = at::zeros({64}), variance = at::ones({64});
    const double image_norms = own("batch norm", {images, channels, mean, variance}, [&] {
      (void)at::native_batch_norm(images, channels, channels, mean, variance, true, 0.1, 1e-5);
    });
    const auto pixels = static_cast<double>(images.numel());
    rates_.aten_norm_bytes_per_second = 4 * (4 * elements + 2 * pixels) / (norms + image_norms);
    // A quarter as many results, and as many indices of twice their width.
    rates_.aten_pooling_bytes_per_second =
        4 * 1.75 * pixels / own("max pool", {images}, [&] {
          (void)at::max_pool2d_with_indices(images, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false);
        });
    constexpr int64_t kRows = 8192, kRow = 64;
    const at::Tensor heads = at::full({8, 4, kRows / 32, kRow}, 0.5), merged = at::empty({8, kRows / 32, 4, kRow});
    rates_.aten_rows_per_second = static_cast<double>(kRows) /
                                  own("rows of a copy", {heads, merged}, [&] { merged.copy_(heads.transpose(1, 2)); });
    const at::Tensor draws = at::empty({65536});
    rates_.aten_draws_per_second = 65536 / own("draws", {draws}, [&] { draws.bernoulli_(0.9); });
  }

  void add_matmul(KernelOwner owner, DType dtype, const std::array<int64_t, 3>& size, double seconds,
                  int64_t batch = 1) {
    const double flops = 2.0 * static_cast<double>(batch) * static_cast<double>(size[0]) *
                         static_cast<double>(size[1]) * static_cast<double>(size[2]);
    const double start = owner == KernelOwner::kLibrary ? rates_.aten_call_seconds : rates_.instruction_seconds;
    const double rate = flops / std::max(seconds * 0.2, seconds - start);
    rates_.matmuls.push_back({owner, dtype, size[0], size[1], size[2], rate, batch});
    double& best = dtype == DType::kF32 ? best_f32_ : best_narrow_;
    best = std::max(best, rate);
  }

  void measure_matmuls(DType dtype) {
    constexpr std::array<int64_t, 4> kSizes = {32, 128, 512, 2048};
    constexpr int64_t kFew = 4;  // a narrow side, beside which the others are not all tried
    std::vector<std::array<int64_t, 3>> sizes = {{kFew, kFew, kFew}};
    for (const int64_t wide : {32, 512}) {
      sizes.push_back({kFew, wide, wide});
      sizes.push_back({wide, kFew, wide});
      sizes.push_back({wide, wide, kFew});
    }
    for (const int64_t rows : kSizes)
      for (const int64_t columns : kSizes)
        for (const int64_t inner : kSizes) sizes.push_back({rows, columns, inner});
    double rate = kSlowest;  // of the last one: what would take too long is left out
    for (const std::array<int64_t, 3>& size : sizes) {
      const auto [rows, columns, inner] = size;
      if (2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(inner) > kTooLong * rate)
        continue;
      const at::Tensor a = at::full({rows, inner}, 0.01, scalar_of(dtype));
      const at::Tensor b = at::full({columns, inner}, 0.01, scalar_of(dtype)).t();
      const std::string name = str("{} {}x{}x{}", name_of(dtype), rows, columns, inner);
      add_matmul(KernelOwner::kLibrary, dtype, size, product_seconds(name, {a, b}, [&] { (void)at::mm(a, b); }));
      rate = std::max(rate, rates_.matmuls.back().flops_per_second);
      if (!matmul_rule(target_.features).takes(dtype)) continue;
      Measured blocked(str("input %0: {3}[{0}, {2}] = batch \"0\"\ninput %1: {3}[{1}, {2}] = parameter \"w\"\n"
                           "%2: {3}[{0}, {1}] = matmul(%0, %1) {{transpose_a=false, transpose_b=true}} | forward \"\"\n"
                           "return %2\n",
                           rows, columns, inner, name_of(dtype)),
                       kernels_, threads_);
      if (blocked.schedule().instructions.front().kind == Instruction::Kind::kMatmul)
        add_matmul(KernelOwner::kBlocked, dtype, size, shortest_.of("blocked " + name, blocked.seconds()));
    }
    constexpr int64_t kBatch = 16;
    for (const int64_t rows : {16, 64})
      for (const int64_t columns : {16, 64})
        for (const int64_t inner : {16, 64}) {
          const at::Tensor a = at::full({kBatch, rows, inner}, 0.01, scalar_of(dtype));
          const at::Tensor b = at::full({kBatch, columns, inner}, 0.01, scalar_of(dtype)).transpose(1, 2);
          const std::string name = str("{} {}x{}x{}x{}", name_of(dtype), kBatch, rows, columns, inner);
          add_matmul(KernelOwner::kLibrary, dtype, {rows, columns, inner},
                     product_seconds(name, {a, b}, [&] { (void)at::bmm(a, b); }), kBatch);
        }
    // Where nothing runs blocked, nobody will ask; the library's stand in its place.
    if (std::ranges::none_of(rates_.matmuls, [&](const MatmulRate& one) {
          return one.owner == KernelOwner::kBlocked && one.dtype == dtype;
        })) {
      const std::vector<MatmulRate> library = rates_.matmuls;
      for (const MatmulRate& one : library) {
        if (one.dtype != dtype || one.batch > 1) continue;
        rates_.matmuls.push_back(one);
        rates_.matmuls.back().owner = KernelOwner::kBlocked;
      }
    }
    target_.flops_per_second = best_f32_;
    target_.narrow_flops_per_second = best_narrow_;
  }

  void measure_attention(DType dtype) {
    for (const int64_t width : {8, 64})
      for (const int64_t length : {4, 8, 16, 32, 64, 256, 1024}) measure_attention(dtype, length, width);
  }
  void measure_attention(DType dtype, int64_t length, int64_t width) {
    const double scale = 0.125;
    const double forward_flops =
        4.0 * 4 * 4 * static_cast<double>(width) * static_cast<double>(length) * static_cast<double>(length);
    const double backward_flops = forward_flops * 2.5;
    const std::string name = str("attention {} {} {}", name_of(dtype), length, width);
    blocked::Attention call;
    call.type = dtype == DType::kF32 ? blocked::Number::kF32 : blocked::Number::kBf16;
    call.batch = call.heads = call.key_heads = 4;
    call.queries = call.keys = length;
    call.dim = call.value_dim = width;
    const auto add = [&](KernelOwner owner, bool backward, double seconds) {
      const double padding = owner == KernelOwner::kLibrary ? 1
                             : backward                     ? padding_of_attention_backward(call)
                                                            : padding_of_attention(call);
      const double start = owner == KernelOwner::kLibrary ? rates_.aten_call_seconds : rates_.instruction_seconds;
      const double flops = (backward ? backward_flops : forward_flops) * padding;
      rates_.attentions.push_back(
          {owner, dtype, backward, length, width, flops / std::max(seconds * 0.2, seconds - start)});
    };
    const at::Tensor q = at::full({4, 4, length, width}, 0.01, scalar_of(dtype));
    const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0, false, {}, scale);
    add(KernelOwner::kLibrary, false, product_seconds(name, {q}, [&] {
          (void)at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0, false, {}, scale);
        }));
    const at::Tensor result = out, sums = logsumexp;
    add(KernelOwner::kLibrary, true, product_seconds(name + " backward", {q, result, sums}, [&] {
          (void)at::_scaled_dot_product_flash_attention_for_cpu_backward(q, q, q, q, result, sums, 0, false, {}, scale);
        }));
    const std::string four = str("{}[4, 4, {}, {}]", name_of(dtype), length, width);
    const std::string sum = str("f32[4, 4, {}]", length);
    std::string inputs;
    for (int i = 0; i < 3; ++i) inputs += str("input %{}: {} = batch \"{}\"\n", i, four, i);
    add(KernelOwner::kBlocked, false,
        seconds_of(inputs + str("%3: {}, %4: {} = attention(%0, %1, %2) {{causal=false, scale=0.125}} | forward \"\"\n"
                                "return %3\nreturn %4\n",
                                four, sum)));
    add(KernelOwner::kBlocked, true,
        seconds_of(inputs +
                   str("input %3: {0} = batch \"3\"\ninput %4: {0} = batch \"4\"\ninput %5: {1} = batch \"5\"\n"
                       "%6: {0}, %7: {0}, %8: {0} = attention_backward(%3, %0, %1, %2, %4, %5) {{causal=false, "
                       "scale=0.125}} | backward \"\"\nreturn %6\nreturn %7\nreturn %8\n",
                       four, sum)));
  }

  void measure_convolutions() {
    rates_.convolutions.clear();
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const bool depthwise : {false, true})
        for (const int64_t kernel : {depthwise ? 7 : 1, 3})
          for (const int64_t channels : {4, 32, 256})
            for (const int64_t side : {4, 16, 32})
              if (measure_convolution(dtype, depthwise, kernel, channels, side) > kTooLong / 4) break;
  }
  // Seconds of the backward pass.
  double measure_convolution(DType dtype, bool depthwise, int64_t kernel, int64_t channels, int64_t side) {
    constexpr int64_t kImages = 8;
    const at::Tensor x = at::full({kImages, channels, side, side}, 0.01, scalar_of(dtype));
    const at::Tensor weight = at::full({channels, depthwise ? 1 : channels, kernel, kernel}, 0.01, scalar_of(dtype));
    const int64_t groups = depthwise ? channels : 1, padding = kernel / 2;
    const int64_t pixels = kImages * side * side, inner = weight.numel() / channels;
    const double flops = 2.0 * static_cast<double>(weight.numel()) * static_cast<double>(pixels);
    const std::string name = str("{} convolution {} {} {} {}", name_of(dtype), depthwise, kernel, channels, side);
    const auto add = [&](bool backward, double seconds) {
      const double own = std::max(seconds * 0.2, seconds - rates_.aten_call_seconds);
      rates_.convolutions.push_back(
          {dtype, backward, depthwise, pixels, channels, inner, (backward ? 2 : 1) * flops / own});
    };
    add(false, call_seconds(name, {x, weight}, [&] {
          (void)at::convolution(x, weight, {}, {1, 1}, {padding, padding}, {1, 1}, false, {0, 0}, groups);
        }));
    const double backward_seconds = call_seconds(name + " backward", {x, weight}, [&] {
      (void)at::convolution_backward(x, x, weight, at::OptionalIntArrayRef{}, {1, 1}, {padding, padding}, {1, 1}, false,
                                     {0, 0}, groups, {true, true, false});
    });
    add(true, backward_seconds);
    return backward_seconds;
  }

  KernelSources& kernels_;
  const std::function<void(const std::string&)>& progress_;
  int threads_;
  Target target_;
  Rates rates_;
  double best_f32_ = kSlowest, best_narrow_ = kSlowest;
  double alone_seconds_ = 0;  // of a kernel that was just run
  SmallCalls calls_;
  ShortestTimes shortest_;  // seconds, by what was measured
};

}  // namespace

Target calibrate(KernelSources& kernels, const std::function<void(const std::string&)>& progress, int rounds) {
  USER_CHECK(rounds >= 1, "a calibration of {} rounds measures nothing: give 1 or more", rounds);
  const c10::NoGradGuard no_grad;
  const DrawsLeaveNoTrace draws;
  return Calibration(kernels, progress).run(rounds);
}

std::string rates_table(const Target& target) {
  constexpr double kGiga = 1e9;
  const Rates& rates = target.rates;
  std::string out = str("{} threads; {}\n", target.threads, to_text(target.features));
  out += str("  matmul at best       {:.0f} GFLOP/s in f32, {:.0f} in bf16\n", target.flops_per_second / kGiga,
             target.narrow_flops_per_second / kGiga);
  out += str("  memory               {:.1f} GB/s; from the smallest cache {:.1f}\n", target.bytes_per_second / kGiga,
             rates.streams.front().bytes_per_second / kGiga);
  out += str("  generated kernels    {:.1f} G operations/s, {:.1f} G divisions/s\n", rates.lane_ops_per_second / kGiga,
             rates.lane_roots_per_second / kGiga);
  out += str("  one instruction      {:.2f} us; a call into ATen {:.2f} us; to share work {:.2f} us\n",
             rates.instruction_seconds * 1e6, rates.aten_call_seconds * 1e6, rates.fork_seconds * 1e6);
  return out;
}

}  // namespace stepc
