#include "calibrate/calibrate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "loops/expand_math.h"
#include "loops/loop_work.h"
#include "runtime/executor.h"
#include "runtime/micro_kernels.h"
#include "schedule/from_graph.h"

namespace stepc {

namespace {

constexpr double kEnoughSeconds = 0.03;
constexpr int kMedians = 3, kFewestRuns = 3, kMostRuns = 2000;
constexpr size_t kOthersBytes = size_t{4} << 20;  // more than the caches of a core hold
constexpr double kTooLong = 0.5;                  // for one run of one kernel

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The least of three medians of runs that `seconds_of_run` times itself, so that what else the machine does for some
// hundredths of a second is not taken for its rate; of a long run, the first.
template <class Run>
double median_seconds(const Run& seconds_of_run) {
  if (const double first = seconds_of_run(); first > kEnoughSeconds * 3) return first;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kMedians; ++i) {
    const auto begin = Clock::now();
    std::vector<double> all;
    while (static_cast<int>(all.size()) < kFewestRuns ||
           (seconds_since(begin) < kEnoughSeconds / kMedians && static_cast<int>(all.size()) < kMostRuns))
      all.push_back(seconds_of_run());
    least = std::min(least, median(std::move(all)));
  }
  return least;
}
template <class Work>
double median_of(const Work& work) {
  return median_seconds([&] {
    const auto begin = Clock::now();
    work();
    return seconds_since(begin);
  });
}

c10::ScalarType scalar_of(DType dtype) { return dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat; }

// Numbers of an ordinary size: what is denormal or infinite may take longer.
at::Tensor filled(const ScheduleInput& input, const Operand& operand) {
  if (!is_of_program(input.kind)) return {};
  const auto options = at::TensorOptions().dtype(operand.dtype == DType::kI64 ? at::kLong : scalar_of(operand.dtype));
  return at::full(operand.sizes, operand.dtype == DType::kI64 ? 1 : 0.01, options);
}

// A fused Graph's text as a Schedule, run alone.
class Measured {
 public:
  Measured(const std::string& graph, KernelSources& kernels, int threads)
      : plan_(schedule_graph(parse_graph("stepc.graph 1\n" + graph),
                             {.features = features_of(kernels.micro_kernels), .threads = threads})),
        executor_(plan_.schedule, &kernels) {
    for (const ScheduleInput& input : schedule().inputs)
      inputs_.tensors.push_back(filled(input, schedule().operands[input.operand.index()]));
    inputs_.tells_autograd = false;
    inputs_.times = &times_;
  }
  [[nodiscard]] const Schedule& schedule() const { return executor_.schedule(); }
  [[nodiscard]] const Instruction& instruction() const { return schedule().instructions.front(); }

  // Of its first instruction.
  double seconds() {
    return median_seconds([&] {
      (void)executor_.run(inputs_);
      return seconds_of(times_.instructions().front());
    });
  }
  // Of all its instructions, as in a step: behind others that have filled the caches with their own code and data.
  double mean_seconds() {
    std::vector<char> others(kOthersBytes, 1);
    return median_seconds([&] {
      for (char& one : others) ++one;
      (void)executor_.run(inputs_);
      double sum = 0;
      for (const InstructionTime& time : times_.instructions()) sum += seconds_of(time);
      return sum / static_cast<double>(times_.instructions().size());
    });
  }

 private:
  static double seconds_of(const InstructionTime& time) { return time.end_seconds - time.begin_seconds; }

  GraphSchedule plan_;
  Executor executor_;
  RunTimes times_;
  RunInputs inputs_;
};

class Calibration {
 public:
  Calibration(KernelSources& kernels, const std::function<void(const std::string&)>& progress)
      : kernels_(kernels), progress_(progress), threads_(at::get_num_threads()) {}

  Target run() {
    target_.features = features_of(kernels_.micro_kernels);
    target_.threads = threads_;
    say("instructions and calls");
    measure_calls();
    const Rates first = rates_;
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
    // Once more: they are short, and everything above had them subtracted.
    measure_calls();
    rates_.instruction_seconds = std::min(rates_.instruction_seconds, first.instruction_seconds);
    rates_.aten_call_seconds = std::min(rates_.aten_call_seconds, first.aten_call_seconds);
    rates_.fork_seconds = std::min(rates_.fork_seconds, first.fork_seconds);
    target_.rates = std::move(rates_);
    return target_;
  }

 private:
  void say(const std::string& what) const {
    if (progress_) progress_(what);
  }
  double seconds_of(const std::string& graph) { return Measured(graph, kernels_, threads_).seconds(); }

  void measure_calls() {
    rates_.instruction_seconds = Measured(
                                     "input %0: f32[16] = batch \"0\"\n"
                                     "%1: f32[16] = add(%0, %0) | forward \"\" group 0\n"
                                     "return %1\n",
                                     kernels_, threads_)
                                     .mean_seconds();
    rates_.aten_call_seconds =
        Measured(
            "input %0: f32[4, 4] = batch \"0\"\n"
            "%1: f32[4, 4] = cumsum(%0) {dim=0} | forward \"\"\n"
            "%2: f32[4, 4] = matmul(%1, %0) {transpose_a=false, transpose_b=true} | forward \"\"\n"
            "%3: f32[8, 4] = concat(%2, %1) {dim=0} | forward \"\"\n"
            "%4: f32[8, 4] = tanh(%3) | forward \"\"\n"
            "%5: f32[8, 4] = mul(%4, %3) | forward \"\"\n"
            "%6: f32[8] = sum(%5) {dims=[1], keepdim=false} | forward \"\"\n"
            "%7: f32[8] = sqrt(%6) | forward \"\"\n"
            "%8: f32[8] = add(%7, %6) | forward \"\"\n"
            "return %8\n",
            kernels_, threads_)
            .mean_seconds();
    rates_.fork_seconds = std::max(1e-9, median_of([&] { at::parallel_for(0, threads_, 1, [](int64_t, int64_t) {}); }));
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
      const double own = std::max(seconds * 0.2, seconds - rates_.instruction_seconds - forks);
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
    const double seconds = measured.seconds();
    return {std::max(seconds * 0.2, seconds - rates_.instruction_seconds - forks * rates_.fork_seconds), sum};
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

  void measure_aten() {
    const at::Tensor x = at::full({256, 1024}, 0.5);
    at::Tensor out = at::empty_like(x);
    const auto elements = static_cast<double>(x.numel());
    const double over = rates_.aten_call_seconds + (threads_ > 1 ? rates_.fork_seconds : 0);
    const auto own = [&](double seconds) { return std::max(seconds * 0.2, seconds - over); };
    constexpr double kFlopsOfAFunction = 10;  // in the op table
    const double functions =
        own(median_of([&] { at::exp_out(out, x); })) + own(median_of([&] { at::tanh_out(out, x); }));
    rates_.aten_flops_per_second = 2 * kFlopsOfAFunction * elements / functions;
    const at::Tensor square = at::full({512, 512}, 0.5);
    at::Tensor transposed = at::empty_like(square);
    rates_.aten_strided_bytes_per_second =
        8.0 * static_cast<double>(square.numel()) / own(median_of([&] { transposed.copy_(square.t()); }));
    at::Tensor rows = at::empty({256}), columns = at::empty({1024});
    const double sums =
        own(median_of([&] { at::sum_out(rows, x, {1}); })) + own(median_of([&] { at::sum_out(columns, x, {0}); }));
    rates_.aten_reduction_bytes_per_second = 2 * 4.0 * elements / sums;
    const at::Tensor ids = at::arange(1024).remainder(512);
    const at::Tensor gradient = at::full({1024, 64}, 0.5);
    rates_.aten_scatter_bytes_per_second =
        4.0 * (1024 + 512) * 64 /
        own(median_of([&] { (void)at::embedding_dense_backward(gradient, ids, 512, -1, false); }));
    const at::Tensor scale = at::ones({1024});
    const double norms = own(median_of([&] { (void)at::native_layer_norm(x, {1024}, scale, scale, 1e-5); })) +
                         own(median_of([&] { (void)at::_log_softmax(x, 1, false); }));
    const at::Tensor images = at::full({8, 64, 16, 16}, 0.5);
    const at::Tensor channels = at::ones({64});
    at::Tensor mean = at::zeros({64}), variance = at::ones({64});
    const double image_norms =
        own(median_of(
            [&] { (void)at::native_batch_norm(images, channels, channels, mean, variance, true, 0.1, 1e-5); })) +
        own(median_of([&] {
          (void)at::max_pool2d_with_indices(images, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false);
        }));
    const auto pixels = static_cast<double>(images.numel());
    rates_.aten_norm_bytes_per_second = 4 * (4 * elements + 3.75 * pixels) / (norms + image_norms);
    rates_.aten_roots_per_second = elements / own(median_of([&] { at::sqrt_out(out, x); }));
    at::Tensor draws = at::empty({65536});
    rates_.aten_draws_per_second = 65536 / own(median_of([&] { draws.bernoulli_(0.9); }));
  }

  void add_matmul(KernelOwner owner, DType dtype, const std::array<int64_t, 3>& size, double seconds) {
    const double flops =
        2.0 * static_cast<double>(size[0]) * static_cast<double>(size[1]) * static_cast<double>(size[2]);
    const double start = owner == KernelOwner::kLibrary ? rates_.aten_call_seconds : rates_.instruction_seconds;
    const double rate = flops / std::max(seconds * 0.2, seconds - start);
    rates_.matmuls.push_back({owner, dtype, size[0], size[1], size[2], rate});
    double& best = dtype == DType::kF32 ? best_f32_ : best_narrow_;
    best = std::max(best, rate);
  }

  void measure_matmuls(DType dtype) {
    constexpr std::array<int64_t, 4> kSizes = {32, 128, 512, 2048};
    double rate = 1e9;  // of the last one: what would take too long is left out
    for (const int64_t rows : kSizes)
      for (const int64_t columns : kSizes)
        for (const int64_t inner : kSizes) {
          if (2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(inner) >
              kTooLong * rate)
            continue;
          const std::array<int64_t, 3> size = {rows, columns, inner};
          const at::Tensor a = at::full({rows, inner}, 0.01, scalar_of(dtype));
          const at::Tensor b = at::full({columns, inner}, 0.01, scalar_of(dtype)).t();
          at::Tensor product = at::empty({rows, columns}, scalar_of(dtype));
          add_matmul(KernelOwner::kLibrary, dtype, size, median_of([&] { at::mm_out(product, a, b); }));
          rate = std::max(rate, rates_.matmuls.back().flops_per_second);
          if (!matmul_rule(target_.features).takes(dtype)) continue;
          Measured blocked(
              str("input %0: {3}[{0}, {2}] = batch \"0\"\ninput %1: {3}[{1}, {2}] = parameter \"w\"\n"
                  "%2: {3}[{0}, {1}] = matmul(%0, %1) {{transpose_a=false, transpose_b=true}} | forward \"\"\n"
                  "return %2\n",
                  rows, columns, inner, name_of(dtype)),
              kernels_, threads_);
          if (blocked.instruction().kind == Instruction::Kind::kMatmul)
            add_matmul(KernelOwner::kBlocked, dtype, size, blocked.seconds());
        }
    // Where nothing runs blocked, nobody will ask; the library's stand in its place.
    if (std::ranges::none_of(rates_.matmuls, [&](const MatmulRate& one) {
          return one.owner == KernelOwner::kBlocked && one.dtype == dtype;
        })) {
      const std::vector<MatmulRate> library = rates_.matmuls;
      for (const MatmulRate& one : library) {
        if (one.dtype != dtype) continue;
        rates_.matmuls.push_back(one);
        rates_.matmuls.back().owner = KernelOwner::kBlocked;
      }
    }
    target_.flops_per_second = best_f32_;
    target_.narrow_flops_per_second = best_narrow_;
  }

  void measure_attention(DType dtype) {
    for (const int64_t length : {64, 256, 1024}) {
      const double scale = 0.125;
      const double forward_flops = 4.0 * 4 * 4 * 64 * static_cast<double>(length) * static_cast<double>(length);
      const double backward_flops = forward_flops * 2.5;
      const auto add = [&](KernelOwner owner, bool backward, double seconds) {
        rates_.attentions.push_back(
            {owner, dtype, backward, length, (backward ? backward_flops : forward_flops) / seconds});
      };
      const at::Tensor q = at::full({4, 4, length, 64}, 0.01, scalar_of(dtype));
      const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0, false, {}, scale);
      add(KernelOwner::kLibrary, false,
          median_of([&] { (void)at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0, false, {}, scale); }));
      const at::Tensor result = out, sums = logsumexp;
      add(KernelOwner::kLibrary, true, median_of([&] {
            (void)at::_scaled_dot_product_flash_attention_for_cpu_backward(q, q, q, q, result, sums, 0, false, {},
                                                                           scale);
          }));
      const std::string four = str("{}[4, 4, {}, 64]", name_of(dtype), length);
      const std::string sum = str("f32[4, 4, {}]", length);
      std::string inputs;
      for (int i = 0; i < 3; ++i) inputs += str("input %{}: {} = batch \"{}\"\n", i, four, i);
      add(KernelOwner::kBlocked, false,
          seconds_of(inputs +
                     str("%3: {}, %4: {} = attention(%0, %1, %2) {{causal=false, scale=0.125}} | forward \"\"\n"
                         "return %3\nreturn %4\n",
                         four, sum)));
      add(KernelOwner::kBlocked, true,
          seconds_of(inputs +
                     str("input %3: {0} = batch \"3\"\ninput %4: {0} = batch \"4\"\ninput %5: {1} = batch \"5\"\n"
                         "%6: {0}, %7: {0}, %8: {0} = attention_backward(%3, %0, %1, %2, %4, %5) {{causal=false, "
                         "scale=0.125}} | backward \"\"\nreturn %6\nreturn %7\nreturn %8\n",
                         four, sum)));
    }
  }

  void measure_convolutions() {
    rates_.convolutions.clear();
    for (const int64_t channels : {16, 64, 256})
      for (const int64_t side : {8, 16, 32}) {
        constexpr int64_t kImages = 8;
        const at::Tensor x = at::full({kImages, channels, side, side}, 0.01);
        const at::Tensor weight = at::full({channels, channels, 3, 3}, 0.01);
        const int64_t pixels = kImages * side * side;
        const double flops =
            2.0 * 9 * static_cast<double>(channels) * static_cast<double>(channels) * static_cast<double>(pixels);
        const double forward = median_of([&] {
          (void)at::convolution(x, weight, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1);
        });
        const double backward = median_of([&] {
          (void)at::convolution_backward(x, x, weight, at::OptionalIntArrayRef{}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0},
                                         1, {true, true, false});
        });
        rates_.convolutions.push_back({false, channels, pixels, flops / forward});
        rates_.convolutions.push_back({true, channels, pixels, 2 * flops / backward});
      }
  }

  KernelSources& kernels_;
  const std::function<void(const std::string&)>& progress_;
  int threads_;
  Target target_;
  Rates rates_;
  double best_f32_ = 1e9, best_narrow_ = 1e9;
};

}  // namespace

Target calibrate(KernelSources& kernels, const std::function<void(const std::string&)>& progress) {
  const at::NoGradGuard no_grad;
  return Calibration(kernels, progress).run();
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
