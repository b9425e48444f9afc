// OrderProblem: units of work and the values between them: everything that matters for the order of the units and for
// the bytes that are live. Plain data; memory/graph_memory.h makes it from a Graph.
//
// While a unit runs, its reads, its results and its workspace are live. A value dies after the last unit that reads it.
// A value of zero bytes is only a dependency: a tensor in the program's own memory.
//
//   unit  reads  makes         live while it runs, whether 1 or 2 comes first
//   0     -      A 10, B 10    20
//   1     A      C 10          30, with Reuse{A, C} and Reuse{B, D} 20
//   2     B      D 10          30, with both 20
//   3     C, D   E 20          40
#pragma once

#include <cstdint>
#include <vector>

#include "memory/layout.h"

namespace stepc {

inline constexpr uint32_t kNone = UINT32_MAX;

struct OrderValue {
  uint64_t bytes = 0;           // rounded up to the alignment
  uint32_t producer = kNone;    // a unit; kNone: exists from the start
  bool kept = false;            // lives to the end of the step
  std::vector<uint32_t> users;  // units, ascending
  bool operator==(const OrderValue&) const = default;
};

// `result` may be written over `operand`, which has as many bytes, if this unit is the last to need it.
struct Reuse {
  uint32_t operand = kNone;
  uint32_t result = kNone;
  bool operator==(const Reuse&) const = default;
};

struct OrderUnit {
  std::vector<uint32_t> reads;   // values, ascending
  std::vector<uint32_t> makes;   // values
  std::vector<uint32_t> after;   // units that must have run, beside the producers of its reads
  std::vector<Reuse> reuses;     // taken in this order, each value at most once
  uint64_t workspace_bytes = 0;  // rounded up to the alignment
  bool operator==(const OrderUnit&) const = default;
};

// Units are in program order: a unit comes after everything that it needs.
struct OrderProblem {
  std::vector<OrderUnit> units;
  std::vector<OrderValue> values;
  bool operator==(const OrderProblem&) const = default;
};

using UnitOrder = std::vector<uint32_t>;
UnitOrder program_order(const OrderProblem& problem);

// Throws InternalError that names the first promise that the problem breaks.
void verify(const OrderProblem& problem);
// Throws InternalError unless every unit occurs once and after everything that it needs.
void verify_order(const OrderProblem& problem, const UnitOrder& order);

// By unit: the units that must come directly before it, ascending, and directly after it.
std::vector<std::vector<uint32_t>> predecessors(const OrderProblem& problem);
std::vector<std::vector<uint32_t>> successors(const OrderProblem& problem);

// The largest sum of live bytes of an order, and the first unit that reaches it; kNone: no unit.
struct OrderPeak {
  uint64_t bytes = 0;
  uint32_t unit = kNone;
};
OrderPeak peak_of(const OrderProblem& problem, const UnitOrder& order);
inline uint64_t peak_bytes(const OrderProblem& problem, const UnitOrder& order) {
  return peak_of(problem, order).bytes;
}

// The memory that an order needs: values, where a value and those that take over its memory are one interval, and
// workspaces. Time is the position in the order.
struct OrderIntervals {
  LayoutProblem layout;
  std::vector<uint32_t> interval_of;            // by value; kNone: no bytes
  std::vector<uint32_t> workspace_interval_of;  // by unit; kNone: no workspace
};
OrderIntervals intervals_of(const OrderProblem& problem, const UnitOrder& order);

}  // namespace stepc
