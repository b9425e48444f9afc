#include "loops/lower/epilogue.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "loops/lower/element_writer.h"
#include "loops/lower/loop_space.h"
#include "loops/lower/lower.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

class EpilogueBuilder {
 public:
  EpilogueBuilder(const Graph& group, int64_t rows, int64_t columns, int64_t tile_stride)
      : group_(group), rows_(rows), columns_(columns), tile_stride_(tile_stride), inside_(group.tensors.size()) {}

  Epilogue build() {
    size_t matmuls = 0;
    while (matmuls < group_.nodes.size() && has(group_.nodes[matmuls], Trait::kContraction)) ++matmuls;
    for (size_t n = 0; n < matmuls; ++n) add_matmul(group_.nodes[n]);
    for (size_t n = matmuls; n < group_.nodes.size(); ++n) add(group_.nodes[n]);
    for (size_t place = 0; place < group_.outputs.size(); ++place) add_output(static_cast<uint32_t>(place));
    return std::move(epilogue_);
  }

 private:
  // Which part of a tensor belongs to a tile: both, some columns for all rows, some rows for all columns, or all of it.
  enum class Part : uint8_t { kTile, kColumns, kRows, kOne };

  [[nodiscard]] Part part_of(const Shape& shape) const {
    const int64_t last = shape.empty() ? 1 : shape.back();
    const int64_t before = last == 0 ? 0 : element_count(shape) / last;
    if (before == all_rows_ && last == all_columns_) return Part::kTile;
    if (before == 1 && last == all_columns_) return Part::kColumns;
    if (before == all_rows_ && last == 1) return Part::kRows;
    if (before == 1 && last == 1) return Part::kOne;
    throw NoLoops(str("a tensor of [{}] beside matmuls of [{}, {}]", fmt::join(shape, ", "), all_rows_, all_columns_));
  }
  [[nodiscard]] Shape tile_shape(const Shape& shape) const {
    switch (part_of(shape)) {
      case Part::kTile:
        return {rows_, columns_};
      case Part::kColumns:
        return {columns_};
      case Part::kRows:
        return {rows_, 1};
      case Part::kOne:
        return {};
    }
    return {};
  }
  [[nodiscard]] TensorType tile_type(TensorId tensor) const {
    return {group_.type(tensor).dtype, tile_shape(group_.shape(tensor))};
  }

  TensorId append(Node node, TensorType type) {
    return epilogue_.tile.nodes[epilogue_.tile.add_node(std::move(node), {std::move(type)}).index()].outputs[0];
  }
  TensorId add_tile_input(TensorType type, Shape strides) {
    const std::string key = str("{}", epilogue_.tile.inputs.size());
    return epilogue_.tile.add_input({InputKind::kCaptured, key, {}, std::move(strides), 0}, std::move(type));
  }

  void add_matmul(const Node& node) {
    const TensorType& type = group_.type(node.outputs[0]);
    if (type.shape.size() != 2) throw NoLoops("batched matmuls");
    if (all_rows_ != 0 && (type.shape[0] != all_rows_ || type.shape[1] != all_columns_))
      throw NoLoops("matmuls of several sizes");
    all_rows_ = type.shape[0];
    all_columns_ = type.shape[1];
    if (element_count(type.shape) == 0) throw NoLoops("empty matmuls");
    // What is read has the bits of what would have been stored.
    Node cast;
    cast.op = "cast";
    cast.attrs = {{"dtype", type.dtype}};
    cast.inputs = {add_tile_input({DType::kF32, {rows_, columns_}}, {tile_stride_, 1})};
    inside_[node.outputs[0].index()] = append(std::move(cast), {type.dtype, {rows_, columns_}});
  }

  // The strides of rows and columns of a tensor whose dimensions before the last are rows.
  [[nodiscard]] std::pair<int64_t, int64_t> strides_in(const Shape& shape, const Shape& strides) const {
    if (shape.empty()) return {0, 0};
    int64_t row = 0;
    int64_t next = 0;  // of a dimension that goes on where the rows so far end
    for (size_t d = shape.size() - 1; d-- > 0;) {
      if (shape[d] == 1) continue;
      if (row != 0 && strides[d] != next) throw NoLoops("rows that are not evenly spaced");
      if (row == 0) row = strides[d];
      if (row == 0) throw NoLoops("rows that lie on each other");
      next = strides[d] * shape[d];
    }
    return {row, shape.back() == 1 ? 0 : strides.back()};
  }
  TensorId inside(TensorId tensor) {
    TensorId& now = inside_[tensor.index()];
    if (now.valid()) return now;
    const auto place = std::ranges::find(group_.inputs, tensor, &GraphInput::tensor) - group_.inputs.begin();
    const GraphInput& input = group_.inputs[static_cast<size_t>(place)];
    if (input.offset != 0) throw NoLoops("a window that does not start at its memory's first element");
    const auto [row, column] = strides_in(group_.shape(tensor), strides_of(group_, input));
    TensorType type = tile_type(tensor);
    const Shape strides = type.shape.size() == 2   ? Shape{row, column}
                          : type.shape.size() == 1 ? Shape{column}
                                                   : Shape{};
    epilogue_.inputs.push_back({static_cast<uint32_t>(place), row, column});
    return now = add_tile_input(std::move(type), strides);
  }

  // The operand's elements in their order.
  [[nodiscard]] bool keeps_order(const Node& node) const {
    return has(node, Trait::kSameBytes) && group_.type(node.inputs[0]).dtype == group_.type(node.outputs[0]).dtype;
  }
  void add(const Node& node) {
    if (node.aten || node.outputs.size() != 1) throw NoLoops(str("{} has no part in a tile", node.op));
    if (std::ranges::any_of(node.inputs, [this](TensorId input) { return sums_.contains(input); }))
      throw NoLoops("a sum is read before it is whole");
    const TensorId made = node.outputs[0];
    const OpDef& op = op_def(node.op);
    if (keeps_order(node) || op.has(Trait::kBroadcast)) {
      const TensorId from = inside(node.inputs[0]);
      // Of rows and columns a reshape that keeps the columns keeps the rows too.
      if (epilogue_.tile.shape(from) == tile_shape(group_.shape(made))) return (void)(inside_[made.index()] = from);
      if (keeps_order(node)) throw NoLoops("a reshape that mixes rows and columns");
    } else if (op.combine == Combine::kSum) {
      return add_sum(node);
    } else if (!op.has(Trait::kSplat) && !op.has(Trait::kElementwise)) {
      throw NoLoops(str("{} is not elementwise", node.op));
    }
    Node copy = node;
    copy.group.reset();
    for (TensorId& input : copy.inputs) input = inside(input);
    TensorType type = tile_type(made);
    if (op.has(Trait::kShapeAttr)) copy.attrs.set("shape", type.shape);
    inside_[made.index()] = append(std::move(copy), std::move(type));
  }
  void add_sum(const Node& node) {
    const TensorId made = node.outputs[0];
    const TensorType& type = group_.type(made);
    if (element_count(type.shape) != 1 || type.dtype != DType::kF32 ||
        part_of(group_.shape(node.inputs[0])) != Part::kTile)
      throw NoLoops("a sum of less than all, or not in f32");
    Node copy = node;
    copy.group.reset();
    copy.inputs = {inside(node.inputs[0])};
    copy.attrs.set("dims", Shape{0, 1});
    copy.attrs.set("keepdim", false);
    inside_[made.index()] = append(std::move(copy), {DType::kF32, {}});
    sums_.insert(made);
  }

  void add_output(uint32_t place) {
    const TensorId tensor = group_.outputs[place].tensor;
    TileBuffer buffer{place};
    GraphOutput output;
    output.tensor = inside(tensor);
    if (sums_.contains(tensor)) {
      buffer.is_share = true;
    } else {
      if (part_of(group_.shape(tensor)) != Part::kTile) throw NoLoops("an output of less than a tile");
      buffer.row_stride = all_columns_;
      buffer.column_stride = 1;
      output.strides = {all_columns_, 1};
    }
    epilogue_.outputs.push_back(buffer);
    epilogue_.tile.outputs.push_back(std::move(output));
  }

  const Graph& group_;
  int64_t rows_, columns_, tile_stride_;
  int64_t all_rows_ = 0, all_columns_ = 0;  // of the matmuls
  std::vector<TensorId> inside_;            // by tensor of the group
  std::set<TensorId> sums_;
  Epilogue epilogue_;
};

}  // namespace

bool has_epilogue(const Graph& group) {
  return !std::ranges::all_of(group.nodes, [](const Node& node) { return has(node, Trait::kContraction); });
}

Epilogue epilogue_of(const Graph& group, int64_t rows, int64_t columns, int64_t tile_stride) {
  INTERNAL_CHECK(is_matmul_group(group), "an epilogue without matmuls");
  try {
    Epilogue epilogue = EpilogueBuilder(group, rows, columns, tile_stride).build();
    verify_ops(epilogue.tile);
    return epilogue;
  } catch (const NoLoops& why) {
    throw UserError(why.what());
  }
}

LoopProgram lower(const Epilogue& epilogue) { return lower(epilogue.tile, Together::kAlike); }

std::string why_no_epilogue(const Graph& group) {
  if (!has_epilogue(group)) return "";
  try {
    const Shape& shape = group.shape(group.nodes.front().outputs[0]);
    if (shape.size() != 2) return "batched matmuls";
    return why_no_loops(epilogue_of(group, shape[0], shape[1], shape[1]).tile, Together::kAlike);
  } catch (const UserError& error) {
    return error.what();
  }
}

}  // namespace stepc
