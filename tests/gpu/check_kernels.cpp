#include "tests/gpu/check_kernels.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "codegen/cuda_source.h"
#include "device/cuda_program.h"
#include "tests/codegen/run_gpu.h"
#include "tests/gpu/device_image.h"
#include "tests/gpu/json_line.h"
#include "tests/gpu/kernel_cases.h"

namespace stepc {

namespace {

using nlohmann::json;

using Bytes = std::vector<std::vector<uint8_t>>;  // of each output

// A case's inputs, and its outputs as the interpreter of mappings has made them.
struct Expected {
  std::optional<GpuBuffers> buffers;
  double scale = 0;  // of errors, where a mathematical library's function is called
  std::string problem;
};

std::vector<Expected> expected_of(const std::vector<KernelCase>& cases, size_t first) {
  std::vector<Expected> out(cases.size());
  std::atomic<size_t> next = first;
  const auto work = [&] {
    for (size_t k = next++; k < cases.size(); k = next++) {
      const KernelCase& one = cases[k];
      try {
        const std::vector<Array> inputs = one.inputs();
        out[k].buffers.emplace(one.graph, one.program, inputs);
        out[k].problem = interpret(one.program, out[k].buffers->spans()).problem;
        if (!is_exact(one.program)) out[k].scale = largest_magnitude(one.graph, inputs);
      } catch (const std::exception& error) {
        out[k].problem = error.what();
      }
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t) threads.emplace_back(work);
  threads.clear();
  return out;
}

json element_text(const Array& array, int64_t i) {
  return array.is_real() ? str("{:.9g}", array.real(i)) : str("{}", array.integers[static_cast<size_t>(i)]);
}

// The first elements in which two arrays differ, and how many do.
json differences_of(const Array& have, const Array& want) {
  constexpr size_t kShown = 8;
  json out = {{"type", str("{}", name_of(want.type.dtype))}, {"elements", want.count()}, {"first", json::array()}};
  int64_t count = 0;
  const auto is_other = [&](int64_t i) {
    if (!want.is_real()) return have.integers[static_cast<size_t>(i)] != want.integers[static_cast<size_t>(i)];
    const double a = have.real(i);
    const double b = want.real(i);
    return !(std::isnan(a) && std::isnan(b)) && (a != b || std::signbit(a) != std::signbit(b));
  };
  for (int64_t i = 0; i < want.count(); ++i) {
    if (!is_other(i)) continue;
    if (out["first"].size() < kShown)
      out["first"].push_back({{"at", i}, {"have", element_text(have, i)}, {"want", element_text(want, i)}});
    ++count;
  }
  out["different"] = count;
  return out;
}

// All that one needs to find out why.
void add_texts(json& line, const KernelCase& one, size_t number) {
  line["graph"] = to_text(one.graph);
  line["loops"] = to_text(one.program.loops);
  line["mapping"] = to_text(one.program);
  line["cuda"] = cuda_kernels(one.program, str("group{}_phase", number));
}
json failed_line(const KernelCase& one, size_t number, const std::string& why) {
  json line = {{"case", number}, {"name", one.name}, {"outcome", "failed"}, {"why", why}};
  add_texts(line, one, number);
  return line;
}

class KernelChecker {
 public:
  KernelChecker(const CudaDriver& driver, const KernelCase& one, Expected& want, void* loaded, size_t number)
      : driver_(driver), case_(one), want_(want), number_(number), exact_(is_exact(one.program)) {
    line_ = {{"case", number}, {"name", one.name}, {"exact", exact_}, {"outcome", "same"}};
    std::vector<CudaDriver::Kernel> kernels;
    for (size_t l = 0; l < one.program.launches.size(); ++l) {
      const GpuLaunch& launch = one.program.launches[l];
      kernels.push_back(
          driver.kernel(loaded, kernel_name(number, l), launch.blocks, launch.block, launch.shared_bytes));
    }
    kernels_.emplace(driver, std::move(kernels));
  }

  // Its line: outcome "same" (bits), "within" (the bound), "differs" or "failed".
  json run() {
    if (!want_.problem.empty()) return failed_line(case_, number_, "the interpreter says: " + want_.problem);
    const Bytes wanted = wanted_bytes();
    const Bytes first = run_on(DeviceImage(case_.program, want_.buffers->spans(), false), 1);
    compare(first, wanted, "beside the interpreter's", exact_);
    compare(run_on(DeviceImage(case_.program, want_.buffers->spans(), false), 2), first, "from run to run", true);
    if (!case_.program.loops.in_place.empty())
      compare(run_on(DeviceImage(case_.program, want_.buffers->spans(), true), 1), first, "in place", true);
    if (line_["outcome"] == "differs") add_texts(line_, case_, number_);
    return line_;
  }

 private:
  Bytes run_on(const DeviceImage& image, int times) {
    constexpr double kMostSeconds = 5;
    std::vector<uint8_t> after(image.bytes().size());
    const uint64_t memory = driver_.allocate(after.size());
    for (int time = 0; time < times; ++time) {
      driver_.copy_in(memory, image.bytes().data(), after.size());
      kernels_->launch(image.arguments(memory), nullptr);
      driver_.wait(kMostSeconds);
    }
    driver_.copy_out(after.data(), memory, after.size());
    driver_.free(memory);
    const std::string problem = image.problem_of(after);
    if (!problem.empty()) {
      line_["outcome"] = "differs";
      line_["why"] = problem;
    }
    return image.outputs(after);
  }

  [[nodiscard]] Bytes wanted_bytes() const {
    Bytes out;
    const std::vector<std::span<uint8_t>> spans = want_.buffers->spans();
    for (size_t b = case_.graph.inputs.size(); b < spans.size(); ++b)
      out.emplace_back(spans[b].begin(), spans[b].end());
    return out;
  }
  [[nodiscard]] std::vector<Array> arrays_of(const Bytes& bytes) const {
    const std::vector<std::span<uint8_t>> spans = want_.buffers->spans();
    for (size_t k = 0; k < bytes.size(); ++k) std::ranges::copy(bytes[k], spans[case_.graph.inputs.size() + k].begin());
    return want_.buffers->outputs();
  }
  void compare(const Bytes& have_bytes, const Bytes& want_bytes, const char* how, bool exact) {
    if (have_bytes == want_bytes) return;
    const std::vector<Array> have = arrays_of(have_bytes);
    const std::vector<Array> want = arrays_of(want_bytes);
    for (size_t k = 0; k < want.size(); ++k) {
      if (same_bits(have[k], want[k])) continue;  // but for which NaN one is
      if (!exact && alike(have[k], want[k], tolerance_of(case_.graph), want_.scale)) {
        if (line_["outcome"] == "same") line_["outcome"] = "within";
        continue;
      }
      line_["outcome"] = "differs";
      json one = differences_of(have[k], want[k]);
      one["output"] = k;
      one["when"] = how;
      line_["differences"].push_back(one);
    }
  }

  const CudaDriver& driver_;
  const KernelCase& case_;
  Expected& want_;
  size_t number_;
  bool exact_;
  json line_;
  std::optional<CudaProgram> kernels_;
};

}  // namespace

DeviceOutcome check_kernels(const CudaDriver& driver, MachineCode& code, const std::filesystem::path& root,
                            size_t first) {
  const std::vector<KernelCase> cases = kernel_cases(root);
  std::vector<Expected> expected = expected_of(cases, first);
  auto outcome = DeviceOutcome::kSame;
  print_line({{"cases", cases.size()}});
  for (const KernelBatch& batch : batches_of(cases)) {
    if (batch.last <= first) continue;
    void* loaded = nullptr;
    for (size_t k = std::max(first, batch.first); k < batch.last; ++k) {
      print_line({{"begin", k}, {"name", cases[k].name}});
      try {
        if (loaded == nullptr) loaded = driver.load(code.of(batch.source, driver.architecture()));
        const json line = KernelChecker(driver, cases[k], expected[k], loaded, k).run();
        if (line["outcome"] == "differs" || line["outcome"] == "failed") outcome = DeviceOutcome::kDiffers;
        print_line(line);
      } catch (const InternalError& error) {
        print_line(failed_line(cases[k], k, error.what()));
        return DeviceOutcome::kDeviceFailed;
      }
    }
    driver.unload(loaded);
  }
  return outcome;
}

}  // namespace stepc
