// Text form of a GpuProgram, as the head of gpu_mapping.h shows it.
#include "base/text.h"
#include "codegen/gpu_mapping.h"

namespace stepc {

namespace {

std::string marked(const GpuKernel& kernel, const GpuStep& step, GpuMode mode, std::string_view word) {
  std::string out;
  for (uint32_t i = step.first; i < step.last; ++i)
    if (kernel.modes[i] == mode) out += str(" v{}", i);
  return out.empty() ? out : str("; {}{}", word, out);
}

std::string step_text(const GpuKernel& kernel, const GpuStep& step) {
  std::string loops;
  for (uint32_t loop : step.loops) loops += str(" i{}", loop);
  switch (step.kind) {
    case GpuStep::Kind::kCompute:
      return str("compute v{} to v{}", step.first, step.last - 1);
    case GpuStep::Kind::kSerial:
      return str("serial v{}", step.first);
    case GpuStep::Kind::kSerialEnd:
      return "end";
    case GpuStep::Kind::kLanes:
      return str("lanes{} of {}, turns {}{}: v{} to v{}{}{}", loops, step.extent, step.turns,
                 step.unrolled ? " unrolled" : "", step.first, step.last - 1,
                 marked(kernel, step, GpuMode::kOnce, "once"), marked(kernel, step, GpuMode::kWide, "wide"));
    case GpuStep::Kind::kFlush:
      return str("flush h{} over{} of {}, turns {}", step.held, loops, step.extent, step.turns);
    case GpuStep::Kind::kShuffle:
      return str("shuffle v{} over {}", step.first, step.count);
    case GpuStep::Kind::kPut:
      return str("put v{} at {}", step.first, step.shared_byte);
    case GpuStep::Kind::kBarrier:
      return "barrier";
    case GpuStep::Kind::kTree:
      return str("tree v{} of {} at {}", step.first, step.count, step.shared_byte);
  }
  return {};
}

}  // namespace

std::string to_text(const GpuProgram& program) {
  std::string out = to_text(program.loops);
  for (size_t p = 0; p < program.kernels.size(); ++p) {
    const GpuKernel& kernel = program.kernels[p];
    out += str("kernel {}: ", p);
    if (kernel.over_grid)
      out += "the grid";
    else
      out += str("{} teams of {} {}lanes", kernel.teams, kernel.lanes, kernel.interleaved ? "interleaved " : "");
    out += str(", width {}, {} blocks of {}", kernel.width, kernel.blocks, kernel.block);
    out += kernel.shared_bytes > 0 ? str(", shared {} bytes\n", kernel.shared_bytes) : "\n";
    for (size_t h = 0; h < kernel.held.size(); ++h) {
      const GpuHeld& held = kernel.held[h];
      const bool in_registers = held.place == GpuHeld::Place::kRegisters;
      out += str("  h{} = b{}[{}], {} {}\n", h, held.buffer, to_text(held.index), held.count,
                 in_registers ? "in registers" : str("in shared memory at {}", held.shared_byte));
    }
    std::string indent = "  ";
    for (const GpuStep& step : kernel.steps) {
      if (step.kind == GpuStep::Kind::kSerialEnd) indent.resize(indent.size() - 2);
      out += indent + step_text(kernel, step) + "\n";
      if (step.kind == GpuStep::Kind::kSerial) indent += "  ";
    }
  }
  for (const GpuLaunch& launch : program.launches)
    if (launch.kernels > 1)
      out += str("launch: kernels {} to {}, {} blocks of {}\n", launch.first, launch.first + launch.kernels - 1,
                 launch.blocks, launch.block);
  return out;
}

}  // namespace stepc
