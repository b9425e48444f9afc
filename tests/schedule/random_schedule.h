// Schedules that say anything that the types can say, for tests of the text form. They mean nothing.
#pragma once

#include <bit>
#include <cmath>
#include <complex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "tests/schedule/schedules.h"

namespace stepc {

class RandomSchedule {
 public:
  explicit RandomSchedule(uint32_t seed) : engine_(seed) {}

  Schedule make() {
    Schedule out;
    for (const FeatureName& feature : kFeatureNames) out.features.*feature.there = flag();
    out.threads = 1 + static_cast<int>(below(64));
    if (flag()) out.mesh = parse_mesh(flag() ? "dp_shard=2,tp=3" : "tp=4");
    mesh_ = out.mesh;
    list(out.buffers, [&] { return buffer(); });
    list(out.operands, [&] { return operand(out.buffers.size()); });
    operands_ = out.operands.size();
    list(out.inputs, [&] { return ScheduleInput{input_kind(), text(), operand_id(), flag(), part()}; });
    list(out.programs, [] { return parse_schedule(kTrainingStep).programs[0]; });
    list(out.nodes, [] { return parse_schedule(kEveryLine).nodes[0]; });
    list(out.generators, [&] { return text(); });
    list(out.states, [&] { return text(); });
    list(out.instructions, [&] { return instruction(); });
    list(out.outputs, [&] { return output(); });
    list(out.host_numbers, [&] { return host_number(); });
    out.numbers = id();
    if (flag()) {
      out.device = "cuda:1";
      out.device_begin = bytes();
    }
    out.arena_bytes = bytes();
    out.live_lower_bound_bytes = bytes();
    out.layout_algorithm = text();
    return out;
  }

 private:
  Space space() { return flag() ? Space::kDevice : Space::kHost; }
  uint64_t below(uint64_t count) { return engine_() % count; }
  bool flag() { return below(2) == 0; }
  uint32_t id() { return static_cast<uint32_t>(below(flag() ? 3 : UINT32_MAX)); }
  uint64_t bytes() { return flag() ? below(1000) : engine_(); }
  int64_t integer() { return flag() ? static_cast<int64_t>(below(20)) - 10 : static_cast<int64_t>(engine_()); }
  double real() {
    const auto x = std::bit_cast<double>(engine_());
    return std::isnan(x) || flag() ? static_cast<double>(integer()) / 8 : x;
  }
  std::string text() {
    std::string out;
    for (uint64_t n = below(6); n > 0; --n) out += static_cast<char>(flag() ? 'a' + below(26) : below(256));
    return out;
  }
  std::string word() { return "w" + std::to_string(below(1000)) + (flag() ? "::x.y" : ""); }
  template <class T, class F>
  void list(std::vector<T>& out, F&& element) {
    for (uint64_t n = below(5); n > 0; --n) out.push_back(element());
  }
  template <class F>
  auto list_of(F&& element) {
    std::vector<decltype(element())> out;
    list(out, element);
    return out;
  }
  template <class T>
  T kind(size_t count) {
    return static_cast<T>(below(count));
  }
  Shape shape() {
    return list_of([&] { return static_cast<int64_t>(below(9)); });
  }
  DType dtype() { return kind<DType>(14); }
  InputKind input_kind() { return kind<InputKind>(11); }

  Buffer buffer() {
    return {kind<Buffer::Kind>(4), bytes(), flag() ? bytes() : 0, flag() ? id() : 0, flag() ? text() : "", space()};
  }
  Operand operand(size_t buffers) {
    Operand out;
    if (buffers > 0 && below(8) != 0) out.buffer = BufferId(below(buffers));
    out.dtype = dtype();
    out.sizes = shape();
    out.strides = contiguous_strides(out.sizes);
    if (flag())
      for (int64_t& stride : out.strides) stride = integer();
    out.offset = flag() ? integer() : 0;
    out.conj = flag();
    out.neg = flag();
    return out;
  }
  OperandId operand_id() { return operands_ == 0 || below(8) == 0 ? OperandId() : OperandId(below(operands_)); }

  std::optional<PartOf> part() {
    if (flag()) return std::nullopt;
    PartOf out;
    out.shape = shape();
    Axis next = 0;  // each axis in one place
    const auto has_axis = [&] { return flag() && next < mesh_.axes.size(); };
    for (int64_t size : out.shape) {
      Pieces pieces;
      if (size > 0 && has_axis()) pieces = {{size, {next++}}};
      out.sharding.dims.push_back(canonical(pieces, mesh_));
    }
    if (has_axis()) out.sharding.set_partial(next, kind<ReduceOp>(3));
    return out;
  }

  ValueId value() { return below(4) == 0 ? ValueId() : ValueId(id()); }
  WrappedNumber wrapped() {
    switch (below(4)) {
      case 0:
        return {flag()};
      case 1:
        return {integer()};
      case 2:
        return {real()};
      default:
        return {std::complex<double>(real(), real())};
    }
  }
  Arg arg() {
    switch (below(15)) {
      case 0:
        return std::monostate();
      case 1:
        return flag();
      case 2:
        return integer();
      case 3:
        return real();
      case 4:
        return std::complex<double>(real(), real());
      case 5:
        return text();
      case 6:
        return list_of([&] { return integer(); });
      case 7:
        return list_of([&] { return real(); });
      case 8:
        return list_of([&] { return flag(); });
      case 9:
        return Symbol{kind<Symbol::Kind>(4), word()};
      case 10:
        return wrapped();
      case 11:
        return value();
      case 12:
        return list_of([&] { return value(); });
      case 13:
        return ReadNumber{CallId(id()), kind<ReadNumber::Kind>(3), flag()};
      default:
        return GeneratorArg{GeneratorId(id())};
    }
  }
  AttrValue attr() {
    switch (below(7)) {
      case 0:
        return flag();
      case 1:
        return integer();
      case 2:
        return real();
      case 3:
        return dtype();
      case 4:
        return text();
      case 5:
        return list_of([&] { return integer(); });
      default:
        return list_of([&] { return real(); });
    }
  }
  AtenCall aten() {
    AtenCall out;
    list(out.args, [&] { return arg(); });
    list(out.results, [&] { return arg(); });
    list(out.writes, [&] { return id(); });
    out.draws = flag();
    list(out.layouts, [&] { return std::pair(id(), shape()); });
    out.measured = flag();
    if (out.measured) out.workspace_bytes = bytes();
    if (out.measured) out.worker_bytes = bytes();
    if (flag()) out.rule = rule();
    return out;
  }
  CallRule rule() {
    CallRule out;
    out.flops = static_cast<double>(bytes());
    if (flag()) out.bytes = static_cast<double>(bytes()) / 8;
    if (flag()) out.dims = parse_dim_names(flag() ? "m k, k n -> m n; k: sum" : "a _, , b -> a b, b a");
    return out;
  }
  MatmulCall matmul() {
    MatmulCall out;
    out.left = id();
    out.transposed = flag();
    list(out.products, [&] { return MatmulCall::Product{id(), flag()}; });
    list(out.epilogue_programs, [&] { return flag() ? kNoProgram : id(); });
    list(out.epilogue_inputs, [&] { return TileBuffer{id(), integer(), integer(), flag()}; });
    list(out.epilogue_outputs, [&] { return TileBuffer{id(), integer(), integer(), flag()}; });
    return out;
  }
  Instruction instruction() {
    Instruction out;
    out.kind = kind<Instruction::Kind>(19);
    out.op = flag() ? word() : text();
    list(out.reads, [&] { return operand_id(); });
    list(out.writes, [&] { return operand_id(); });
    for (uint64_t n = below(3); n > 0; --n) out.attrs.set(word(), attr());
    if (flag()) out.aten = aten();
    if (flag()) out.program = id();
    if (flag()) out.matmul = matmul();
    if (flag()) out.number = id();
    if (flag()) out.expected = arg();
    if (flag()) out.event = id();
    if (flag()) out.generator = id();
    if (flag()) out.state = id();
    list(out.allocations, [&] { return PlannedAllocation{bytes(), flag() ? bytes() : 0, flag(), space()}; });
    if (flag()) out.scratch = {bytes(), bytes()};
    if (flag()) out.worker_scratch = {bytes(), bytes()};
    if (flag()) out.stream = id();
    if (flag()) out.call = CallId(id());
    out.source = {kind<Phase>(3), text()};
    if (flag()) out.work = {real(), real(), real()};
    if (flag()) out.why = text();
    return out;
  }
  ScheduleOutput output() {
    ScheduleOutput out;
    out.kind = kind<ScheduleOutput::Kind>(3);
    out.operand = operand_id();
    if (flag()) out.owner = input_kind();
    if (flag()) out.key = text();
    if (flag()) out.value = arg();
    out.part = part();
    return out;
  }
  HostNumber host_number() {
    HostNumber out;
    if (flag()) out.call = CallId(id());
    out.arg = id();
    if (flag()) out.instruction = id();
    list(out.inputs, [&] { return id(); });
    if (flag()) out.integer = integer();
    return out;
  }

  std::mt19937_64 engine_;
  Mesh mesh_;
  size_t operands_ = 0;
};

}  // namespace stepc
