#include "loops/lower/element_writer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "loops/lower/scalar_writer.h"
#include "ops/rounding.h"

namespace stepc {

Shape strides_of(const Graph& group, const GraphInput& input) {
  return input.strides.empty() ? contiguous_strides(group.shape(input.tensor)) : input.strides;
}

Shape strides_of(const Graph& group, const GraphOutput& output) {
  return output.strides.empty() ? contiguous_strides(group.shape(output.tensor)) : output.strides;
}

namespace {

// The smallest and the largest integer of a dtype.
std::pair<int64_t, int64_t> limits_of(DType dtype) {
  if (dtype == DType::kBool) return {0, 1};
  if (dtype == DType::kU8) return {0, 255};
  const auto bits = static_cast<int>(8 * size_of(dtype));
  const int64_t low = std::numeric_limits<int64_t>::min() >> (64 - bits);
  return {low, -(low + 1)};
}

}  // namespace

Fold fold_of(const Node& node, DType dtype) {
  const bool real = is_floating(dtype);
  const auto [low, high] = real ? std::pair<int64_t, int64_t>() : limits_of(dtype);
  const std::optional<Combine> combine = op_def(node.op).combine;
  if (!combine) throw NoLoops(str("{} is no reduction of a kernel", node.op));
  switch (*combine) {
    case Combine::kSum:
      return {*combine, -0.0, 0};  // the sum of one number is that number
    case Combine::kProduct:
      return {*combine, 1, 1};
    case Combine::kMax:
      return {*combine, -HUGE_VAL, low};
    case Combine::kMin:
      return {*combine, HUGE_VAL, high};
  }
  return {};
}

void ElementWriter::forget_sweep() { known_in_sweep_.clear(); }

void ElementWriter::keep_costly(Affine column, std::function<std::optional<uint32_t>(DType)> make) {
  column_ = std::move(column);
  make_buffer_ = std::move(make);
}

// What an earlier sweep made, from memory.
ElementWriter::Value ElementWriter::kept(const Key& key) {
  const auto found = costly_.find(key);
  if (found == costly_.end() || found->second.sweep == w_.sweep()) return PhaseWriter::kNone;
  Kept& one = found->second;
  const ValueType type = w_.type(one.value);
  if (!one.buffer) {
    one.buffer = make_buffer_(stored_type(type));
    if (!one.buffer) return PhaseWriter::kNone;
    w_.store_in(one.sweep, *one.buffer, column_, one.value);
  }
  return w_.load(*one.buffer, type, column_);
}

ElementWriter::Value ElementWriter::element(TensorId tensor, const IndexMap& map,
                                            const std::vector<IndexGuard>& guards) {
  const Key key{tensor, map, guards};
  for (const auto* known : {&known_, &known_in_sweep_})
    if (const auto found = known->find(key); found != known->end()) return found->second;
  Value value = kept(key);
  if (value == PhaseWriter::kNone) {
    value = written(tensor, map, guards);
    const Node* node = group_.producer(tensor);
    const bool keeps = make_buffer_ && guards.empty() && w_.level(value) == Level::kSweep;
    if (keeps && node != nullptr && is_costly(*node)) costly_[key] = {w_.sweep(), value, {}};
  }
  (w_.level(value) == Level::kSweep ? known_in_sweep_ : known_).emplace(key, value);
  return value;
}

ElementWriter::Value ElementWriter::written(TensorId tensor, const IndexMap& map,
                                            const std::vector<IndexGuard>& guards) {
  if (const auto found = made_.find(tensor); found != made_.end()) {
    if (map != *space_.maps[tensor.index()]) throw NoLoops(str("%{} is read where it is not made", tensor));
    return found->second;
  }
  const Node* node = group_.producer(tensor);
  if (node == nullptr) {
    const GraphInput& input = group_.inputs[group_.tensors[tensor.index()].place];
    return read_input(tensor, position_of(map, strides_of(group_, input), input.offset), PhaseWriter::kNone, 0, guards);
  }
  const OpDef& op = op_def(node->op);
  if (moves_elements(node->op)) return moved(*node, map, guards);
  if (op.has(Trait::kElementwise)) return elementwise(*node, op, map, guards);
  if (op.has(Trait::kReduction)) return reduced(*node, map, guards);
  if (op.has(Trait::kConstant)) return made_from_attributes(*node, map);
  if (op.has(Trait::kRandom)) return drawn(*node, map);
  return selected(*node, map, guards);
}

ElementWriter::Value ElementWriter::condition(const std::vector<IndexGuard>& guards) {
  Value all = PhaseWriter::kNone;
  const auto require = [&](Value value) {
    all = all == PhaseWriter::kNone ? value : w_.compute(LoopOp::kBitAnd, {all, value});
  };
  for (const IndexGuard& guard : guards) {
    const AffineRange range = range_of(guard.value, space_.extents);
    const Value index = w_.index(guard.value);
    if (range.low < guard.low) require(w_.compute(LoopOp::kLe, {w_.integer(ValueType::kI64, guard.low), index}));
    if (range.high >= guard.high) require(w_.compute(LoopOp::kLt, {index, w_.integer(ValueType::kI64, guard.high)}));
  }
  return all;
}

ElementWriter::Value ElementWriter::read_input(TensorId tensor, const Affine& position, Value indirect, int64_t stride,
                                               const std::vector<IndexGuard>& guards) {
  const uint32_t buffer = group_.tensors[tensor.index()].place;
  const DType dtype = group_.type(tensor).dtype;
  if (element_count(group_.shape(tensor)) == 0) return zero_of(dtype);
  return w_.load(buffer, value_type_of(dtype), position, indirect, stride, condition(guards));
}

ElementWriter::Value ElementWriter::elementwise(const Node& node, const OpDef& op, const IndexMap& map,
                                                const std::vector<IndexGuard>& guards) {
  std::vector<Value> arguments;
  std::vector<TensorType> types;
  for (TensorId input : node.inputs) {
    types.push_back(group_.type(input));
    arguments.push_back(element(input, broadcast_index(map, types.back().shape), guards));
  }
  return write_body(w_, op, types, node.attrs, arguments, group_.type(node.outputs[0]).dtype);
}

ElementWriter::Value ElementWriter::zero_of(DType dtype) {
  const ValueType type = value_type_of(dtype);
  const bool real = type == ValueType::kF32 || type == ValueType::kF64;
  return real ? w_.constant(type, 0) : w_.integer(type, 0);
}

// Zero where no operand has the element.
ElementWriter::Value ElementWriter::moved(const Node& node, const IndexMap& map,
                                          const std::vector<IndexGuard>& guards) {
  Value value = PhaseWriter::kNone;
  for (size_t k = node.inputs.size(); k-- > 0;) {
    MovedIndex from = operand_index(group_, node, k, map, space_.extents);
    if (from.split) throw SplitNeeded{*from.split};
    if (!from.map) throw NoLoops(str("{} cuts across the loops", node.op));
    const bool never = std::ranges::any_of(from.guards, [&](const IndexGuard& guard) {
      const AffineRange range = range_of(guard.value, space_.extents);
      return range.high < guard.low || range.low >= guard.high;
    });
    if (never || element_count(group_.shape(node.inputs[k])) == 0) continue;
    std::vector<IndexGuard> inside = guards;
    inside.insert(inside.end(), from.guards.begin(), from.guards.end());
    const Value here = element(node.inputs[k], *from.map, inside);
    if (from.guards.empty()) {
      value = here;
      continue;
    }
    const Value other = value == PhaseWriter::kNone ? zero_of(group_.type(node.outputs[0]).dtype) : value;
    value = w_.compute(LoopOp::kSelect, {condition(from.guards), here, other});
  }
  return value == PhaseWriter::kNone ? zero_of(group_.type(node.outputs[0]).dtype) : value;
}

// Only what is no loop at all: over nothing, or over dimensions of size 1.
ElementWriter::Value ElementWriter::reduced(const Node& node, const IndexMap& map,
                                            const std::vector<IndexGuard>& guards) {
  const TensorType& operand = group_.type(node.inputs[0]);
  const Fold fold = fold_of(node, operand.dtype);
  const ValueType type = value_type_of(operand.dtype);
  if (element_count(operand.shape) == 0) {
    if (fold.combine == Combine::kSum) return zero_of(operand.dtype);
    return is_floating(operand.dtype) ? w_.constant(type, fold.real) : w_.integer(type, fold.integer);
  }
  const Shape& dims = node.attrs.get<Shape>("dims");
  IndexMap from;
  auto next = map.begin();
  for (size_t d = 0; d < operand.shape.size(); ++d) {
    const bool dropped = std::ranges::find(dims, static_cast<int64_t>(d)) != dims.end();
    if (dropped && operand.shape[d] != 1) throw NoLoops(str("%{} is read before it is summed", node.outputs[0]));
    if (dropped)
      from.emplace_back();
    else
      from.push_back(*next);
    if (!dropped || node.attrs.get<bool>("keepdim")) ++next;
  }
  return element(node.inputs[0], from, guards);
}

ElementWriter::Value ElementWriter::number(const AttrValue& value, DType dtype) {
  const ValueType type = value_type_of(dtype);
  const auto* whole = std::get_if<int64_t>(&value);
  if (is_floating(dtype)) {
    const double real = whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value);
    return w_.constant(type, rounded(real, dtype));
  }
  return w_.integer(type, wrapped(whole != nullptr ? *whole : truncated(std::get<double>(value)), dtype));
}

ElementWriter::Value ElementWriter::made_from_attributes(const Node& node, const IndexMap& map) {
  const DType dtype = group_.type(node.outputs[0]).dtype;
  if (const AttrValue* value = node.attrs.find("value")) return number(*value, dtype);
  if (node.attrs.find("reals") != nullptr) {
    if (element_count(group_.shape(node.outputs[0])) != 1) throw NoLoops("a list of constants is no loop");
    if (is_floating(dtype)) return number(node.attrs.get<std::vector<double>>("reals")[0], dtype);
    return number(node.attrs.get<Shape>("integers")[0], dtype);
  }
  const Value index = w_.index(map[static_cast<size_t>(node.attrs.get<int64_t>("dim"))]);
  const auto* start = std::get_if<int64_t>(node.attrs.find("start"));
  const auto* step = std::get_if<int64_t>(node.attrs.find("step"));
  const bool whole = start != nullptr && step != nullptr;
  const ValueType type = whole ? ValueType::kI64 : ValueType::kF64;
  const auto constant = [&](const char* name) {
    return whole ? w_.integer(type, node.attrs.get<int64_t>(name)) : w_.constant(type, node.attrs.number(name));
  };
  const Value moved = w_.compute(LoopOp::kMul, {w_.convert(index, type), constant("step")});
  const Value value = w_.compute(LoopOp::kAdd, {moved, constant("start")});
  if (dtype != DType::kBool) return w_.round_to(value, dtype);
  return w_.compute(LoopOp::kNe, {value, whole ? w_.integer(type, 0) : w_.constant(type, 0)});
}

ElementWriter::Value ElementWriter::drawn(const Node& node, const IndexMap& map) {
  const TensorType& type = group_.type(node.outputs[0]);
  const Value place = node.inputs.size() > 1 ? element(node.inputs[1], map)
                                             : w_.index(position_of(map, contiguous_strides(type.shape), 0));
  const Value seed = element(node.inputs[0], {Affine::constant(0)});
  const Value step = element(node.inputs[0], {Affine::constant(1)});
  const bool normal = op_def(node.op).distribution == Distribution::kNormal;
  return write_draw(w_, normal, seed, step, node.attrs.get<int64_t>("stream"), place, type.dtype);
}

// Elements of an input chosen by an index tensor. An index out of range reads the nearest element that is there.
ElementWriter::Value ElementWriter::selected(const Node& node, const IndexMap& map,
                                             const std::vector<IndexGuard>& guards) {
  const OpDef& op = op_def(node.op);
  if (!op.has(Trait::kSelects)) throw NoLoops(str("{} is no loop", node.op));
  const TensorId x = node.inputs[op.index_use->indexed];
  const TensorId chosen = node.inputs[op.index_use->indices];
  if (group_.producer(x) != nullptr) throw NoLoops(str("{} reads what the group makes", node.op));
  const auto dim = static_cast<size_t>(node.attrs.get<int64_t>("dim"));
  const Shape& shape = group_.shape(x);
  IndexMap from = map;
  IndexMap at = map;
  if (op.index_use->slices) {
    const auto rank = static_cast<ptrdiff_t>(group_.shape(chosen).size());
    const auto first = map.begin() + static_cast<ptrdiff_t>(dim);
    at.assign(first, first + rank);
    from.erase(from.begin() + static_cast<ptrdiff_t>(dim), from.begin() + static_cast<ptrdiff_t>(dim) + rank);
    from.insert(from.begin() + static_cast<ptrdiff_t>(dim), Affine());
  }
  from[dim] = Affine();
  const GraphInput& input = group_.inputs[group_.tensors[x.index()].place];
  const Shape strides = strides_of(group_, input);
  Value index = element(chosen, at, guards);
  index = w_.compute(LoopOp::kMax, {index, w_.integer(ValueType::kI64, 0)});
  index = w_.compute(LoopOp::kMin, {index, w_.integer(ValueType::kI64, std::max<int64_t>(shape[dim] - 1, 0))});
  return read_input(x, position_of(from, strides, input.offset), index, strides[dim], guards);
}

}  // namespace stepc
