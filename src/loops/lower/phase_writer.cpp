#include "loops/lower/phase_writer.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace stepc {

namespace {
constexpr int64_t kWorthAThread = 16384;  // elements
int64_t ceil_divided(int64_t count, int64_t by) { return (count + by - 1) / by; }
}  // namespace

PhaseWriter::PhaseWriter(PhaseForm form, const std::vector<int64_t>& extents, const std::vector<bool>& merged)
    : form_(std::move(form)), extents_(extents), variable_of_(extents.size(), kMerged) {
  rows_ = chains_of(form_.rows, merged);
  columns_ = chains_of(form_.columns, merged);
  entry_ = new_block();
  item_ = row_ = sweep_ = new_block();
  item_end_ = new_block();
  make_variables();
}

size_t PhaseWriter::new_block() {
  blocks_.emplace_back();
  return blocks_.size() - 1;
}

std::vector<PhaseWriter::Chain> PhaseWriter::chains_of(const std::vector<uint32_t>& loops,
                                                       const std::vector<bool>& merged) const {
  std::vector<Chain> chains;
  for (uint32_t loop : loops) {
    if (chains.empty() || !merged[loop]) chains.push_back({loop, 1, 0});
    chains.back().innermost = loop;
    chains.back().extent *= extents_[loop];
  }
  return chains;
}

uint32_t PhaseWriter::add_variable(LoopVariable variable) {
  variables_.push_back(variable);
  return static_cast<uint32_t>(variables_.size() - 1);
}
void PhaseWriter::assign(Chain& chain, uint32_t variable) {
  chain.variable = variable;
  variable_of_[chain.innermost] = variable;
}

// The first `count` chains as digits of `source`, or as `source` itself.
void PhaseWriter::add_digits(std::vector<Chain>& chains, size_t count, uint32_t source) {
  if (count == 1) return assign(chains[0], source);
  int64_t divisor = 1;
  for (size_t i = count; i-- > 0;) {
    assign(chains[i], add_variable({LoopVariable::Kind::kDigit, chains[i].extent, false, 1, source, divisor}));
    divisor *= chains[i].extent;
  }
}

size_t PhaseWriter::add_loop(size_t block, uint32_t variable) {
  const size_t inside = new_block();
  LoopInstruction begin;
  begin.op = LoopOp::kLoop;
  begin.loop = variable;
  LoopInstruction end;
  end.op = LoopOp::kEnd;
  blocks_[block].push_back({begin, kNone, -1});
  blocks_[block].push_back({{}, kNone, static_cast<int>(inside)});
  blocks_[block].push_back({end, kNone, -1});
  return inside;
}

int64_t PhaseWriter::rows() const {
  int64_t count = 1;
  for (const Chain& chain : rows_) count *= chain.extent;
  return count;
}
int64_t PhaseWriter::row_size() const {
  int64_t count = 1;
  for (const Chain& chain : columns_) count *= chain.extent;
  return count;
}

void PhaseWriter::make_variables() {
  using Kind = PhaseForm::Kind;
  add_variable({LoopVariable::Kind::kItem, 1, form_.kind == Kind::kFlat && !columns_.empty()});
  switch (form_.kind) {
    case Kind::kRows:
      items_ = rows();
      add_digits(rows_, rows_.size(), 0);
      break;
    case Kind::kLanes:
      if (rows_.size() == 1) {  // lanes are items
        items_ = rows();
        variables_[0].vector = true;
        assign(rows_[0], 0);
        break;
      }
      items_ = rows() / rows_.back().extent;
      add_digits(rows_, rows_.size() - 1, 0);
      assign(rows_.back(), add_variable({LoopVariable::Kind::kCount, rows_.back().extent, true}));
      row_variable_ = rows_.back().variable;
      break;
    case Kind::kChunks: {
      // At least a few thousand elements a chunk, and no more chunks than the machine has use for.
      const int64_t fewest = std::max<int64_t>(1, 4096 / std::max<int64_t>(row_size(), 1));
      const int64_t block = std::max(fewest, ceil_divided(rows(), form_.most_chunks));
      items_ = ceil_divided(rows(), block);
      row_variable_ = add_variable({LoopVariable::Kind::kChunk, rows(), false, block});
      add_digits(rows_, rows_.size(), row_variable_);
      break;
    }
    case Kind::kFlat:
      items_ = row_size();
      if (!columns_.empty()) assign(columns_[0], 0);
      break;
    case Kind::kFlatChunks: {
      const int64_t share = ceil_divided(ceil_divided(row_size(), form_.most_chunks), 64) * 64;
      const int64_t block = std::max(kWorthAThread, share);
      items_ = ceil_divided(row_size(), block);
      assign(columns_[0], add_variable({LoopVariable::Kind::kChunk, row_size(), true, block}));
      break;
    }
  }
  if (row_variable_ != 0) sweep_ = row_ = new_block();
  if (form_.kind == Kind::kFlat || form_.kind == Kind::kFlatChunks) return;
  for (Chain& chain : columns_) assign(chain, add_variable({LoopVariable::Kind::kCount, chain.extent, false}));
  if (form_.kind != Kind::kLanes && !columns_.empty()) variables_[columns_.back().variable].vector = true;
}

// Values of the row that a sweep asks for come before its loops, so the loops go in when the sweep ends.
void PhaseWriter::begin_sweep(Level in) {
  sweep_outside_ = in == Level::kItem ? item_ : row_;
  sweep_ = form_.kind == PhaseForm::Kind::kFlat || columns_.empty() ? sweep_outside_ : new_block();
}

void PhaseWriter::end_sweep() {
  known_[static_cast<size_t>(Level::kSweep)].clear();
  if (sweep_ != sweep_outside_ && !blocks_[sweep_].empty()) {
    size_t block = sweep_outside_;
    for (const Chain& chain : columns_) block = add_loop(block, chain.variable);
    blocks_[block].push_back({{}, kNone, static_cast<int>(sweep_)});
  }
  sweep_ = row_;
}

void PhaseWriter::end_rows() { rows_done_ = true; }

Affine PhaseWriter::begin_serial(int64_t extent) {
  const uint32_t variable = add_variable({LoopVariable::Kind::kCount, extent, false});
  serial_outside_.push_back(sweep_);
  sweep_ = add_loop(sweep_, variable);
  known_[static_cast<size_t>(Level::kSweep)].clear();
  return Affine::of(kVariableMark + variable);
}
void PhaseWriter::end_serial() {
  sweep_ = serial_outside_.back();
  serial_outside_.pop_back();
  known_[static_cast<size_t>(Level::kSweep)].clear();
}

size_t PhaseWriter::block_of(Level level) const {
  switch (level) {
    case Level::kEntry:
      return entry_;
    case Level::kItem:
      return rows_done_ ? item_end_ : item_;
    case Level::kRow:
      return row_;
    case Level::kSweep:
      return sweep_;
  }
  return entry_;
}

Level PhaseWriter::level_of(const Affine& affine) const {
  Level level = Level::kEntry;
  for (const AffineTerm& term : affine.terms) {
    Level own = Level::kRow;
    if (term.loop >= kVariableMark)
      own = term.loop == kVariableMark ? Level::kItem : Level::kSweep;
    else if (std::ranges::find(form_.columns, term.loop) != form_.columns.end())
      own = Level::kSweep;
    else
      INTERNAL_CHECK(std::ranges::find(form_.rows, term.loop) != form_.rows.end(), "loop {} is not run", term.loop);
    level = std::max(level, own);
  }
  return level;
}

Affine PhaseWriter::translated(const Affine& affine) {
  seen_.push_back(affine);
  Affine out = Affine::constant(affine.offset);
  for (const AffineTerm& term : affine.terms) {
    const uint32_t variable = term.loop >= kVariableMark ? term.loop - kVariableMark : variable_of_[term.loop];
    if (variable != kMerged) out = out + Affine::of(variable, term.stride);
  }
  return out;
}

std::vector<bool> PhaseWriter::mergeable() const {
  std::vector<bool> out(extents_.size(), false);
  for (const auto& loops : {form_.rows, form_.columns})
    for (size_t i = 1; i < loops.size(); ++i) {
      const uint32_t outer = loops[i - 1];
      const uint32_t inner = loops[i];
      out[inner] = std::ranges::all_of(seen_, [&](const Affine& affine) {
        return affine.stride_of(outer) == affine.stride_of(inner) * extents_[inner];
      });
    }
  return out;
}

PhaseWriter::Value PhaseWriter::append(Level level, LoopInstruction instruction) {
  const bool is_pure = instruction.op != LoopOp::kLoad && instruction.op != LoopOp::kStore &&
                       instruction.op != LoopOp::kAccumulator && instruction.op != LoopOp::kAccumulate &&
                       instruction.op != LoopOp::kFinish;
  const Key key{instruction.op,      instruction.type,  instruction.args, std::bit_cast<uint64_t>(instruction.real),
                instruction.integer, instruction.dtype, instruction.index};
  auto& known = known_[static_cast<size_t>(level)];
  if (is_pure)
    if (const auto found = known.find(key); found != known.end()) return found->second;
  const auto id = static_cast<Value>(values_.size());
  values_.push_back(instruction);
  levels_.push_back(level);
  blocks_[block_of(level)].push_back({std::move(instruction), id, -1});
  if (is_pure) known.emplace(key, id);
  return id;
}

PhaseWriter::Value PhaseWriter::constant(ValueType type, double value) {
  LoopInstruction one;
  one.type = type;
  one.real = value;
  return append(Level::kEntry, one);
}
PhaseWriter::Value PhaseWriter::integer(ValueType type, int64_t value) {
  LoopInstruction one;
  one.type = type;
  one.integer = value;
  return append(Level::kEntry, one);
}

std::optional<double> PhaseWriter::constant_value(Value value) const {
  const LoopInstruction& one = at(value);
  return one.op == LoopOp::kConstant && is_real(one.type) ? std::optional(one.real) : std::nullopt;
}

PhaseWriter::Value PhaseWriter::index(const Affine& affine) {
  if (affine.terms.empty()) return integer(ValueType::kI64, affine.offset);
  LoopInstruction one;
  one.op = LoopOp::kIndex;
  one.type = ValueType::kI64;
  one.index = translated(affine);
  return append(level_of(affine), one);
}

PhaseWriter::Value PhaseWriter::load(uint32_t buffer, ValueType type, const Affine& position, Value indirect,
                                     int64_t stride, Value condition) {
  LoopInstruction one;
  one.op = LoopOp::kLoad;
  one.type = type;
  one.buffer = buffer;
  one.args = {indirect, condition, kNone};
  one.indirect = stride;
  one.index = translated(position);
  Level place = level_of(position);
  for (Value arg : {indirect, condition})
    if (arg != kNone) place = std::max(place, level(arg));
  return append(place, one);
}

PhaseWriter::Value PhaseWriter::compute(LoopOp op, std::vector<Value> args) {
  INTERNAL_CHECK_EQ(args.size(), operand_count(op), "{}", name_of(op));
  LoopInstruction one;
  one.op = op;
  Level place = Level::kEntry;
  for (size_t k = 0; k < args.size(); ++k) {
    one.args[k] = args[k];
    place = std::max(place, level(args[k]));
  }
  const bool is_test =
      op == LoopOp::kEq || op == LoopOp::kNe || op == LoopOp::kLt || op == LoopOp::kLe || op == LoopOp::kIsNan;
  one.type = is_test ? ValueType::kBool : type(args.back());
  return append(place, one);
}

PhaseWriter::Value PhaseWriter::convert(Value value, ValueType to) {
  if (type(value) == to) return value;
  LoopInstruction one;
  one.op = LoopOp::kConvert;
  one.type = to;
  one.args[0] = value;
  return append(level(value), one);
}

PhaseWriter::Value PhaseWriter::round_to(Value value, DType dtype) {
  const ValueType to = value_type_of(dtype);
  const bool is_narrow =
      (to == ValueType::kF32 && dtype != DType::kF32) || (to == ValueType::kI64 && dtype != DType::kI64);
  if (!is_narrow) return convert(value, to);
  // Two roundings, the second to fewer digits, would not be one: f64 goes to the narrow type at once.
  if (to == ValueType::kF32 && type(value) != ValueType::kF64)
    value = convert(value, type(value) == ValueType::kI64 ? ValueType::kF64 : ValueType::kF32);
  if (to == ValueType::kI64) value = convert(value, ValueType::kI64);
  LoopInstruction one;
  one.op = LoopOp::kRoundTo;
  one.type = to;
  one.dtype = dtype;
  one.args[0] = value;
  return append(level(value), one);
}

PhaseWriter::Value PhaseWriter::bits(Value value, ValueType to) {
  LoopInstruction one;
  one.op = LoopOp::kBits;
  one.type = to;
  one.args[0] = value;
  return append(level(value), one);
}

void PhaseWriter::store_in(size_t sweep, uint32_t buffer, const Affine& position, Value value) {
  std::swap(sweep_, sweep);
  store(Level::kSweep, buffer, position, value);
  std::swap(sweep_, sweep);
}

void PhaseWriter::store(Level place, uint32_t buffer, const Affine& position, Value value) {
  LoopInstruction one;
  one.op = LoopOp::kStore;
  one.type = type(value);
  one.buffer = buffer;
  one.args[0] = value;
  one.index = translated(position);
  append(place, one);
}

PhaseWriter::Value PhaseWriter::accumulator(Level place, ValueType type, Combine combine, double real,
                                            int64_t integer) {
  LoopInstruction one;
  one.op = LoopOp::kAccumulator;
  one.type = type;
  one.combine = combine;
  if (is_real(type))
    one.real = real;
  else
    one.integer = integer;
  return append(place, one);
}
void PhaseWriter::accumulate(Level place, Value accumulator, Value value) {
  LoopInstruction one;
  one.op = LoopOp::kAccumulate;
  one.type = type(accumulator);
  one.args = {accumulator, value, kNone};
  append(place, one);
}
PhaseWriter::Value PhaseWriter::finish(Level place, Value accumulator) {
  LoopInstruction one;
  one.op = LoopOp::kFinish;
  one.type = type(accumulator);
  one.args[0] = accumulator;
  return append(place, one);
}

void PhaseWriter::flatten(size_t block, std::vector<int32_t>& place, LoopPhase& phase) const {
  for (const Entry& entry : blocks_[block]) {
    if (entry.nested >= 0) {
      flatten(static_cast<size_t>(entry.nested), place, phase);
      continue;
    }
    LoopInstruction one = entry.instruction;
    for (int32_t& arg : one.args)
      if (arg != kNone) arg = place[static_cast<size_t>(arg)];
    if (entry.id != kNone) place[static_cast<size_t>(entry.id)] = static_cast<int32_t>(phase.instructions.size());
    phase.instructions.push_back(std::move(one));
  }
}

LoopPhase PhaseWriter::take() {
  const auto nest = [&](size_t outside, size_t inside) {
    blocks_[outside].push_back({{}, kNone, static_cast<int>(inside)});
  };
  if (row_variable_ != 0) nest(add_loop(item_, row_variable_), row_);
  nest(item_, item_end_);
  nest(add_loop(entry_, 0), item_);
  LoopPhase phase;
  phase.items = items_;
  const int64_t item_size = std::max<int64_t>(1, rows() * row_size() / items_);
  phase.grain = std::max<int64_t>(1, kWorthAThread / item_size);
  phase.variables = variables_;
  std::vector<int32_t> place(values_.size(), kNone);
  flatten(entry_, place, phase);
  return phase;
}

}  // namespace stepc
