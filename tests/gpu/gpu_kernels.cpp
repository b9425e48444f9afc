// gpu_kernels: generated kernels on an NVIDIA GPU. It needs the driver alone where the code that it runs is kept.
//
//   gpu_kernels compile FOLDER [ROOT]         keeps the machine code of all kernels in FOLDER, by NVRTC, for sm_90
//   gpu_kernels machine                       the device, and how fast it copies
//   gpu_kernels check FOLDER [ROOT] [FIRST]   results of small kernels, from case FIRST on
//   gpu_kernels time FOLDER [ROWS] [NAME]     time of kernels at a training step's sizes, or of ROWS rows if that is
//   not
//                                             0; those whose names begin with NAME
//
// ROOT: of the sources, else where it runs. All but the first print JSON, a line a result. Exit codes: 0; 1: something
// differs; 2: a wrong call; 4: the device failed; 77: there is no device.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "codegen/cuda_source.h"
#include "tests/gpu/check_kernels.h"
#include "tests/gpu/kernel_cases.h"
#include "tests/gpu/time_kernels.h"

namespace stepc {
namespace {

constexpr int kNoDevice = 77;
constexpr int kBundled = 90;  // the architecture of what is kept

void compile_all(const std::filesystem::path& folder, const std::filesystem::path& root) {
  MachineCode code(folder);
  const std::vector<KernelCase> small = kernel_cases(root);
  const std::vector<RateCase> large = rate_cases();
  size_t bytes = 0;
  for (const KernelBatch& batch : batches_of(small)) bytes += code.of(batch.source, kBundled).size();
  for (const RateCase& one : large) bytes += code.of(cuda_source(program_of(one)), kBundled).size();
  code.remove_unused();
  std::printf("%zu programs and %zu at full size, %.1f MiB of machine code\n", small.size(), large.size(),
              static_cast<double>(bytes) / (1 << 20));
}

int run(const std::vector<std::string>& words) {
  const auto word = [&](size_t k, const char* otherwise) -> std::string {
    return words.size() > k ? words[k] : otherwise;
  };
  const std::string command = word(1, "");
  const bool has_folder = command == "compile" || command == "check" || command == "time";
  USER_CHECK(
      command == "machine" || (has_folder && words.size() > 2),
      "usage: gpu_kernels machine, compile FOLDER [ROOT], check FOLDER [ROOT] [FIRST] or time FOLDER [ROWS] [NAME]");
  if (command == "compile") {
    compile_all(words[2], word(3, "."));
    return 0;
  }
  const CudaDriver driver;
  if (!driver.why_not().empty()) {
    std::printf("[SKIP] no CUDA device: %s\n", driver.why_not().c_str());
    return kNoDevice;
  }
  if (command == "machine") {
    describe_device(driver);
    return 0;
  }
  MachineCode code(words[2]);
  const std::string number = word(command == "time" ? 3 : 4, "0");
  uint32_t count = 0;
  USER_CHECK(std::from_chars(number.data(), number.data() + number.size(), count).ptr == number.data() + number.size(),
             "'{}' is no number", number);
  if (command == "time") return static_cast<int>(time_kernels(driver, code, count, word(4, "")));
  return static_cast<int>(check_kernels(driver, code, word(3, "."), count));
}

}  // namespace
}  // namespace stepc

int main(int count, char** words) {
  try {
    const int code = stepc::run({words, words + count});
    std::fflush(stdout);
    std::_Exit(code);  // a kernel that never ends would hold up the driver's own end
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_kernels: %s\n", error.what());
    std::_Exit(dynamic_cast<const stepc::UserError*>(&error) != nullptr
                   ? 2
                   : static_cast<int>(stepc::DeviceOutcome::kDeviceFailed));
  }
}
