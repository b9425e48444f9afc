#include "calibrate/small_calls.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include <ATen/Functions.h>

#include "base/check.h"
#include "base/clock.h"
#include "calibrate/varied_step.h"
#include "plan/price.h"

namespace stepc {

namespace {

constexpr int64_t kSmallSide = 16, kLargeSide = 128;  // the larger one's calls are still one thread's
constexpr int kSmallRuns = 25, kLargeRuns = 7;
constexpr double kFastest = 1e13;  // bytes a second

// Of whole rounds: instructions of which each is the shortest of its own are no step that ever ran.
void keep_shorter(std::vector<double>& kept, std::vector<double> seconds) {
  const auto whole = [](const std::vector<double>& round) { return std::accumulate(round.begin(), round.end(), 0.0); };
  if (kept.empty() || whole(seconds) < whole(kept)) kept = std::move(seconds);
}

// The time of the others goes by their arithmetic.
bool goes_by_bytes(const Instruction& instruction, WorkClass work) {
  return (instruction.kind == Instruction::Kind::kOp || instruction.kind == Instruction::Kind::kAten) &&
         work != WorkClass::kMatmulLibrary;
}

// A seed for the draws of a step.
constexpr const char* kSeed =
    "stepc.schedule 1\nfeatures none\nthreads 1\narena 0\nlive bound 0\nlayout \"best_fit\"\nnumbers 0\n"
    "buffer b0: input 16 of 0\noperand %0: i64[2] in b0\ninput 0: rng \"\" %0\n"
    "i0: seed \"\" () -> (%0) | forward \"\"\n";

}  // namespace

SmallCalls::Program::Program(const std::function<Measured(int64_t side)>& make, DType type)
    : dtype(type), small(make(kSmallSide)), large(make(kLargeSide)) {
  INTERNAL_CHECK_EQ(small.schedule().instructions.size(), large.schedule().instructions.size(),
                    "instructions of a step on small and on larger tensors");
}

void SmallCalls::Program::measure(const std::function<void()>& others) {
  keep_shorter(small_seconds, small.seconds_of_each(kSmallRuns, others));
  keep_shorter(large_seconds, large.seconds_of_each(kLargeRuns, others));
}

SmallCalls::SmallCalls(KernelSources& kernels, int threads) : kernels_(kernels), threads_(threads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const at::ScalarType type = dtype == DType::kF32 ? at::kFloat : at::kBFloat16;
    programs_.push_back(
        std::make_unique<Program>([&](int64_t side) { return varied_calls(type, side, threads); }, dtype));
  }
  for (const DType dtype : {DType::kF32, DType::kBF16})
    programs_.push_back(std::make_unique<Program>(
        [&](int64_t side) { return Measured(varied_ops(std::string(name_of(dtype)), side), kernels, threads); },
        dtype));
}

// What one takes whatever its size, and a byte beyond that of one thread.
std::pair<double, double> SmallCalls::start_of(const Sum& sum) {
  const double bytes = sum.large_bytes - sum.small_bytes;
  const double a_byte = std::max(1 / kFastest, bytes > 0 ? (sum.large_seconds - sum.small_seconds) / bytes : 0);
  return {std::max(sum.small_seconds * 0.2, sum.small_seconds - sum.small_bytes * a_byte) / std::max(sum.calls, 1.0),
          a_byte};
}

void SmallCalls::measure(Rates& rates) {
  // Recorded calls are a step of their own; ops and kernels of a Graph stand between twice as many.
  const size_t half = programs_.size() / 2;
  for (size_t p = 0; p < programs_.size(); ++p)
    programs_[p]->measure([&] {
      if (p >= half) programs_[p == half ? half + 1 : half]->small.run();
    });
  std::map<std::pair<std::string, DType>, Sum> sums;
  Sum generated;
  for (const auto& program : programs_) add_program(*program, sums, generated);
  rates.instruction_seconds = start_of(generated).first;
  rates.calls.clear();
  std::vector<double> all;
  std::map<std::string, double> f32;
  for (const auto& [name, sum] : sums) {
    const auto [seconds, a_byte] = start_of(sum);
    rates.calls.push_back({name.first, name.second, seconds, threads_ / a_byte});
    if (name.second != DType::kF32) continue;
    all.push_back(seconds);
    f32[name.first] = seconds;
  }
  rates.aten_call_seconds = median(std::move(all));
  const auto beyond_call = [&](const char* one, const char* other) {
    return std::max(1e-9, (f32.at(one) + f32.at(other)) / 2 - rates.aten_call_seconds);
  };
  rates.aten_reduction_seconds = beyond_call("aten::sum.dim_IntList", "aten::mean.dim");
  rates.aten_norm_seconds = beyond_call("aten::native_layer_norm", "aten::_softmax");
  rates.aten_index_seconds = beyond_call("aten::embedding", "aten::index.Tensor");
  rates.input_seconds = input_seconds();
  rates.host_number_seconds = host_number_seconds();
  rates.seed_seconds = seed_seconds();
  rates.loss_seconds = loss_seconds();
}

void SmallCalls::add_program(const Program& program, std::map<std::pair<std::string, DType>, Sum>& sums,
                             Sum& generated) {
  const Schedule &small = program.small.schedule(), &large = program.large.schedule();
  const Target any;
  const Pricer pricer(small, any);
  for (size_t i = 0; i < small.instructions.size(); ++i) {
    const Instruction& instruction = small.instructions[i];
    INTERNAL_CHECK_EQ(instruction.op, large.instructions[i].op, "the op of instruction {}", i);
    const bool is_generated = instruction.kind == Instruction::Kind::kGenerated;
    if (!is_generated && !goes_by_bytes(instruction, pricer.price(instruction).work)) continue;
    Sum& sum = is_generated ? generated : sums[{instruction.op, program.dtype}];
    sum.calls += calls_of(instruction);
    sum.small_seconds += program.small_seconds[i];
    sum.large_seconds += program.large_seconds[i];
    sum.small_bytes += bytes_of_call(small, instruction);
    sum.large_bytes += bytes_of_call(large, large.instructions[i]);
  }
}

double SmallCalls::timed(const std::function<void()>& work) {
  return median_seconds(
      [&] {
        const auto begin = Clock::now();
        work();
        return seconds_since(begin);
      },
      [&] { run_a_step(); });
}

double SmallCalls::host_number_seconds() {
  Measured& step = programs_.front()->small;
  const std::vector<HostSupply> numbers = step.host_numbers();
  const double seconds = timed([&] {
    for (const HostSupply& number : numbers) step.supply(number);
  });
  return shortest_.of("numbers", seconds) / std::max(1.0, static_cast<double>(numbers.size()));
}

// What a run of one instruction on so many tensors takes beside it.
double SmallCalls::input_seconds() {
  constexpr size_t kTensors = 256;
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < kTensors; ++i) tensors.push_back(at::ones({1}));
  Measured step(
      tensors, [&] { at::_foreach_mul_(tensors, 1.0); }, threads_);
  const double whole = shortest_.of("run of many inputs", timed([&] { step.run_unwatched(); }));
  const double instruction = shortest_.of("instruction of many inputs", step.seconds([&] { run_a_step(); }));
  return std::max(1e-9, (whole - instruction) / kTensors);
}

double SmallCalls::seed_seconds() {
  Measured step(parse_schedule(kSeed), nullptr);
  return shortest_.of("seed", step.seconds([&] { run_a_step(); }));
}

// So few rows and classes that it is its start.
double SmallCalls::loss_seconds() {
  Measured step(
      "input %0: f32[16, 16] = batch \"0\"\ninput %1: f32[16, 16] = parameter \"w\"\ninput %2: i64[16] = batch \"2\"\n"
      "input %3: f32[16] = batch \"3\"\n"
      "%4: f32[16], %5: f32[16], %6: f32[16, 16], %7: f32[16, 16] = linear_cross_entropy(%0, %1, %2, %3) "
      "{frozen=false, gradient_dtype=f32, ignore_index=-100} | forward \"\"\n"
      "return %4\nreturn %5\nreturn %6\nreturn %7\n",
      kernels_, threads_);
  return shortest_.of("loss", step.seconds([&] { run_a_step(); }));
}

}  // namespace stepc
