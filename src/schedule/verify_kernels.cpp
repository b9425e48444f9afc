#include "schedule/verify_kernels.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/check.h"
#include "kernels/gpu_choice.h"
#include "kernels/kernel_choice.h"
#include "ops/attention_operands.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Kind = Instruction::Kind;
using blocked::kTileColumns;
using blocked::kTileRows;

// Where tiles of a kind begin last along one dimension; -1: there is none of the kind.
int64_t last_begin(int64_t size, int64_t tile, bool whole) {
  if (size == 0) return -1;
  if (size <= tile) return whole ? 0 : -1;
  if (!whole) return size % tile == 0 ? -1 : size / tile * tile;
  return (size / tile - 1) * tile;
}

class KernelVerifier {
 public:
  explicit KernelVerifier(const Schedule& schedule) : schedule_(schedule) {}

  void run() {
    for (at_ = 0; at_ < schedule_.instructions.size(); ++at_) {
      const Instruction& one = schedule_.instructions[at_];
      try {
        check(one);
      } catch (const InternalError& error) {
        throw InternalError(str("i{} ({} {}): {}", at_, name_of(one.kind), one.op, error.what()));
      }
    }
  }

 private:
  void check(const Instruction& one) const {
    switch (one.kind) {
      case Kind::kGenerated:
        return check_types(schedule_.programs[one.program], one.reads, one.writes);
      case Kind::kMatmul:
        return check_matmul(one, *one.matmul);
      case Kind::kAttention:
        return check_attention(one);
      case Kind::kLoss:
        return check_loss(one);
      case Kind::kOp:
        return check_row(one);
      default:
        return;
    }
  }

  [[nodiscard]] const Operand& operand(OperandId id) const { return schedule_.operands[id.index()]; }
  [[nodiscard]] TensorLayout layout(OperandId id) const {
    return {{operand(id).dtype, operand(id).sizes}, operand(id).strides};
  }
  [[nodiscard]] std::vector<TensorLayout> layouts(const std::vector<OperandId>& ids) const {
    std::vector<TensorLayout> out;
    for (OperandId id : ids) out.push_back(layout(id));
    return out;
  }
  // Elements of the operand's type from where it begins to the end of its buffer.
  [[nodiscard]] int64_t room(OperandId id) const {
    const uint64_t bytes = schedule_.buffers[operand(id).buffer.index()].bytes;
    return static_cast<int64_t>(bytes / static_cast<uint64_t>(size_of(operand(id).dtype))) - operand(id).offset;
  }

  [[nodiscard]] static OwnKernel kernel_of(const Instruction& one) {
    const OpDef* row = find_op(one.op);
    return row == nullptr ? OwnKernel::kNone : row->kernel;
  }
  // Against the op's row: arity, attributes, types.
  void check_row(const Instruction& one) const {
    const OpDef* row = find_op(one.op);
    INTERNAL_CHECK(row != nullptr, "no op is named '{}'", one.op);
    OpCall call{{}, one.attrs};
    for (OperandId read : one.reads) call.inputs.push_back(layout(read).type);
    INTERNAL_CHECK(complete_attrs(*row, one.attrs) == one.attrs, "attributes {} lack some", to_text(one.attrs));
    const std::vector<TensorType> types = infer_types(*row, call);
    INTERNAL_CHECK_EQ(types.size(), one.writes.size(), "results");
    for (size_t w = 0; w < types.size(); ++w)
      INTERNAL_CHECK(types[w] == layout(one.writes[w]).type, "%{} is {} and the op makes {}", one.writes[w],
                     to_text(layout(one.writes[w]).type), to_text(types[w]));
  }

  // Beyond the op's row, which leaves to ATen what ATen would check.
  void check_attention(const Instruction& one) const {
    const bool backward = kernel_of(one) == OwnKernel::kAttentionBackward;
    INTERNAL_CHECK(backward || kernel_of(one) == OwnKernel::kAttention, "no attention");
    check_row(one);
    const size_t q = backward ? 1 : 0;
    const TensorType& query = layout(one.reads[q]).type;
    const Shape& key = operand(one.reads[q + 1]).sizes;
    const Shape& value = operand(one.reads[q + 2]).sizes;
    const TensorType out{query.dtype, {query.shape[0], query.shape[1], query.shape[2], value[3]}};
    const auto expect = [&](size_t read, const TensorType& type) {
      INTERNAL_CHECK(layout(one.reads[read]).type == type, "%{} is {} and attention takes {}", one.reads[read],
                     to_text(layout(one.reads[read]).type), to_text(type));
    };
    expect(q + 1, {query.dtype, key});
    expect(q + 2, {query.dtype, value});
    if (backward) {
      expect(0, out);
      expect(4, out);
      expect(5, {DType::kF32, {query.shape[0], query.shape[1], query.shape[2]}});
    }
    const AttentionPlaces places = attention_places(one.op);
    if (places.has_mask(one.reads.size()))
      check_mask(one.reads[places.mask], {query.shape[0], query.shape[1], query.shape[2], key[2]});
    for (OperandId write : one.writes) check_result(write);
    check_bound(one, bind_attention(one.op, one.attrs, layouts(one.reads)));
  }
  // The kernel reads its operands as they lie, and works in its scratch memory alone.
  template <class Bound>
  void check_bound(const Instruction& one, const std::optional<Bound>& bound) const {
    INTERNAL_CHECK(bound && bound->copied.empty(), "the blocked kernel does not take its operands as they lie");
    INTERNAL_CHECK_LE(workspace_bytes(*bound, schedule_.threads), one.scratch.bytes, "its scratch");
  }
  void check_loss(const Instruction& one) const {
    INTERNAL_CHECK(kernel_of(one) == OwnKernel::kLinearCrossEntropy, "no loss");
    check_row(one);
    for (OperandId write : one.writes) INTERNAL_CHECK(is_contiguous(layout(write)), "%{} has gaps", write);
    if (schedule_.features.sm > 0) return check_chunks(one);
    check_bound(one, bind_loss(one.attrs, layouts(one.reads), schedule_.features));
  }
  void check_chunks(const Instruction& one) const {
    INTERNAL_CHECK(one.loss.has_value(), "it says no chunks");
    const int64_t tokens = operand(one.reads[0]).sizes[0], chunk = one.loss->tokens;
    INTERNAL_CHECK(chunk > 0 && chunk <= tokens, "chunks of {} of {} tokens", chunk, tokens);
    INTERNAL_CHECK_EQ(one.loss->last == kNoProgram, tokens % chunk == 0, "rows of a shorter chunk");
    for (size_t i = 2; i < one.reads.size(); ++i)
      INTERNAL_CHECK(is_contiguous(layout(one.reads[i])), "%{} has gaps", one.reads[i]);
    check_rows(one, one.loss->program, chunk);
    if (one.loss->last != kNoProgram) check_rows(one, one.loss->last, tokens % chunk);
    INTERNAL_CHECK_LE(gpu_loss_bytes(one.attrs, layouts(one.reads), chunk), one.scratch.bytes, "its scratch");
  }
  // The program on `rows` rows takes the logits, what is read of each row, two sums, and the gradient of the logits in
  // their place.
  void check_rows(const Instruction& one, uint32_t number, int64_t rows) const {
    INTERNAL_CHECK_LT(number, schedule_.programs.size(), "its rows' program");
    const LoopProgram& program = schedule_.programs[number];
    const bool is_backward = one.reads.size() > 3;
    const TensorType logits{operand(one.reads[0]).dtype, {rows, operand(one.reads[1]).sizes[0]}};
    std::vector<TensorType> wanted = {logits};
    for (size_t i = 2; i < one.reads.size(); ++i) wanted.push_back({operand(one.reads[i]).dtype, {rows}});
    for (size_t w = 0; w < 2; ++w) wanted.push_back({operand(one.writes[w]).dtype, {rows}});
    if (is_backward) wanted.push_back(logits);
    INTERNAL_CHECK(program.scratch_bytes == 0 && program.buffers.size() >= wanted.size(), "no program of its rows");
    for (size_t k = 0; k < program.buffers.size(); ++k) {
      const LoopBuffer& buffer = program.buffers[k];
      if (k >= wanted.size()) {
        INTERNAL_CHECK(buffer.kind == LoopBuffer::Kind::kLocal, "its rows' program takes more than its rows");
        continue;
      }
      const bool is_read = k + 1 < one.reads.size();
      INTERNAL_CHECK(buffer.kind == (is_read ? LoopBuffer::Kind::kInput : LoopBuffer::Kind::kOutput) &&
                         buffer.dtype == wanted[k].dtype && buffer.count <= element_count(wanted[k].shape),
                     "its rows' program takes another b{} than {}", k, to_text(wanted[k]));
    }
    const std::pair in_place(0U, static_cast<uint32_t>(wanted.size()) - 1);
    INTERNAL_CHECK(!is_backward || std::ranges::find(program.in_place, in_place) != program.in_place.end(),
                   "gradients that cannot lie where the logits do");
  }
  void check_mask(OperandId id, const Shape& scores) const {
    const Shape& mask = operand(id).sizes;
    bool broadcasts = mask.size() <= scores.size();
    for (size_t d = 0; broadcasts && d < mask.size(); ++d) {
      const int64_t wanted = scores[scores.size() - mask.size() + d];
      broadcasts = mask[d] == wanted || mask[d] == 1;
    }
    INTERNAL_CHECK(broadcasts, "%{} is no mask of [{}]", id, fmt::join(scores, ", "));
  }

  // Of attention: heads with their elements side by side; sums without gaps.
  void check_result(OperandId id) const {
    const Operand& result = operand(id);
    const bool has_heads = result.sizes.size() == 4;
    INTERNAL_CHECK(has_heads ? result.strides[3] == 1 || result.sizes[3] <= 1 : is_contiguous(layout(id)),
                   "%{} has gaps", id);
  }

  void check_types(const LoopProgram& program, const std::vector<OperandId>& reads,
                   const std::vector<OperandId>& writes) const {
    for (size_t k = 0; k < reads.size() + writes.size(); ++k) {
      const OperandId id = k < reads.size() ? reads[k] : writes[k - reads.size()];
      INTERNAL_CHECK(program.buffers[k].dtype == operand(id).dtype, "its program takes %{} for {}", id,
                     name_of(program.buffers[k].dtype));
    }
  }

  void check_matmul(const Instruction& one, const MatmulCall& call) const {
    const std::vector<TensorLayout> reads = layouts(one.reads);
    const std::optional<BoundMatmul> bound = bind_matmul(call, reads, schedule_.features);
    INTERNAL_CHECK(bound.has_value(), "the blocked matmul does not take its operands");
    for (const MatmulCall::Product& product : call.products) {
      const TensorType& right = reads[product.right].type;
      INTERNAL_CHECK(right.dtype == reads[call.left].type.dtype, "operands of two types");
      INTERNAL_CHECK_EQ(right.shape[product.transposed ? 1 : 0], bound->call.k, "what is summed over");
    }
    const bool has_epilogue = !call.epilogue_programs.empty();
    for (size_t p = 0; p < call.products.size(); ++p) {
      const int64_t n = bound->products[p].n;
      if (has_epilogue) {
        INTERNAL_CHECK_EQ(n, bound->products[0].n, "products that are finished together are of one width");
        continue;
      }
      const TensorType wanted{reads[call.left].type.dtype, {bound->call.m, n}};
      INTERNAL_CHECK(layout(one.writes[p]).type == wanted && is_contiguous(layout(one.writes[p])),
                     "%{} is no place for a product of {}", one.writes[p], to_text(wanted));
    }
    if (has_epilogue) check_epilogues(one, call, bound->call.m, bound->products[0].n);
    INTERNAL_CHECK_LE(scratch_of(call, *bound, schedule_.programs, schedule_.threads).bytes(), one.scratch.bytes,
                      "its scratch");
  }

  void check_epilogues(const Instruction& one, const MatmulCall& call, int64_t m, int64_t n) const {
    for (size_t kind = 0; kind < kTileKinds; ++kind) {
      const int64_t row = last_begin(m, kTileRows, kind % 2 == 0);
      const int64_t column = last_begin(n, kTileColumns, kind / 2 == 0);
      if (row < 0 || column < 0) continue;
      INTERNAL_CHECK(call.epilogue_programs[kind] != kNoProgram, "tiles of kind {} are left as they are", kind);
      const std::vector<LoopBuffer>& buffers = schedule_.programs[call.epilogue_programs[kind]].buffers;
      size_t next = 0;
      for (; next < call.products.size(); ++next)
        INTERNAL_CHECK(
            buffers[next].dtype == DType::kF32 && buffers[next].count <= std::min(m, kTileRows) * kTileColumns,
            "its epilogue goes past the end of a tile");
      for (const TileBuffer& buffer : call.epilogue_inputs)
        check_tile(buffers[next++], buffer, one.reads[buffer.place], row, column);
      for (const TileBuffer& buffer : call.epilogue_outputs)
        check_tile(buffers[next++], buffer, one.writes[buffer.place], row, column);
    }
  }

  // The epilogue's last tile of a kind, at (row, column), stays inside the operand.
  void check_tile(const LoopBuffer& tile, const TileBuffer& moves, OperandId id, int64_t row, int64_t column) const {
    INTERNAL_CHECK(tile.dtype == operand(id).dtype, "its epilogue takes %{} for {}", id, name_of(tile.dtype));
    if (moves.is_share) {
      INTERNAL_CHECK(tile.count <= 1 && tile.dtype == DType::kF32 && room(id) >= 1, "%{} is no sum of tiles", id);
      return;
    }
    int64_t down = 0, across = 0, end = 0;
    const bool inside =
        moves.row_stride >= 0 && moves.column_stride >= 0 && !__builtin_mul_overflow(row, moves.row_stride, &down) &&
        !__builtin_mul_overflow(column, moves.column_stride, &across) && !__builtin_add_overflow(down, across, &end) &&
        !__builtin_add_overflow(end, tile.count, &end) && end <= room(id);
    INTERNAL_CHECK(inside, "its epilogue goes past the end of b{} from %{}", operand(id).buffer, id);
  }

  const Schedule& schedule_;
  size_t at_ = 0;
};

}  // namespace

void verify_kernels(const Schedule& schedule) { KernelVerifier(schedule).run(); }

}  // namespace stepc
