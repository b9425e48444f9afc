#include "codegen/gpu_mapping.h"

#include <algorithm>
#include <bit>
#include <set>
#include <span>

#include "base/check.h"
#include "codegen/lane_groups.h"
#include "loops/expand_math.h"

namespace stepc {

namespace {

constexpr int64_t kWarp = 32;
constexpr int64_t kMostThreads = 1024;    // of a block
constexpr int64_t kElementsALane = 16;    // of a row, that may stay in registers
constexpr int64_t kHeldRegisters = 64;    // of 32 bits, for all that a lane holds
constexpr int64_t kMostChunkLanes = 256;  // of a piece of one long loop, which has turns enough
constexpr uint32_t kNoStep = static_cast<uint32_t>(-1);

int64_t ceil_quotient(int64_t count, int64_t by) { return (count + by - 1) / by; }
int64_t power_of_two_from(int64_t count) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
}

class KernelMapper {
 public:
  KernelMapper(const LoopProgram& program, const LoopPhase& phase, const GpuShape& gpu)
      : program_(program),
        phase_(phase),
        gpu_(gpu),
        code_(phase.instructions),
        groups_(program, phase),
        range_of_(code_.size(), kNoStep) {
    kernel_.held_of.assign(code_.size(), -1);
    kernel_.fills.assign(code_.size(), 0);
    kernel_.modes.assign(code_.size(), GpuMode::kEach);
    item_loop_ = static_cast<size_t>(std::ranges::find(code_, LoopOp::kLoop, &LoopInstruction::op) - code_.begin());
  }

  GpuKernel map() {
    add_compute(0, item_loop_);
    if (is_flat()) {
      map_flat();
    } else {
      map_rows();
    }
    return std::move(kernel_);
  }

 private:
  using Kind = GpuStep::Kind;

  // ---- loops

  [[nodiscard]] const LoopVariable& variable_of(size_t loop) const { return phase_.variables[code_[loop].loop]; }
  [[nodiscard]] int64_t turns_of(uint32_t variable) const {
    const LoopVariable& one = phase_.variables[variable];
    if (one.kind == LoopVariable::Kind::kItem) return phase_.items;
    return one.kind == LoopVariable::Kind::kChunk ? std::min(one.block, one.extent) : one.extent;
  }
  // The one loop right inside the body of `loop`; nothing: none or several, or the body does more than compute.
  [[nodiscard]] size_t only_loop_in(size_t loop) const {
    size_t found = 0;
    for (size_t i = loop + 1, end = end_of_loop(phase_, loop); i < end; ++i) {
      const LoopInstruction& one = code_[i];
      if (one.op == LoopOp::kStore || one.op == LoopOp::kAccumulator || is_accumulation(one.op)) return 0;
      if (one.op != LoopOp::kLoop) continue;
      if (found != 0) return 0;
      found = i;
      i = end_of_loop(phase_, i);
    }
    return found;
  }
  [[nodiscard]] bool has_loop(size_t begin, size_t end) const {
    return std::any_of(code_.begin() + static_cast<ptrdiff_t>(begin), code_.begin() + static_cast<ptrdiff_t>(end),
                       [](const LoopInstruction& one) { return one.op == LoopOp::kLoop; });
  }

  // From the item loop inward to the vector loop, where nothing but elements is made: one loop over all elements.
  bool is_flat() {
    size_t loop = item_loop_;
    spine_ = {code_[loop].loop};
    while (!variable_of(loop).vector) {
      const size_t inside = only_loop_in(loop);
      if (inside == 0) break;
      if (variable_of(inside).kind != LoopVariable::Kind::kCount) return false;
      loop = inside;
      spine_.push_back(code_[loop].loop);
    }
    const size_t end = end_of_loop(phase_, loop);
    if (!variable_of(loop).vector && (loop != item_loop_ || has_loop(loop + 1, end))) return false;
    int64_t elements = 1;
    for (uint32_t one : spine_) elements *= turns_of(one);
    // Few elements, each of them a long sum: lanes share its terms.
    return spine_.size() > 1 || !has_loop(loop + 1, end) || elements >= gpu_.multiprocessors * kMostThreads;
  }

  void map_flat() {
    GpuStep step = lanes_step(item_loop_);
    step.loops = spine_;
    step.extent = 1;
    for (uint32_t one : spine_) step.extent *= turns_of(one);
    kernel_.width = groups_.widest({&step, 1});
    kernel_.over_grid = true;
    set_modes(step);
    const int64_t threads = ceil_quotient(step.extent, kernel_.width);
    set_blocks(1, threads);
    kernel_.lanes = kernel_.blocks * kernel_.block;
    kernel_.steps.push_back(step);
  }

  // Blocks of 256 threads, of fewer where there would be fewer blocks than multiprocessors have room for.
  void set_blocks(int64_t lanes, int64_t teams) {
    int64_t block = std::max<int64_t>(256, lanes);
    while (block > std::max<int64_t>(64, lanes) && teams * lanes < 2 * gpu_.multiprocessors * block) block /= 2;
    kernel_.block = block;
    kernel_.blocks = ceil_quotient(teams * lanes, block);
  }

  // ---- rows

  [[nodiscard]] GpuStep lanes_step(size_t loop) const {
    GpuStep step;
    step.kind = Kind::kLanes;
    step.first = static_cast<uint32_t>(loop);
    step.last = static_cast<uint32_t>(end_of_loop(phase_, loop) + 1);
    return step;
  }

  // The loops of the item's body, and of a row loop's in it, whose turns go to lanes.
  void find_lanes(size_t begin, size_t end, std::vector<GpuStep>& out) {
    for (size_t i = begin; i < end; ++i) {
      if (code_[i].op != LoopOp::kLoop) continue;
      const size_t last = end_of_loop(phase_, i);
      if (variable_of(i).kind == LoopVariable::Kind::kChunk && !variable_of(i).vector) {
        find_lanes(i + 1, last, out);
      } else {
        GpuStep step = lanes_step(i);
        for (size_t loop = i; loop != 0; loop = only_loop_in(loop)) {
          if (loop != i && variable_of(loop).kind != LoopVariable::Kind::kCount) break;
          step.loops.push_back(code_[loop].loop);
          step.extent *= turns_of(code_[loop].loop);
          if (variable_of(loop).kind == LoopVariable::Kind::kChunk) break;
        }
        for (size_t k = i; k <= last; ++k) range_of_[k] = static_cast<uint32_t>(out.size());
        out.push_back(step);
      }
      i = last;
    }
  }

  void map_rows() {
    const size_t end = end_of_loop(phase_, item_loop_);
    std::vector<GpuStep> lanes;
    find_lanes(item_loop_ + 1, end, lanes);
    kernel_.teams = phase_.items;
    kernel_.interleaved = variable_of(item_loop_).vector;
    if (!kernel_.interleaved) kernel_.width = groups_.widest(lanes);
    choose_lanes(lanes);
    hold_rows(lanes);
    for (GpuStep& step : lanes) set_modes(step);
    add_steps(item_loop_ + 1, end, lanes, false);
    for (size_t h = 0; h < kernel_.held.size(); ++h) flush(static_cast<uint32_t>(h), lanes);
  }

  void choose_lanes(std::vector<GpuStep>& steps) {
    int64_t elements = 1;
    bool is_chunk = false;
    for (const GpuStep& step : steps) {
      elements = std::max(elements, step.extent);
      is_chunk = is_chunk || phase_.variables[step.loops[0]].kind == LoopVariable::Kind::kChunk;
    }
    if (kernel_.interleaved) {
      int64_t lanes = 1;
      while (lanes < kWarp && 8 * lanes < elements && kernel_.teams * lanes < gpu_.multiprocessors * kMostThreads)
        lanes *= 2;
      kernel_.lanes = lanes;
      kernel_.block = lanes * kWarp;
      kernel_.blocks = ceil_quotient(kernel_.teams, kWarp);
    } else {
      const int64_t turns = std::max<int64_t>(1, kElementsALane / kernel_.width);
      int64_t lanes = power_of_two_from(ceil_quotient(elements, kernel_.width));
      if (lanes > kWarp) lanes = power_of_two_from(ceil_quotient(elements, kernel_.width * turns));
      if (lanes < kWarp && elements > kWarp * kernel_.width) lanes = kWarp;
      if (lanes > kWarp) lanes = std::max<int64_t>(lanes, 128);
      kernel_.lanes = std::min(lanes, is_chunk ? kMostChunkLanes : kMostThreads);
      if (kernel_.lanes <= kWarp) {
        set_blocks(kernel_.lanes, kernel_.teams);
      } else {
        kernel_.block = kernel_.lanes;
        kernel_.blocks = kernel_.teams;
      }
    }
    for (GpuStep& step : steps) step.turns = ceil_quotient(step.extent, kernel_.lanes * kernel_.width);
  }

  // What is held in registers is there element by element, but for what a load fills.
  void set_modes(const GpuStep& step) {
    const std::vector<GpuMode> modes = groups_.modes_of(step, kernel_.width);
    for (uint32_t i = step.first; i < step.last; ++i) {
      const int32_t held = kernel_.held_of[i];
      const bool is_each = held >= 0 && (code_[i].op == LoopOp::kStore || is_written(static_cast<uint32_t>(held)));
      kernel_.modes[i] = is_each ? GpuMode::kEach : modes[i];
    }
  }

  // ---- what lanes hold

  struct Use {
    std::vector<uint32_t> instructions;
    std::vector<uint32_t> steps;  // that they stand in, each once
    bool stores = false;
    bool same = true;  // one index, in loops that go over the row alike
    bool inside = true;
  };

  [[nodiscard]] bool is_written(uint32_t held) const {
    const LoopBuffer::Kind kind = program_.buffers[kernel_.held[held].buffer].kind;
    return kind == LoopBuffer::Kind::kLocal || kind == LoopBuffer::Kind::kScratch;
  }

  void hold_rows(std::vector<GpuStep>& steps) {
    for (uint32_t b = 0; b < program_.buffers.size(); ++b)
      if (program_.buffers[b].kind == LoopBuffer::Kind::kLocal) hold_local(b, steps);
    for (uint32_t b = 0; b < program_.buffers.size(); ++b)
      if (program_.buffers[b].kind == LoopBuffer::Kind::kScratch) hold_shares(b, steps);
    for (uint32_t b = 0; b < program_.buffers.size(); ++b)
      if (program_.buffers[b].kind == LoopBuffer::Kind::kInput) hold_loads(b, steps);
  }

  [[nodiscard]] Use use_of(uint32_t buffer, const std::vector<GpuStep>& steps) const {
    Use use;
    for (uint32_t i = 0; i < code_.size(); ++i) {
      if (!is_access(code_[i].op) || code_[i].buffer != buffer) continue;
      if (range_of_[i] == kNoStep) {
        use.inside = false;
        continue;
      }
      use.stores = use.stores || code_[i].op == LoopOp::kStore;
      if (!use.instructions.empty()) {
        use.same = use.same && code_[use.instructions[0]].index == code_[i].index &&
                   steps[use.steps[0]].loops == steps[range_of_[i]].loops;
      }
      use.instructions.push_back(i);
      if (use.steps.empty() || use.steps.back() != range_of_[i]) use.steps.push_back(range_of_[i]);
    }
    return use;
  }

  [[nodiscard]] bool fits_registers(const GpuStep& step, int64_t element_bytes) const {
    const bool is_chunk = phase_.variables[step.loops[0]].kind == LoopVariable::Kind::kChunk;
    const int64_t count = step.turns * kernel_.width;
    return !is_chunk && count <= kElementsALane && registers_ + registers_of(count, element_bytes) <= kHeldRegisters;
  }
  static int64_t registers_of(int64_t count, int64_t element_bytes) { return ceil_quotient(count * element_bytes, 4); }

  void hold(const Use& use, GpuHeld held, std::vector<GpuStep>& steps) {
    held.buffer = code_[use.instructions[0]].buffer;
    held.index = code_[use.instructions[0]].index;
    if (held.place == GpuHeld::Place::kRegisters) {
      const GpuStep& step = steps[use.steps[0]];
      held.count = step.turns * kernel_.width;
      registers_ += registers_of(held.count, size_of(program_.buffers[held.buffer].dtype));
      for (uint32_t one : use.steps) steps[one].unrolled = true;
    }
    for (uint32_t i : use.instructions) kernel_.held_of[i] = static_cast<int32_t>(kernel_.held.size());
    kernel_.held.push_back(held);
  }

  // A thread's own memory on a CPU: in registers, else a row in shared memory, each element its lane's.
  void hold_local(uint32_t buffer, std::vector<GpuStep>& steps) {
    const Use use = use_of(buffer, steps);
    if (use.instructions.empty()) return;
    INTERNAL_CHECK(use.inside && use.same, "b{} is not the lanes' own", buffer);
    const int64_t bytes = size_of(program_.buffers[buffer].dtype);
    if (fits_registers(steps[use.steps[0]], bytes)) return hold(use, {}, steps);
    INTERNAL_CHECK(kernel_.teams_a_block() == 1, "b{} is of several rows in a block", buffer);
    GpuHeld held;
    held.place = GpuHeld::Place::kShared;
    held.count = program_.buffers[buffer].count;
    held.shared_byte = take_shared(held.count * bytes);
    hold(use, held, steps);
  }

  // A share of the sums over all rows is its lanes' until the last row, if their registers have room.
  void hold_shares(uint32_t buffer, std::vector<GpuStep>& steps) {
    const Use use = use_of(buffer, steps);
    if (!use.stores || !use.inside || !use.same || use.steps.size() < 2) return;
    if (!is_of_lanes(code_[use.instructions[0]].index, steps[use.steps[0]])) return;
    if (fits_registers(steps[use.steps[0]], size_of(program_.buffers[buffer].dtype))) hold(use, {}, steps);
  }

  // What is read again is held from the first loop on, if registers have room; else it is read again.
  void hold_loads(uint32_t buffer, std::vector<GpuStep>& steps) {
    std::vector<uint32_t> loads;
    for (uint32_t i = 0; i < code_.size(); ++i)
      if (is_access(code_[i].op) && code_[i].buffer == buffer && range_of_[i] != kNoStep && code_[i].args[0] < 0 &&
          code_[i].args[1] < 0)
        loads.push_back(i);
    for (uint32_t first : loads) {
      if (kernel_.held_of[first] >= 0) continue;
      const std::vector<GpuMode> modes = groups_.modes_of(steps[range_of_[first]], kernel_.width);
      if (kernel_.width > 1 && modes[first] != GpuMode::kWide) continue;
      Use use;
      for (uint32_t i : loads) {
        if (code_[i].index != code_[first].index || steps[range_of_[i]].loops != steps[range_of_[first]].loops ||
            parent_of(range_of_[i], steps) != parent_of(range_of_[first], steps))
          continue;
        use.instructions.push_back(i);
        if (use.steps.empty() || use.steps.back() != range_of_[i]) use.steps.push_back(range_of_[i]);
      }
      if (!is_of_lanes(code_[first].index, steps[range_of_[first]])) continue;
      const bool moves = std::ranges::any_of(
          steps[range_of_[first]].loops, [&](uint32_t loop) { return groups_.moves_with(code_[first].index, loop); });
      if (!moves || use.steps.size() < 2) continue;
      if (!fits_registers(steps[use.steps[0]], size_of(program_.buffers[buffer].dtype))) continue;
      hold(use, {}, steps);
      for (uint32_t i : use.instructions) kernel_.fills[i] = range_of_[i] == range_of_[first] ? 1 : 0;
    }
  }
  // Whether a lane's element stays the same in loops inside of its own.
  [[nodiscard]] bool is_of_lanes(const Affine& index, const GpuStep& step) const {
    for (uint32_t i = step.first; i < step.last; ++i) {
      if (code_[i].op != LoopOp::kLoop || std::ranges::find(step.loops, code_[i].loop) != step.loops.end()) continue;
      if (groups_.moves_with(index, code_[i].loop)) return false;
    }
    return true;
  }
  // The row loop that a step stands in.
  [[nodiscard]] uint32_t parent_of(uint32_t step, const std::vector<GpuStep>& steps) const {
    uint32_t parent = kNoStep;
    for (uint32_t i = 0; i < steps[step].first; ++i)
      if (code_[i].op == LoopOp::kLoop && end_of_loop(phase_, i) > steps[step].first) parent = i;
    return parent;
  }

  int64_t take_shared(int64_t bytes) {
    const int64_t at = kernel_.shared_bytes;
    kernel_.shared_bytes += ceil_quotient(bytes, 16) * 16;
    INTERNAL_CHECK(kernel_.shared_bytes <= gpu_.shared_bytes, "{} bytes of shared memory", kernel_.shared_bytes);
    return at;
  }

  // ---- steps

  void add(GpuStep step) { kernel_.steps.push_back(std::move(step)); }
  void add_compute(size_t begin, size_t end) {
    if (begin == end) return;
    GpuStep step;
    step.first = static_cast<uint32_t>(begin);
    step.last = static_cast<uint32_t>(end);
    add(step);
  }

  void add_steps(size_t begin, size_t end, const std::vector<GpuStep>& lanes, bool in_loop) {
    size_t start = begin;
    for (size_t i = begin; i < end; ++i) {
      const bool is_loop = code_[i].op == LoopOp::kLoop;
      if (!is_loop && code_[i].op != LoopOp::kFinish) continue;
      add_compute(start, i);
      start = i;
      if (!is_loop) {
        while (i < end && code_[i].op == LoopOp::kFinish) ++i;
        add_trees(start, i, in_loop);
        --i;
        continue;
      }
      const size_t last = end_of_loop(phase_, i);
      if (range_of_[i] != kNoStep) {
        add(lanes[range_of_[i]]);
      } else {
        GpuStep serial;
        serial.kind = Kind::kSerial;
        serial.first = static_cast<uint32_t>(i);
        add(serial);
        add_steps(i + 1, last, lanes, true);
        serial.kind = Kind::kSerialEnd;
        add(serial);
      }
      i = last;
      start = last + 1;
    }
    add_compute(start, end);
  }

  // Whether lanes have each a part of the accumulator's value.
  [[nodiscard]] bool is_spread(size_t accumulator) const {
    for (size_t i = accumulator; i < code_.size(); ++i)
      if (is_accumulation(code_[i].op) && static_cast<size_t>(code_[i].args[0]) == accumulator)
        return range_of_[i] != kNoStep && kernel_.lanes > 1;
    return false;
  }

  // The accumulators of some kFinish in a row, combined over the lanes; their parts meet in shared memory at once.
  void add_trees(size_t begin, size_t end, bool in_loop) {
    std::vector<GpuStep> trees;
    for (size_t i = begin; i < end; ++i) {
      GpuStep step;
      step.first = static_cast<uint32_t>(code_[i].args[0]);
      if (!is_spread(step.first)) continue;
      if (!kernel_.interleaved) {
        step.kind = Kind::kShuffle;
        step.count = std::min(kernel_.lanes, kWarp);
        add(step);
        if (kernel_.lanes <= kWarp) continue;
      }
      step.count = kernel_.interleaved ? kernel_.lanes : kernel_.lanes / kWarp;
      trees.push_back(step);
    }
    if (trees.empty()) return;
    GpuStep barrier;
    barrier.kind = Kind::kBarrier;
    if (in_loop) add(barrier);  // until all have read what the last turn put
    for (GpuStep& step : trees) {
      step.kind = Kind::kPut;
      step.shared_byte = take_shared((kernel_.interleaved ? kernel_.block : step.count) * 8);
      add(step);
    }
    add(barrier);
    for (GpuStep& step : trees) {
      step.kind = Kind::kTree;
      add(step);
    }
  }

  void flush(uint32_t held, const std::vector<GpuStep>& lanes) {
    const GpuHeld& one = kernel_.held[held];
    if (program_.buffers[one.buffer].kind != LoopBuffer::Kind::kScratch) return;
    for (uint32_t i = 0; i < code_.size(); ++i) {
      if (kernel_.held_of[i] != static_cast<int32_t>(held)) continue;
      GpuStep step = lanes[range_of_[i]];
      step.kind = Kind::kFlush;
      step.first = step.last = i;
      step.held = held;
      add(step);
      return;
    }
  }

  const LoopProgram& program_;
  const LoopPhase& phase_;
  const GpuShape& gpu_;
  const std::vector<LoopInstruction>& code_;
  LaneGroups groups_;
  std::vector<uint32_t> range_of_;  // by instruction: the kLanes step that it stands in
  size_t item_loop_ = 0;
  std::vector<uint32_t> spine_;
  int64_t registers_ = 0;
  GpuKernel kernel_;
};

// Lanes run a row's own instructions all of them, so what they read there may be written by one of them before others
// have read it.
bool is_read_by_its_lane(const GpuProgram& program, uint32_t input) {
  for (size_t p = 0; p < program.kernels.size(); ++p) {
    const LoopPhase& phase = program.loops.phases[p];
    std::vector<bool> in_lanes(phase.instructions.size(), false);
    for (const GpuStep& step : program.kernels[p].steps)
      if (step.kind == GpuStep::Kind::kLanes)
        for (uint32_t i = step.first; i < step.last; ++i) in_lanes[i] = true;
    for (size_t i = 0; i < phase.instructions.size(); ++i)
      if (is_access(phase.instructions[i].op) && phase.instructions[i].buffer == input && !in_lanes[i]) return false;
  }
  return true;
}

// What a phase reads and writes, by buffer; of buffers that may be one piece of memory, the one with the least number.
struct Touched {
  std::set<uint32_t> all, written;
};
Touched touched_by(const LoopPhase& phase, const LoopProgram& program) {
  Touched out;
  for (const LoopInstruction& one : phase.instructions) {
    if (!is_access(one.op) || program.buffers[one.buffer].kind == LoopBuffer::Kind::kLocal) continue;
    uint32_t buffer = one.buffer;
    for (const auto& [input, output] : program.in_place)
      if (output == one.buffer) buffer = std::min(buffer, input);
    out.all.insert(buffer);
    if (one.op == LoopOp::kStore) out.written.insert(buffer);
  }
  return out;
}
bool meet(const std::set<uint32_t>& a, const std::set<uint32_t>& b) {
  return std::ranges::any_of(a, [&](uint32_t buffer) { return b.contains(buffer); });
}

// Kernels over the grid take blocks of any size: those of a launch have the size of the largest.
void find_launches(GpuProgram& program, const GpuShape& gpu) {
  Touched together;  // by the launch
  for (size_t k = 0; k < program.kernels.size(); ++k) {
    const GpuKernel& kernel = program.kernels[k];
    const Touched own = touched_by(program.loops.phases[k], program.loops);
    const bool joins = k > 0 && kernel.over_grid && program.kernels[k - 1].over_grid &&
                       !meet(own.written, together.all) && !meet(together.written, own.all);
    if (!joins) {
      together = {};
      program.launches.push_back({k, 0, kernel.block, 0, kernel.shared_bytes});
    }
    GpuLaunch& launch = program.launches.back();
    ++launch.kernels;
    launch.block = std::max(launch.block, kernel.block);
    together.all.insert(own.all.begin(), own.all.end());
    together.written.insert(own.written.begin(), own.written.end());
  }
  for (GpuLaunch& launch : program.launches)
    for (size_t k = launch.first; k < launch.first + launch.kernels; ++k) {
      GpuKernel& kernel = program.kernels[k];
      if (kernel.block != launch.block) {
        kernel.blocks = ceil_quotient(kernel.blocks * kernel.block, launch.block);
        kernel.block = launch.block;
        kernel.lanes = kernel.blocks * kernel.block;
      }
      launch.blocks += kernel.blocks;
    }
  for (GpuLaunch& launch : program.launches) launch.alone = launch.blocks <= gpu.multiprocessors;
}

}  // namespace

LoopLimits loop_limits(const GpuShape& gpu) {
  constexpr int64_t kBlocksAMultiprocessor = 4;
  constexpr int64_t kForSums = 16384;
  constexpr int64_t kMostLocals = 2;
  LoopLimits limits;
  limits.chunks = gpu.multiprocessors * kBlocksAMultiprocessor;
  limits.local_bytes = std::max<int64_t>(0, (gpu.shared_bytes - kForSums) / kMostLocals);
  limits.earlier_sweeps = true;
  return limits;
}

LoopProgram lower_for_gpu(const Graph& group, const GpuShape& gpu) {
  LoopProgram program = lower(group, Together::kConnected, loop_limits(gpu));
  program.in_place = map_to_gpu(expand_math(program), gpu).loops.in_place;
  return program;
}

bool GpuKernel::synchronises() const {
  return std::ranges::any_of(steps, [](const GpuStep& step) {
    return step.kind == GpuStep::Kind::kShuffle || step.kind == GpuStep::Kind::kBarrier;
  });
}

bool GpuProgram::synchronises(const GpuLaunch& launch) const {
  const auto first = kernels.begin() + static_cast<ptrdiff_t>(launch.first);
  return std::any_of(first, first + static_cast<ptrdiff_t>(launch.kernels),
                     [](const GpuKernel& kernel) { return kernel.synchronises(); });
}

GpuProgram map_to_gpu(LoopProgram program, const GpuShape& gpu) {
  verify(program);
  GpuProgram out;
  out.loops = std::move(program);
  for (const LoopPhase& phase : out.loops.phases) out.kernels.push_back(KernelMapper(out.loops, phase, gpu).map());
  std::erase_if(out.loops.in_place, [&](const auto& pair) { return !is_read_by_its_lane(out, pair.first); });
  find_launches(out, gpu);
  return out;
}

}  // namespace stepc
