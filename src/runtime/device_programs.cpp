#include "runtime/device_programs.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "codegen/cuda_source.h"
#include "loops/expand_math.h"
#include "runtime/refused_programs.h"

namespace stepc {

namespace {

DeviceCode code_of(const LoopProgram& program, const DeviceFacts& facts, MachineCode& machine_code) {
  DeviceCode code;
  code.mapping = std::make_shared<const GpuProgram>(map_to_gpu(expand_math(program), shape_of(facts)));
  for (size_t l = 0; l < code.mapping->launches.size(); ++l) {
    const GpuLaunch& launch = code.mapping->launches[l];
    code.kernels.push_back({str("phase{}", l), launch.blocks, launch.block, launch.shared_bytes});
  }
  if (facts.takes_machine_code)
    code.machine_code = machine_code.of(cuda_source(*code.mapping), facts.compute_capability);
  return code;
}

}  // namespace

GpuShape shape_of(const DeviceFacts& facts) { return {facts.multiprocessors, facts.shared_bytes}; }

DeviceFacts usable_device_facts(const std::string& device, KernelSources& sources) {
  const std::optional<DeviceFacts> facts = device_facts(c10::Device(device));
  USER_CHECK(facts && facts->multiprocessors > 0, "{} runs no generated kernels", device);
  USER_CHECK(facts->compute_capability >= kOldestSm,
             "{} has compute capability {}.{}, and generated kernels need {}.{}", device,
             facts->compute_capability / 10, facts->compute_capability % 10, kOldestSm / 10, kOldestSm % 10);
  USER_CHECK(!facts->takes_machine_code || sources.machine_code.has_compiler(),
             "NVRTC, which makes kernels for {}, cannot be opened", device);
  return *facts;
}

std::vector<std::shared_ptr<DeviceProgram>> load_device_programs(const Schedule& schedule, KernelSources* sources) {
  if (schedule.programs.empty()) return {};
  INTERNAL_CHECK(sources != nullptr, "generated kernels without a generator");
  const c10::Device device(schedule.device);
  const DeviceFacts facts = usable_device_facts(schedule.device, *sources);
  USER_CHECK(facts.compute_capability == schedule.features.sm, "the Schedule is planned for {}, and {} is an sm_{}",
             to_text(schedule.features), schedule.device, facts.compute_capability);
  std::vector<DeviceCode> codes(schedule.programs.size());
  std::map<uint32_t, std::string> refused;
  std::mutex mutex;
  std::atomic<uint32_t> next = 0;
  const auto refuse = [&](uint32_t program, const std::exception& error) {
    const std::lock_guard lock(mutex);
    refused.emplace(program, error.what());
  };
  const auto work = [&] {
    for (uint32_t p = next++; p < codes.size(); p = next++) {
      try {
        codes[p] = code_of(schedule.programs[p], facts, sources->machine_code);
      } catch (const std::exception& error) {
        refuse(p, error);
      }
    }
  };
  {
    std::vector<std::jthread> others;
    const size_t threads = std::min<size_t>(codes.size(), std::max(1U, std::thread::hardware_concurrency()));
    for (size_t k = 1; k < threads; ++k) others.emplace_back(work);
    work();
  }
  std::vector<std::shared_ptr<DeviceProgram>> loaded(codes.size());
  for (uint32_t p = 0; p < codes.size(); ++p) {
    if (refused.contains(p)) continue;
    try {
      if (sources->before_compile) sources->before_compile(schedule.programs[p]);
      loaded[p] = load_device_program(device, std::move(codes[p]));
    } catch (const std::exception& error) {
      refuse(p, error);
    }
  }
  if (!refused.empty()) throw RefusedPrograms(std::move(refused));
  return loaded;
}

}  // namespace stepc
