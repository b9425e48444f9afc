#include "calibrate/measured.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "base/check.h"
#include "base/clock.h"
#include "capture/recorder.h"
#include "runtime/micro_kernels.h"
#include "schedule/from_graph.h"
#include "schedule/from_trace.h"

namespace stepc {

namespace {

constexpr double kEnoughSeconds = 0.004;
constexpr int kFewestRuns = 5, kMostRuns = 2000;

// Numbers of an ordinary size: what is denormal or infinite may take longer.
at::Tensor filled(const Operand& operand) {
  const bool is_index = operand.dtype == DType::kI64;
  const auto options = at::TensorOptions().dtype(is_index                        ? at::kLong
                                                 : operand.dtype == DType::kBF16 ? at::kBFloat16
                                                                                 : at::kFloat);
  return at::full(operand.sizes, is_index ? 1 : 0.01, options);
}

// Whoever calls owns the tensors, by their places.
class OwnTensors : public RecordedProgram {
 public:
  explicit OwnTensors(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {}
  std::vector<OwnedTensor> list() override {
    std::vector<OwnedTensor> owned;
    for (size_t t = 0; t < tensors_.size(); ++t) owned.push_back({Owner::kParameter, str("{}", t), tensors_[t]});
    return owned;
  }

 private:
  const std::vector<at::Tensor>& tensors_;
};

Schedule schedule_of(const std::vector<at::Tensor>& tensors, const std::function<void()>& calls, int threads) {
  OwnTensors program(tensors);
  const Recording recording = record(program, [&] {
    calls();
    return StepOutput();
  });
  INTERNAL_CHECK(recording.obstacles.empty(), "what calibration measures cannot be replayed: {}",
                 recording.obstacles.front());
  return schedule_trace(recording.trace, {}, threads);
}

double seconds_of(const InstructionTime& time) { return time.end_seconds - time.begin_seconds; }

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double ShortestTimes::of(const std::string& key, double seconds) {
  const auto [known, is_new] = by_key_.emplace(key, seconds);
  return known->second = std::min(known->second, seconds);
}

double median_seconds(const std::function<double()>& seconds_of_run) {
  return median_seconds(seconds_of_run, [] {});
}

double median_seconds(const std::function<double()>& seconds_of_run, const std::function<void()>& others) {
  const double first = seconds_of_run();
  if (first > kEnoughSeconds * 6) return first;
  const auto begin = Clock::now();
  std::vector<double> all;
  while (static_cast<int>(all.size()) < kFewestRuns ||
         (seconds_since(begin) < kEnoughSeconds && static_cast<int>(all.size()) < kMostRuns)) {
    others();
    all.push_back(seconds_of_run());
  }
  return median(std::move(all));
}

Measured::Measured(Schedule schedule, KernelSources* kernels, const std::vector<at::Tensor>& tensors)
    : executor_(std::move(schedule), kernels) {
  for (const ScheduleInput& input : this->schedule().inputs) {
    const bool is_given = is_of_program(input.kind) && !tensors.empty();
    inputs_.tensors.push_back(is_given                    ? tensors.at(std::stoul(input.key))
                              : is_of_program(input.kind) ? filled(this->schedule().operands[input.operand.index()])
                                                          : at::Tensor());
  }
  inputs_.on_event = [](size_t, const std::vector<at::Tensor>&) { return std::string(); };
  inputs_.tells_autograd = false;
  inputs_.times = &times_;
}

Measured::Measured(const std::string& graph, KernelSources& kernels, int threads)
    : Measured(schedule_graph(parse_graph("stepc.graph 1\n" + graph),
                              {.features = features_of(kernels.micro_kernels), .threads = threads})
                   .schedule,
               &kernels, {}) {}

Measured::Measured(const std::vector<at::Tensor>& tensors, const std::function<void()>& calls, int threads)
    : Measured(schedule_of(tensors, calls, threads), nullptr, tensors) {}

Measured::Measured(Schedule schedule, KernelSources* kernels) : Measured(std::move(schedule), kernels, {}) {}

void Measured::run_unwatched() {
  RunInputs inputs = inputs_;
  inputs.times = nullptr;
  inputs.tells_autograd = true;
  (void)executor_.run(inputs);
}

std::vector<HostSupply> Measured::host_numbers() const {
  std::vector<HostSupply> numbers;
  for (const HostNumber& number : schedule().host_numbers) {
    if (!number.instruction) continue;
    const Arg& arg = schedule().instructions[*number.instruction].aten->args[number.arg];
    if (const auto* wrapped = std::get_if<WrappedNumber>(&arg))
      numbers.push_back({number.call, number.arg, tensor_of(*wrapped)});
    else if (const auto* real = std::get_if<double>(&arg))
      numbers.push_back({number.call, number.arg, *real});
  }
  return numbers;
}

double Measured::seconds(const std::function<void()>& others) {
  return median_seconds(
      [&] {
        run();
        return seconds_of(times_.instructions().front());
      },
      others);
}

std::vector<double> Measured::seconds_of_each(int runs, const std::function<void()>& others) {
  std::vector<std::vector<double>> all(schedule().instructions.size());
  run();
  for (int i = 0; i < runs; ++i) {
    others();
    run();
    for (const InstructionTime& time : times_.instructions()) all[time.index].push_back(seconds_of(time));
  }
  std::vector<double> medians;
  for (std::vector<double>& one : all) medians.push_back(one.empty() ? 0 : median(std::move(one)));
  return medians;
}

}  // namespace stepc
