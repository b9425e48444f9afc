#include "codegen/gpu_interpreter.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/check.h"
#include "codegen/gpu_shadow.h"
#include "codegen/gpu_thread.h"
#include "codegen/loop_scalar.h"

namespace stepc {

namespace {

constexpr size_t kWarpThreads = 32;
constexpr int64_t kSlot = 8;  // bytes of a part of a sum in shared memory

struct AccessProblem {
  std::string what;
};

// Who touched memory in a launch: its kernels run beside each other.
struct LaunchShadow {
  LaunchShadow(const GpuProgram& program, const std::vector<std::span<uint8_t>>& memory) {
    for (size_t b = 0; b < memory.size(); ++b) {
      const auto same = std::ranges::find(memory.begin(), memory.begin() + static_cast<ptrdiff_t>(b), memory[b].data(),
                                          [](std::span<uint8_t> one) { return one.data(); });
      const auto found = static_cast<size_t>(same - memory.begin());
      of.push_back(found < b && !memory[b].empty() ? of[found] : shadows.size());
      if (of[b] == shadows.size()) shadows.emplace_back(static_cast<size_t>(program.loops.buffers[b].count));
    }
  }
  std::vector<size_t> of;  // by buffer
  std::vector<ShadowElements> shadows;
  int64_t epoch = 0, blocks = 0;  // that have run
};

class KernelRun {
 public:
  KernelRun(const GpuProgram& program, size_t number, const std::vector<std::span<uint8_t>>& memory,
            LaunchShadow& shadow, GpuFindings& findings)
      : program_(program),
        phase_(program.loops.phases[number]),
        code_(phase_.instructions),
        kernel_(program.kernels[number]),
        memory_(memory),
        shadow_(shadow),
        findings_(findings) {
    for (size_t i = 0; i < code_.size(); ++i)
      ends_.push_back(code_[i].op == LoopOp::kLoop ? end_of_loop(phase_, i) : 0);
    find_streams();
  }

  void run() {
    for (block_ = 0; block_ < kernel_.blocks; ++block_) run_block();
    shadow_.blocks += kernel_.blocks;
  }

 private:
  using Kind = GpuStep::Kind;

  void run_block() {
    ++shadow_.epoch;
    shared_.assign(static_cast<size_t>(kernel_.shared_bytes), 0xEE);
    shared_shadow_ = ShadowElements(shared_.size());
    threads_.resize(static_cast<size_t>(kernel_.block));
    for (size_t t = 0; t < threads_.size(); ++t)
      threads_[t].place(program_.loops, phase_, kernel_, block_, static_cast<int64_t>(t));
    struct Open {
      size_t step;
      int64_t turn;
    };
    std::vector<Open> open;
    for (size_t s = 0; s < kernel_.steps.size(); ++s) {
      const GpuStep& step = kernel_.steps[s];
      if (step.kind == Kind::kSerial) {
        open.push_back({s, 0});
        begin_turn(step, 0);
      } else if (step.kind == Kind::kSerialEnd) {
        if (++open.back().turn < phase_.variables[code_[step.first].loop].block) {
          s = open.back().step;
          begin_turn(step, open.back().turn);
        } else {
          open.pop_back();
          for (GpuThread& thread : threads_) thread.is_live = thread.is_in_grid;
        }
      } else {
        run_step(step);
      }
    }
  }

  void begin_turn(const GpuStep& step, int64_t turn) {
    const uint32_t loop = code_[step.first].loop;
    const LoopVariable& variable = phase_.variables[loop];
    for (GpuThread& thread : threads_) {
      const int64_t at = thread.variables[0] * variable.block + turn;
      thread.is_live = thread.is_in_grid && at < variable.extent;
      thread.set(phase_, loop, std::min(at, variable.extent - 1));
    }
  }

  void run_step(const GpuStep& step) {
    switch (step.kind) {
      case Kind::kCompute:
        for (GpuThread& thread : threads_)
          for (uint32_t i = step.first; i < step.last; ++i) run_alone(thread, i);
        break;
      case Kind::kLanes:
      case Kind::kFlush:
        for (size_t t = 0; t < threads_.size(); ++t) {
          warp_.begin_thread();
          run_lanes(threads_[t], step);
          if (t % kWarpThreads == kWarpThreads - 1) count_sectors();
        }
        break;
      case Kind::kShuffle:
        shuffle(step.first, static_cast<size_t>(step.count));
        break;
      case Kind::kPut:
        put(step);
        break;
      case Kind::kBarrier:
        ++shadow_.epoch;
        break;
      case Kind::kTree:
        combine_parts(step);
        break;
      default:
        break;
    }
  }

  // Outside of lanes: all lanes compute, the first stores, and rows that there are not add nothing.
  void run_alone(GpuThread& thread, uint32_t i) {
    const LoopInstruction& one = code_[i];
    if (one.op == LoopOp::kStore && (thread.lane != 0 || !thread.is_live)) return;
    if (is_accumulation(one.op) && !thread.is_live) return;
    execute(thread, i);
  }

  // ---- lanes

  void run_lanes(GpuThread& thread, const GpuStep& step) {
    const int64_t width = kernel_.width;
    const uint32_t innermost = step.loops.back();
    for (turn_ = 0; turn_ < step.turns; ++turn_) {
      const int64_t element = (turn_ * kernel_.lanes + thread.lane) * width;
      if (!thread.is_live || element >= step.extent || !thread.set_all(phase_, step, element)) continue;
      const int64_t first = thread.variables[innermost];
      place_ = 0;
      if (step.kind == Kind::kFlush) {
        flush(thread, step, first);
        continue;
      }
      if (width > 1)
        for (uint32_t i = step.first; i < step.last; ++i) {
          if (kernel_.modes[i] == GpuMode::kOnce) execute(thread, i);
          if (kernel_.modes[i] != GpuMode::kWide) continue;
          wide_[i].assign(static_cast<size_t>(width), 0);
          if (code_[i].op == LoopOp::kLoad) load_wide(thread, i);
        }
      for (place_ = 0; place_ < width; ++place_) {
        thread.set(phase_, innermost, first + place_);
        run_each(thread, step, step.first, step.last);
      }
      place_ = 0;
      thread.set(phase_, innermost, first);
      for (uint32_t i = step.first; i < step.last; ++i)
        if (kernel_.modes[i] == GpuMode::kWide && code_[i].op == LoopOp::kStore) store_wide(thread, i);
    }
  }

  void run_each(GpuThread& thread, const GpuStep& step, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      const LoopInstruction& one = code_[i];
      if (one.op == LoopOp::kEnd || kernel_.modes[i] == GpuMode::kOnce) continue;
      if (one.op == LoopOp::kLoop) {
        if (std::ranges::find(step.loops, one.loop) != step.loops.end()) continue;
        const auto last = static_cast<uint32_t>(ends_[i]);
        for (int64_t turn = 0; turn < phase_.variables[one.loop].extent; ++turn) {
          thread.set(phase_, one.loop, turn);
          run_each(thread, step, i + 1, last);
        }
        i = last;
      } else if (kernel_.modes[i] != GpuMode::kWide) {
        execute(thread, i);
      } else if (one.op == LoopOp::kLoad) {
        thread.values[i] = wide_[i][static_cast<size_t>(place_)];
      } else {
        wide_[i][static_cast<size_t>(place_)] = thread.values[static_cast<size_t>(one.args[0])];
      }
    }
  }

  [[nodiscard]] bool is_read(const GpuThread& thread, const LoopInstruction& load) const {
    return load.args[1] < 0 || thread.values[static_cast<size_t>(load.args[1])] != 0;
  }

  void load_wide(GpuThread& thread, uint32_t i) {
    const LoopInstruction& one = code_[i];
    const LoopBuffer& buffer = program_.loops.buffers[one.buffer];
    const auto width = static_cast<size_t>(kernel_.width);
    if (!is_read(thread, one)) return;
    const auto size = static_cast<size_t>(size_of(buffer.dtype));
    const int32_t held = kernel_.held_of[i];
    const uint8_t* from = nullptr;
    if (held < 0 || kernel_.fills[i] != 0) {
      const int64_t at = position(thread, one);
      check(thread, i, at, kernel_.width, false);
      from = memory_[one.buffer].data() + static_cast<size_t>(at) * size;
      if (held >= 0) std::memcpy(held_at(thread, static_cast<uint32_t>(held)), from, width * size);
    } else {
      from = held_at(thread, static_cast<uint32_t>(held));
    }
    for (size_t k = 0; k < width; ++k) wide_[i][k] = loaded(buffer.dtype, from + k * size);
  }

  void store_wide(GpuThread& thread, uint32_t i) {
    const LoopInstruction& one = code_[i];
    const DType dtype = program_.loops.buffers[one.buffer].dtype;
    const int64_t at = position(thread, one);
    check(thread, i, at, kernel_.width, true);
    for (int64_t k = 0; k < kernel_.width; ++k)
      stored(dtype, wide_[i][static_cast<size_t>(k)], memory_[one.buffer].data() + (at + k) * size_of(dtype));
  }

  // Where the element that the thread is at is held in its registers.
  uint8_t* held_at(GpuThread& thread, uint32_t held) const {
    const int64_t size = size_of(program_.loops.buffers[kernel_.held[held].buffer].dtype);
    const int64_t at = (turn_ * kernel_.width + place_) * size;
    if (at + size > static_cast<int64_t>(thread.held[held].size()))
      throw AccessProblem{str("h{} has no such element", held)};
    return thread.held[held].data() + at;
  }

  void flush(GpuThread& thread, const GpuStep& step, int64_t first) {
    const GpuHeld& held = kernel_.held[step.held];
    const int64_t size = size_of(program_.loops.buffers[held.buffer].dtype);
    const bool is_wide = held.index.stride_of(step.loops.back()) == 1;
    for (place_ = 0; place_ < kernel_.width; ++place_) {
      thread.set(phase_, step.loops.back(), first + place_);
      const int64_t at = thread.value_of(held.index);
      if (!is_wide || place_ == 0) check(thread, step.first, at, is_wide ? kernel_.width : 1, true);
      std::memcpy(memory_[held.buffer].data() + at * size, held_at(thread, step.held), static_cast<size_t>(size));
    }
  }

  // ---- instructions

  static int64_t position(const GpuThread& thread, const LoopInstruction& one) {
    int64_t at = thread.value_of(one.index);
    if (one.op == LoopOp::kLoad && one.args[0] >= 0)
      at += static_cast<int64_t>(thread.values[static_cast<size_t>(one.args[0])]) * one.indirect;
    return at;
  }

  void execute(GpuThread& thread, uint32_t i) {
    const LoopInstruction& one = code_[i];
    const auto value = [&](size_t k) -> ScalarBits& { return thread.values[static_cast<size_t>(one.args[k])]; };
    switch (one.op) {
      case LoopOp::kLoop:
      case LoopOp::kEnd:
        return;
      case LoopOp::kConstant:
      case LoopOp::kAccumulator:
        thread.values[i] = constant_bits(one);
        return;
      case LoopOp::kIndex:
        thread.values[i] = scalar_of(thread.value_of(one.index));
        return;
      case LoopOp::kFinish:
        thread.values[i] = value(0);
        return;
      case LoopOp::kAccumulate:
        value(0) = combined(code_[static_cast<size_t>(one.args[0])].combine, one.type, value(0), value(1));
        return;
      case LoopOp::kAccumulateProduct: {
        LoopInstruction sum;
        sum.op = LoopOp::kFma;
        const ScalarBits args[] = {value(1), value(2), value(0)};
        value(0) = evaluate(sum, one.type, args);
        return;
      }
      case LoopOp::kLoad:
        thread.values[i] = is_read(thread, one) ? loaded(dtype_of(one), element(thread, i, false)) : 0;
        return;
      case LoopOp::kStore:
        stored(dtype_of(one), value(0), element(thread, i, true));
        return;
      default:
        compute(thread, i);
    }
  }
  [[nodiscard]] DType dtype_of(const LoopInstruction& one) const { return program_.loops.buffers[one.buffer].dtype; }

  void compute(GpuThread& thread, uint32_t i) const {
    const LoopInstruction& one = code_[i];
    ScalarBits args[3] = {};
    const size_t count = operand_count(one.op);
    for (size_t k = 0; k < count; ++k) args[k] = thread.values[static_cast<size_t>(one.args[k])];
    const ValueType from = code_[static_cast<size_t>(one.args[0])].type;
    thread.values[i] = evaluate(one, from, std::span(args, count));
  }

  // The element of an access that is not wide: in memory, or held.
  uint8_t* element(GpuThread& thread, uint32_t i, bool is_store) {
    const LoopInstruction& one = code_[i];
    const int64_t size = size_of(dtype_of(one));
    const int32_t number = kernel_.held_of[i];
    if (number < 0) {
      const int64_t at = position(thread, one);
      check(thread, i, at, 1, is_store);
      return memory_[one.buffer].data() + at * size;
    }
    const auto held = static_cast<uint32_t>(number);
    if (kernel_.held[held].place == GpuHeld::Place::kShared) {
      const int64_t at = kernel_.held[held].shared_byte + position(thread, one) * size;
      return shared_at(thread, at, size, is_store);
    }
    uint8_t* place = held_at(thread, held);
    if (kernel_.fills[i] != 0) {
      const int64_t at = position(thread, one);
      check(thread, i, at, 1, false);
      std::memcpy(place, memory_[one.buffer].data() + at * size, static_cast<size_t>(size));
    }
    return place;
  }

  // ---- memory

  // Threads and blocks of the launch.
  [[nodiscard]] ThreadTime time_of(const GpuThread& thread) const {
    return {thread.number + shadow_.blocks * kernel_.block, thread.block + shadow_.blocks, shadow_.epoch};
  }

  void check(const GpuThread& thread, uint32_t i, int64_t at, int64_t count, bool is_store) {
    const uint32_t b = code_[i].buffer;
    ShadowElements& shadow = shadow_.shadows[shadow_.of[b]];
    const int64_t size = size_of(program_.loops.buffers[b].dtype);
    if (at < 0 || at + count > program_.loops.buffers[b].count)
      throw AccessProblem{
          str("v{}: thread {} is at b{}[{}] of {}", i, thread.number, b, at, program_.loops.buffers[b].count)};
    if (count > 1 && at * size % (count * size) != 0)
      throw AccessProblem{str("v{}: {} bytes at b{}[{}] are not aligned", i, count * size, b, at)};
    const ThreadTime now = time_of(thread);
    for (int64_t k = at; k < at + count; ++k) {
      const auto one = static_cast<size_t>(k);
      const int64_t rival = is_store ? shadow.write(one, now) : shadow.read(one, now);
      if (rival >= 0)
        throw AccessProblem{str("v{}: thread {} {} b{}[{}] beside thread {}", i, thread.number,
                                is_store ? "writes" : "reads", b, k, rival)};
    }
    if (is_stream_[i]) warp_.add(i, at * size, count * size);
  }

  uint8_t* shared_at(const GpuThread& thread, int64_t at, int64_t bytes, bool is_store) {
    if (at < 0 || at + bytes > static_cast<int64_t>(shared_.size()))
      throw AccessProblem{str("thread {} is at byte {} of {} shared ones", thread.number, at, shared_.size())};
    const ThreadTime now = time_of(thread);
    for (int64_t k = at; k < at + bytes; ++k) {
      const auto one = static_cast<size_t>(k);
      if (!is_store && !shared_shadow_.is_written(one))
        throw AccessProblem{str("thread {} reads shared byte {}, which nobody has written", thread.number, k)};
      const int64_t rival = is_store ? shared_shadow_.write(one, now) : shared_shadow_.read(one, now);
      if (rival >= 0)
        throw AccessProblem{str("thread {} {} shared byte {} beside thread {}", thread.number,
                                is_store ? "writes" : "reads", k, rival)};
    }
    return shared_.data() + at;
  }

  // Accesses that move by one element along the lanes, or from team to team where these are neighbours.
  void find_streams() {
    is_stream_.assign(code_.size(), false);
    for (const GpuStep& step : kernel_.steps) {
      if (step.kind != Kind::kLanes) continue;
      const uint32_t along = kernel_.interleaved ? 0 : step.loops.back();
      for (uint32_t i = step.first; i < step.last; ++i) {
        const LoopInstruction& one = code_[i];
        const bool is_load = one.op == LoopOp::kLoad && one.args[0] < 0 && one.args[1] < 0;
        is_stream_[i] = (is_load || one.op == LoopOp::kStore) && one.index.stride_of(along) == 1;
      }
    }
  }

  void count_sectors() {
    const WarpAccesses::Sectors sectors = warp_.end_warp();
    findings_.sectors += sectors.touched;
    findings_.least_sectors += sectors.least;
  }

  // ---- sums over lanes

  void shuffle(uint32_t accumulator, size_t count) {
    const LoopInstruction& one = code_[accumulator];
    for (size_t offset = count / 2; offset > 0; offset /= 2) {
      std::vector<ScalarBits> before;
      for (const GpuThread& thread : threads_) before.push_back(thread.values[accumulator]);
      for (size_t t = 0; t < threads_.size(); ++t)
        threads_[t].values[accumulator] = combined(one.combine, one.type, before[t], before[t ^ offset]);
    }
  }

  void put(const GpuStep& step) {
    for (size_t t = 0; t < threads_.size(); ++t) {
      if (!kernel_.interleaved && t % kWarpThreads != 0) continue;
      const size_t slot = kernel_.interleaved ? t : t / kWarpThreads;
      const int64_t at = step.shared_byte + static_cast<int64_t>(slot) * kSlot;
      std::memcpy(shared_at(threads_[t], at, kSlot, true), &threads_[t].values[step.first], kSlot);
    }
  }

  ScalarBits part(const GpuThread& thread, const GpuStep& step, size_t slot) {
    ScalarBits value = 0;
    const int64_t at = step.shared_byte + static_cast<int64_t>(slot) * kSlot;
    std::memcpy(&value, shared_at(thread, at, kSlot, false), kSlot);
    return value;
  }

  void combine_parts(const GpuStep& step) {
    const LoopInstruction& one = code_[step.first];
    const auto count = static_cast<size_t>(step.count);
    for (size_t t = 0; t < threads_.size(); ++t) {
      ScalarBits& value = threads_[t].values[step.first];
      value = part(threads_[t], step, t % (kernel_.interleaved ? kWarpThreads : count));
      if (!kernel_.interleaved) continue;
      for (size_t y = 1; y < count; ++y)
        value = combined(one.combine, one.type, value, part(threads_[t], step, t % kWarpThreads + y * kWarpThreads));
    }
    if (!kernel_.interleaved) shuffle(step.first, count);
  }

  const GpuProgram& program_;
  const LoopPhase& phase_;
  const std::vector<LoopInstruction>& code_;
  const GpuKernel& kernel_;
  const std::vector<std::span<uint8_t>>& memory_;
  LaunchShadow& shadow_;
  GpuFindings& findings_;
  std::vector<size_t> ends_;  // by instruction that is a loop
  std::vector<bool> is_stream_;

  int64_t block_ = 0;
  int64_t turn_ = 0, place_ = 0;  // of the lanes step that a thread is in
  std::vector<GpuThread> threads_;
  std::vector<uint8_t> shared_;
  ShadowElements shared_shadow_{0};
  std::map<uint32_t, std::vector<ScalarBits>> wide_;  // by instruction
  WarpAccesses warp_;
};

}  // namespace

GpuFindings interpret(const GpuProgram& program, const std::vector<std::span<uint8_t>>& buffers) {
  GpuFindings findings;
  std::vector<uint8_t> scratch(static_cast<size_t>(program.loops.scratch_bytes), 0xEE);
  std::vector<std::span<uint8_t>> memory = buffers;
  for (size_t b = memory.size(); b < program.loops.buffers.size(); ++b) {
    const LoopBuffer& buffer = program.loops.buffers[b];
    const auto bytes = static_cast<size_t>(buffer.count * size_of(buffer.dtype));
    const bool is_scratch = buffer.kind == LoopBuffer::Kind::kScratch;
    memory.push_back(is_scratch ? std::span(scratch).subspan(static_cast<size_t>(buffer.scratch_byte), bytes)
                                : std::span<uint8_t>());
  }
  for (size_t b = 0; b < memory.size(); ++b) {
    const LoopBuffer& buffer = program.loops.buffers[b];
    const bool fits = memory[b].size() >= static_cast<size_t>(buffer.count * size_of(buffer.dtype));
    INTERNAL_CHECK(fits || buffer.kind == LoopBuffer::Kind::kLocal, "b{} is given {} bytes", b, memory[b].size());
  }
  try {
    for (const GpuLaunch& launch : program.launches) {
      LaunchShadow shadow(program, memory);
      for (size_t k = launch.first; k < launch.first + launch.kernels; ++k)
        KernelRun(program, k, memory, shadow, findings).run();
    }
  } catch (const AccessProblem& problem) {
    findings.problem = problem.what;
  }
  return findings;
}

}  // namespace stepc
