#include "schedule/verify_collectives.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/kernel_choice.h"
#include "ops/op_def.h"
#include "schedule/buffers.h"

namespace stepc {

namespace {

class CollectiveVerifier {
 public:
  explicit CollectiveVerifier(const Schedule& schedule) : schedule_(schedule) {}

  void run() {
    for (size_t k = 0; k < schedule_.inputs.size(); ++k) {
      const ScheduleInput& input = schedule_.inputs[k];
      if (input.part) check_part(*input.part, input.operand, str("input {}", k));
      if (input.kind == InputKind::kMesh) check_place(k);
    }
    for (size_t k = 0; k < schedule_.outputs.size(); ++k) {
      const ScheduleOutput& output = schedule_.outputs[k];
      if (output.part) check_part(*output.part, output.operand, str("output {}", k));
    }
    for (size_t i = 0; i < schedule_.instructions.size(); ++i) {
      const Instruction& one = schedule_.instructions[i];
      const std::string here = str("i{} ({} {})", i, name_of(one.kind), one.op);
      for (OperandId id : one.writes)
        INTERNAL_CHECK(!id.valid() || !is_place(id), "{} changes where the rank stands", here);
      if (one.kind != Instruction::Kind::kCollective) continue;
      try {
        check(one);
      } catch (const InternalError& error) {
        throw InternalError(str("{}: {}", here, error.what()));
      }
    }
  }

 private:
  [[nodiscard]] const Operand& operand(OperandId id) const { return schedule_.operands[id.index()]; }
  [[nodiscard]] TensorType type(OperandId id) const { return {operand(id).dtype, operand(id).sizes}; }
  [[nodiscard]] bool is_place(OperandId id) const {
    const Buffer& buffer = schedule_.buffers[operand(id).buffer.index()];
    return buffer.kind == Buffer::Kind::kInput && schedule_.inputs[buffer.input].kind == InputKind::kMesh;
  }

  void check_part(const PartOf& part, OperandId id, const std::string& what) const {
    const Mesh& mesh = schedule_.mesh;
    INTERNAL_CHECK_EQ(part.sharding.dims.size(), part.shape.size(), "{} is a part of something of other dimensions",
                      what);
    verify(part.sharding, part.shape, mesh);
    if (!id.valid()) return;
    const Shape wanted = local_shape(part.sharding, part.shape, mesh);
    INTERNAL_CHECK(operand(id).sizes == wanted, "{} is {}, and a rank's part of {} is [{}]", what, to_text(type(id)),
                   to_text(part.sharding, part.shape, mesh), fmt::join(wanted, ", "));
  }

  // The executor tells the rank where it stands, in memory of its own.
  void check_place(size_t k) const {
    const TensorType wanted{DType::kI64, {static_cast<int64_t>(schedule_.mesh.axes.size())}};
    const OperandId id = schedule_.inputs[k].operand;
    INTERNAL_CHECK(type(id) == wanted && is_place(id), "input {}, the rank's place on the mesh {}, is a {}", k,
                   to_text(schedule_.mesh), to_text(type(id)));
    INTERNAL_CHECK(!schedule_.inputs[k].written && !schedule_.inputs[k].part, "input {} is the rank's place alone", k);
  }

  void check(const Instruction& one) {
    const OpDef* row = find_op(one.op);
    INTERNAL_CHECK(row != nullptr && exchanges(row->collective), "no collective");
    INTERNAL_CHECK(!schedule_.mesh.axes.empty(), "a collective on one device");
    INTERNAL_CHECK(!one.reads.empty() && one.reads.size() == one.writes.size(),
                   "a collective writes a result for each operand, and has {} for {}", one.writes.size(),
                   one.reads.size());
    INTERNAL_CHECK(complete_attrs(*row, one.attrs) == one.attrs, "attributes {} lack some", to_text(one.attrs));
    check_group(one.attrs);
    for (const AttrDef& attr : row->attrs) {
      if (attr.kind != AttrKind::kWord) continue;  // the only word says how it reduces
      const auto& reduce = one.attrs.get<std::string>(attr.name);
      INTERNAL_CHECK(parse_reduce_op(reduce), "nothing reduces by '{}'", reduce);
    }
    check_operands(one, *row);
    uint64_t scratch = 0;
    for (OperandId read : one.reads)
      scratch +=
          collective_scratch_bytes(one.op, type(read), one.attrs.get<int64_t>("ranks"), schedule_.features.sm > 0);
    INTERNAL_CHECK_LE(scratch, one.scratch.bytes, "its scratch");
    if (!one.mark) return;
    if (!stream_) stream_ = one.stream;
    INTERNAL_CHECK_EQ(*stream_, one.stream, "collectives on several streams have no one order");
  }

  void check_group(const Attrs& attrs) const {
    const Mesh& mesh = schedule_.mesh;
    const Shape& axes = attrs.get<Shape>("axes");
    int64_t ranks = 1;
    for (size_t a = 0; a < axes.size(); ++a) {
      INTERNAL_CHECK(axes[a] >= 0 && axes[a] < std::ssize(mesh.axes), "the mesh {} has no axis {}", to_text(mesh),
                     axes[a]);
      INTERNAL_CHECK(std::find(axes.begin(), axes.begin() + static_cast<ptrdiff_t>(a), axes[a]) ==
                         axes.begin() + static_cast<ptrdiff_t>(a),
                     "axis {} is named twice", axes[a]);
      ranks *= mesh.size(static_cast<Axis>(axes[a]));
    }
    INTERNAL_CHECK_EQ(attrs.get<int64_t>("ranks"), ranks, "the ranks of a group along axes [{}] of {}",
                      fmt::join(axes, ", "), to_text(mesh));
  }

  void check_operands(const Instruction& one, const OpDef& row) const {
    OpCall call{{}, one.attrs};
    for (OperandId read : one.reads) call.inputs.push_back(type(read));
    for (const auto* operands : {&one.reads, &one.writes})
      for (OperandId id : *operands)
        INTERNAL_CHECK(is_dense(operand(id).sizes, operand(id).strides), "%{} is not contiguous", id);
    const std::vector<TensorType> types = infer_types(row, call);
    for (size_t k = 0; k < types.size(); ++k) {
      const OperandId write = one.writes[k];
      INTERNAL_CHECK(types[k] == type(write), "%{} is {} and the ranks make {}", write, to_text(type(write)),
                     to_text(types[k]));
      const bool in_place = row.collective == Collective::kAllReduce;
      for (size_t r = 0; r < one.reads.size(); ++r) {
        const Operand &from = operand(one.reads[r]), &to = operand(write);
        if (in_place && r == k)
          INTERNAL_CHECK(begin_at_one_place(schedule_, one.reads[r], write), "%{} is not reduced in its place",
                         one.reads[r]);
        else
          INTERNAL_CHECK(from.buffer != to.buffer, "%{} is written where %{} is read", write, one.reads[r]);
      }
    }
  }

  const Schedule& schedule_;
  std::optional<uint32_t> stream_;  // of all collectives that a wait ends
};

}  // namespace

void verify_collectives(const Schedule& schedule) { CollectiveVerifier(schedule).run(); }

}  // namespace stepc
