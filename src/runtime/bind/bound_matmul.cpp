// Products of one left operand as one blocked call, with the kernels that finish their tiles.
#include <array>

#include "base/check.h"
#include "kernels/matmul_call.h"
#include "runtime/bind/bound_kernel.h"

namespace stepc {

namespace {

using blocked::ceil_div;
using blocked::kTileColumns;
using blocked::kTileRows;

constexpr size_t kMostBuffers = 64;  // of an epilogue's kernel

class MatmulKernel final : public BoundKernel {
 public:
  MatmulKernel(const Instruction& instruction, const KernelParts& parts, BoundMatmul bound)
      : instruction_(instruction),
        call_(*instruction.matmul),
        kernels_(parts.micro_kernels),
        threads_(parts.schedule.threads),
        bound_(std::move(bound)) {
    USER_CHECK(call_.products.size() + call_.epilogue_inputs.size() + call_.epilogue_outputs.size() <= kMostBuffers,
               "{} tensors are too many to finish matmuls with", instruction.reads.size() + instruction.writes.size());
    for (size_t kind = 0; kind < call_.epilogue_programs.size(); ++kind) {
      const uint32_t program = call_.epilogue_programs[kind];
      if (program != kNoProgram) epilogues_[kind] = parts.programs[program];
    }
    scratch_ = scratch_of(call_, bound_, parts.schedule.programs, threads_);
    const auto bytes = [&](OperandId operand) { return size_of(parts.schedule.operands[operand.index()].dtype); };
    for (const TileBuffer& buffer : call_.epilogue_inputs)
      input_bytes_.push_back(bytes(instruction.reads[buffer.place]));
    for (const TileBuffer& buffer : call_.epilogue_outputs)
      output_bytes_.push_back(bytes(instruction.writes[buffer.place]));
  }

  void run(RunState& state) override {
    std::byte* const scratch = state.scratch_of(instruction_);
    std::array<blocked::Product, blocked::kMostProducts> products;
    blocked::Matmul call = bound_.call;
    call.products = {products.data(), bound_.products.size()};
    call.a.data = state.operands.data(instruction_.reads[call_.left]);
    const bool has_epilogue = !call_.epilogue_programs.empty();
    for (size_t p = 0; p < call.products.size(); ++p) {
      products[p] = bound_.products[p];
      products[p].b.data = state.operands.data(instruction_.reads[call_.products[p].right]);
      if (!has_epilogue) products[p].c = {state.operands.data(instruction_.writes[p]), call.type, products[p].n};
    }
    if (!has_epilogue) return blocked::matmul(call, kernels_, threads_, scratch);
    TileRun tiles{*this, {}, scratch + scratch_.matmul_bytes, nullptr};
    tiles.shares =
        reinterpret_cast<float*>(tiles.scratch + static_cast<uint64_t>(scratch_.workers) * scratch_.worker_bytes);
    size_t next = 0;
    for (const TileBuffer& buffer : call_.epilogue_inputs)
      tiles.buffers[next++] = static_cast<std::byte*>(state.operands.data(instruction_.reads[buffer.place]));
    for (const TileBuffer& buffer : call_.epilogue_outputs)
      tiles.buffers[next++] = static_cast<std::byte*>(state.operands.data(instruction_.writes[buffer.place]));
    call.finish = [](std::span<const blocked::TileRef> at, int worker, void* context) {
      const auto& run = *static_cast<const TileRun*>(context);
      run.kernel.finish(at, worker, run);
    };
    call.context = &tiles;
    blocked::matmul(call, kernels_, threads_, scratch);
    add_up_shares(state, tiles.shares);
  }

 private:
  // The data that the tiles of one run share.
  struct TileRun {
    const MatmulKernel& kernel;
    std::array<std::byte*, kMostBuffers> buffers;  // of the epilogue: its inputs behind the products, then its outputs
    std::byte* scratch;                            // of all workers' kernels
    float* shares;
  };

  [[nodiscard]] int64_t tile_columns() const { return ceil_div(bound_.products[0].n, kTileColumns); }
  [[nodiscard]] int64_t tiles() const { return ceil_div(bound_.call.m, kTileRows) * tile_columns(); }
  void finish(std::span<const blocked::TileRef> tiles, int worker, const TileRun& run) const {
    const blocked::TileRef& at = tiles.front();
    std::array<void*, kMostBuffers> buffers;
    size_t next = 0;
    for (const blocked::TileRef& tile : tiles) buffers[next++] = tile.values;
    size_t from = 0;
    const auto moved = [&](const TileBuffer& buffer, int64_t bytes) {
      return run.buffers[from++] + (at.row * buffer.row_stride + at.column * buffer.column_stride) * bytes;
    };
    for (size_t i = 0; i < call_.epilogue_inputs.size(); ++i)
      buffers[next++] = moved(call_.epilogue_inputs[i], input_bytes_[i]);
    float* share = run.shares + at.row / kTileRows * tile_columns() + at.column / kTileColumns;
    for (size_t o = 0; o < call_.epilogue_outputs.size(); ++o) {
      void* output = moved(call_.epilogue_outputs[o], output_bytes_[o]);
      if (call_.epilogue_outputs[o].is_share) {
        output = share;
        share += this->tiles();
      }
      buffers[next++] = output;
    }
    const size_t kind = tile_kind(at.rows == std::min(bound_.call.m, kTileRows),
                                  at.columns == std::min(bound_.products[0].n, kTileColumns));
    for (const KernelPhase& phase : epilogues_[kind]->phases)
      phase.run(buffers.data(), 0, phase.items, run.scratch + static_cast<uint64_t>(worker) * scratch_.worker_bytes);
  }

  // Adds the shares in the order of the tiles, so the bits do not depend on threads.
  void add_up_shares(RunState& state, const float* shares) const {
    for (const TileBuffer& buffer : call_.epilogue_outputs) {
      if (!buffer.is_share) continue;
      double sum = 0;
      for (int64_t tile = 0; tile < tiles(); ++tile) sum += static_cast<double>(*shares++);
      *static_cast<float*>(state.operands.data(instruction_.writes[buffer.place])) = static_cast<float>(sum);
    }
  }

  const Instruction& instruction_;
  const MatmulCall& call_;
  const blocked::MicroKernels& kernels_;
  int threads_;
  BoundMatmul bound_;
  std::array<std::shared_ptr<const Kernel>, kTileKinds> epilogues_;
  MatmulScratch scratch_;
  std::vector<int64_t> input_bytes_, output_bytes_;  // of an element, by epilogue buffer
};

}  // namespace

std::unique_ptr<BoundKernel> bind_matmul(const Instruction& instruction, const KernelParts& parts) {
  INTERNAL_CHECK(instruction.matmul.has_value(), "a matmul without its call");
  auto bound = bind_matmul(*instruction.matmul, layouts_of(parts.schedule, instruction.reads), parts.schedule.features);
  USER_CHECK(bound.has_value(), "the blocked matmul does not take its operands");
  return std::make_unique<MatmulKernel>(instruction, parts, std::move(*bound));
}

}  // namespace stepc
