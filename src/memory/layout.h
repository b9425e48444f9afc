// Static memory layout: lifetimes in, offsets in one arena out. Pure and deterministic: the same problem gives the same
// layout on every machine, and the work done is bounded by a count, never by a clock.
//
// Time is a dense event clock: one tick for every allocation and every free. An interval is live in [first, last), so
// memory freed at tick t may be given out again at tick t. Two intervals conflict when both are live at some tick; only
// then must their bytes not overlap. Worked example with alignment 1 (the first test of tests/memory/layout_test.cpp):
//
//        bytes  first  last    offset               tick  0 1 2 3 4 5 6
//   A      10      0     4        20             30 - 40      BBBBBBBB
//   B      10      2     6        30             20 - 30  AAAAAAAA  DDDD
//   C      20      1     5         0             10 - 20    CCCCCCCCDDDD
//   D      30      5     7         0        byte  0 - 10    CCCCCCCCDDDD
//
// At ticks 2 and 3 A, B and C are live, together 40 bytes: no arena can be smaller. D begins where C ends.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace stepc {

struct Interval {
  uint64_t bytes = 0;
  int64_t first = 0;
  int64_t last = 0;  // exclusive, after first
  bool operator==(const Interval&) const = default;
};

// Values that outlive the step end at the clock's last tick; values that exist before it begin at its first.
struct LayoutProblem {
  std::vector<Interval> intervals;
  uint64_t alignment = 64;  // a power of two; the arena itself must be aligned to it
};

struct Layout {
  std::vector<uint64_t> offsets;  // one for each interval; 0 for an interval of zero bytes
  uint64_t bytes = 0;             // size of the arena
  std::string_view algorithm;     // that found the layout, for reports
};

// The largest sum of live bytes, each size rounded up to the alignment: no layout is smaller.
uint64_t lower_bound(const LayoutProblem& problem);

// The best layout of all algorithms, improved while it is above the lower bound and the work limit is not reached.
// Throws UserError if the sizes together exceed 8 EiB, InternalError for an empty lifetime or an alignment that is not
// a power of two.
Layout plan_layout(const LayoutProblem& problem);

// An algorithm places the intervals one after the other, each in the lowest or the tightest gap that is free for its
// whole lifetime. Algorithms differ in the order.
std::vector<std::string_view> layout_algorithms();
Layout layout_with(std::string_view algorithm, const LayoutProblem& problem);

// Throws InternalError if two conflicting intervals overlap, an offset is misaligned or an interval leaves the arena.
void verify_layout(const LayoutProblem& problem, const Layout& layout);

}  // namespace stepc
