#include "tests/gpu/time_kernels.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "codegen/cuda_source.h"
#include "tests/codegen/random_program.h"
#include "tests/codegen/run_gpu.h"
#include "tests/gpu/json_line.h"
#include "tests/gpu/kernel_cases.h"

namespace stepc {

namespace {

using nlohmann::json;

constexpr int kRounds = 21;
constexpr double kMostSeconds = 8;        // until a kernel counts as one that never ends
constexpr size_t kPassBytes = 512 << 20;  // between two uses of one buffer: many times a level-2 cache
constexpr size_t kMostSets = 8;           // of buffers

struct Times {
  double median = 0, least = 0;
};

// Until clocks are up and code is loaded.
template <class F>
void warm_up(const CudaDriver& driver, size_t turns, F&& work) {
  constexpr double kSeconds = 0.05;
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < kSeconds) {
    for (size_t turn = 0; turn < turns; ++turn) work(turn);
    driver.wait(kMostSeconds);
  }
}

// Seconds of one turn of `work`, which is called with 0, 1, ... `turns` - 1 between two events.
template <class F>
Times measure(const CudaDriver& driver, size_t turns, F&& work) {
  std::vector<std::pair<void*, void*>> events;
  for (int round = 0; round < kRounds; ++round) events.emplace_back(driver.event(), driver.event());
  warm_up(driver, turns, work);
  for (const auto& [begin, end] : events) {
    driver.record(begin);
    for (size_t turn = 0; turn < turns; ++turn) work(turn);
    driver.record(end);
  }
  driver.wait(kMostSeconds);
  std::vector<double> seconds;
  for (const auto& [begin, end] : events) {
    seconds.push_back(driver.seconds_between(begin, end) / static_cast<double>(turns));
    driver.destroy(begin);
    driver.destroy(end);
  }
  std::ranges::sort(seconds);
  return {seconds[seconds.size() / 2], seconds[0]};
}

// Bytes read and written in a second.
double copy_rate(const CudaDriver& driver) {
  const uint64_t from = driver.allocate(kPassBytes);
  const uint64_t to = driver.allocate(kPassBytes);
  driver.fill(from, 0x3C, kPassBytes);
  const Times times = measure(driver, 2, [&](size_t) { driver.copy_on_device(to, from, kPassBytes); });
  driver.free(from);
  driver.free(to);
  return 2 * static_cast<double>(kPassBytes) / times.median;
}

// What an update is given must make sense: its numbers, and squares that are none below 0.
std::vector<Array> rate_inputs(const Graph& graph) {
  constexpr double kNumbers[] = {3, 1e-3, 0.9, 0.999, 0.01, 1e-8};  // step, rate, betas, decay, epsilon
  std::vector<Array> out = random_arrays(graph, 1, false);
  size_t numbers = 0;
  for (Array& array : out)
    if (array.type.shape.empty()) array.set(0, kNumbers[numbers++]);
  for (Array& array : out)
    for (double& value : array.reals)
      if (numbers != 0) value = std::abs(value);
  return out;
}

// One case with its buffers on the device, as often as it takes to pass the cache by.
class RateRun {
 public:
  RateRun(const CudaDriver& driver, const RateCase& one, const GpuProgram& program, void* loaded)
      : driver_(driver),
        case_(one),
        graph_(one.graph(one.rows)),
        few_(one.graph(RateCase::kPeriod)),
        program_(program),
        inputs_(rate_inputs(few_)) {
    for (size_t l = 0; l < program_.launches.size(); ++l) {
      const GpuLaunch& launch = program_.launches[l];
      kernels_.push_back(driver.kernel(loaded, str("phase{}", l), launch.blocks, launch.block, launch.shared_bytes));
    }
    for (const LoopBuffer& buffer : program_.loops.buffers)
      if (buffer.kind == LoopBuffer::Kind::kInput || buffer.kind == LoopBuffer::Kind::kOutput)
        bytes_.push_back(static_cast<size_t>(buffer.count * size_of(buffer.dtype)));
    const size_t sets = std::clamp<size_t>((kPassBytes + total() - 1) / total(), 1, kMostSets);
    for (size_t set = 0; set < sets; ++set) allocate();
  }
  ~RateRun() {
    try {
      for (const std::vector<uint64_t>& set : sets_)
        for (uint64_t memory : set) driver_.free(memory);
    } catch (const InternalError&) {  // the device has failed, and the line before says how
    }
  }
  RateRun(const RateRun&) = delete;
  RateRun& operator=(const RateRun&) = delete;

  json run(double copy_rate) {
    json line = {{"kernel", case_.name}, {"bytes", total()}, {"sets", sets_.size()}};
    for (const CudaDriver::Kernel& kernel : kernels_) line["phases"].push_back(facts_of(kernel));
    launch(0);
    driver_.wait(kMostSeconds);
    line["result"] = compared();
    const Times times = measure(driver_, sets_.size(), [&](size_t set) { launch(set); });
    line["microseconds"] = 1e6 * times.median;
    line["least_microseconds"] = 1e6 * times.least;
    line["rate"] = static_cast<double>(total()) / times.median;
    line["of_copy"] = static_cast<double>(total()) / times.median / copy_rate;
    if (kernels_.size() == 1) return line;
    for (size_t p = 0; p < kernels_.size(); ++p) {
      const Times one = measure(driver_, sets_.size(), [&](size_t set) { driver_.launch(kernels_[p], sets_[set]); });
      line["phases"][p]["microseconds"] = 1e6 * one.median;
    }
    return line;
  }

 private:
  [[nodiscard]] size_t total() const {
    size_t out = 0;
    for (size_t bytes : bytes_) out += bytes;
    return out;
  }
  void launch(size_t set) const {
    for (const CudaDriver::Kernel& kernel : kernels_) driver_.launch(kernel, sets_[set]);
  }
  [[nodiscard]] json facts_of(const CudaDriver::Kernel& kernel) const {
    return {{"blocks", kernel.blocks},
            {"threads", kernel.threads},
            {"shared_bytes", kernel.shared_bytes},
            {"registers", driver_.attribute(kernel, CudaDriver::kRegisters)},
            {"local_bytes", driver_.attribute(kernel, CudaDriver::kLocalBytes)},
            {"blocks_a_multiprocessor", driver_.blocks_a_multiprocessor(kernel)}};
  }

  // A buffer whose first bytes are `some`, and which goes on with them again and again.
  void repeat(uint64_t memory, const std::vector<uint8_t>& some, size_t bytes) const {
    size_t done = std::min(some.size(), bytes);
    driver_.copy_in(memory, some.data(), done);
    while (done < bytes) {
      const size_t more = std::min(done, bytes - done);
      driver_.copy_on_device(memory + done, memory, more);
      done += more;
    }
  }
  void allocate() {
    std::vector<uint64_t>& set = sets_.emplace_back();
    for (size_t b = 0; b < bytes_.size(); ++b) {
      set.push_back(driver_.allocate(bytes_[b]));
      if (b < inputs_.size())
        repeat(set.back(), to_bytes(inputs_[b]), bytes_[b]);
      else
        driver_.fill(set.back(), 0xEE, bytes_[b]);
    }
    set.push_back(driver_.allocate(static_cast<size_t>(program_.loops.scratch_bytes)));
  }

  // Every row that the first set's results have beside that of a few rows; sums over the rows beside so many times
  // those of the few. In words what is wrong; "same": all bits of all rows; "within": the bound.
  [[nodiscard]] std::string compared() const {
    const GpuProgram program = gpu_program(few_);
    GpuBuffers buffers(few_, program, inputs_);
    const GpuFindings findings = interpret(program, buffers.spans());
    if (!findings.problem.empty()) return "the interpreter says: " + findings.problem;
    const std::vector<Array> want = buffers.outputs();
    const double scale = largest_magnitude(few_, inputs_);
    const int64_t times = case_.rows / RateCase::kPeriod;
    bool same = true;
    for (size_t k = 0; k < want.size(); ++k) {
      const std::vector<uint8_t> all = output(k);
      const bool is_rows = want[k].type.shape.size() == 2;
      const auto a_part = static_cast<size_t>(bytes_of(want[k].type));
      Array wanted = want[k];
      for (double& value : wanted.reals)
        if (!is_rows) value *= static_cast<double>(times);
      const std::vector<uint8_t> first(all.begin(), all.begin() + static_cast<ptrdiff_t>(a_part));
      const Array have = from_bytes(want[k].type, first);
      same = same && is_rows && same_bits(have, wanted);
      const double bound = is_rows ? scale : scale * static_cast<double>(times);
      const auto within = alike(have, wanted, tolerance_of(few_), bound);
      if (!within) return str("output {}: {}", k, within.message());
      for (size_t at = a_part; at < all.size(); at += a_part)
        if (!std::equal(first.begin(), first.end(), all.begin() + static_cast<ptrdiff_t>(at)))
          return str("output {}: rows {} and on are not like the first {}", k,
                     static_cast<int64_t>(at / a_part) * RateCase::kPeriod, RateCase::kPeriod);
    }
    return same ? "same" : "within";
  }
  [[nodiscard]] std::vector<uint8_t> output(size_t k) const {
    std::vector<uint8_t> out(bytes_[inputs_.size() + k]);
    driver_.copy_out(out.data(), sets_[0][inputs_.size() + k], out.size());
    return out;
  }

  const CudaDriver& driver_;
  const RateCase& case_;
  Graph graph_, few_;
  const GpuProgram& program_;
  std::vector<Array> inputs_;
  std::vector<CudaDriver::Kernel> kernels_;
  std::vector<size_t> bytes_;
  std::vector<std::vector<uint64_t>> sets_;  // parameters of a launch
};

}  // namespace

void describe_device(const CudaDriver& driver) {
  const auto [free, total] = driver.free_and_total_bytes();
  json line = {{"name", driver.name()},
               {"driver", driver.version()},
               {"architecture", driver.architecture()},
               {"multiprocessors", driver.attribute(CudaDriver::kMultiprocessors)},
               {"l2_bytes", driver.attribute(CudaDriver::kL2Bytes)},
               {"most_shared_bytes", driver.attribute(CudaDriver::kMostSharedBytes)},
               {"free_bytes", free},
               {"total_bytes", total}};
  line["copy_rate"] = copy_rate(driver);
  print_line(line);
}

DeviceOutcome time_kernels(const CudaDriver& driver, MachineCode& code, int64_t rows, const std::string& beginning) {
  auto outcome = DeviceOutcome::kSame;
  const double rate = copy_rate(driver);
  const std::vector<RateCase> cases = rate_cases(rows);
  std::vector<std::string> names;
  for (const RateCase& one : cases) names.push_back(one.name);
  print_line({{"copy_rate", rate}, {"names", names}});
  for (const RateCase& one : cases) {
    if (!one.name.starts_with(beginning)) continue;
    print_line({{"begin", one.name}});
    const GpuProgram program = program_of(one);
    try {
      void* loaded = driver.load(code.of(cuda_source(program), driver.architecture()));
      const json line = RateRun(driver, one, program, loaded).run(rate);
      if (line["result"] != "same" && line["result"] != "within") outcome = DeviceOutcome::kDiffers;
      print_line(line);
      driver.unload(loaded);
    } catch (const InternalError& error) {
      print_line({{"kernel", one.name},
                  {"why", error.what()},
                  {"mapping", to_text(program)},
                  {"cuda", cuda_kernels(program, "phase")}});
      return DeviceOutcome::kDeviceFailed;
    }
  }
  return outcome;
}

}  // namespace stepc
