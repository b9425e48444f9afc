// Intervals prepared for placement, and the orders in which the greedy algorithms place them. Internal to memory/.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/layout.h"

namespace stepc::memory {

struct Span {
  uint64_t bytes = 0;   // rounded up to the alignment, above zero
  int32_t first = 0;    // times renumbered to 0, 1, 2 ...
  int32_t last = 0;     // exclusive
  uint32_t source = 0;  // index in the problem
};

// One span for every interval of more than zero bytes, in the problem's order. Checks the problem; afterwards no sum of
// sizes can wrap.
std::vector<Span> make_spans(const LayoutProblem& problem);

// Indices into the spans. Ties are broken by size, then begin, then index, so an order is a function of its input.
using Order = std::vector<uint32_t>;

Order by_size(const std::vector<Span>& spans);      // largest first
Order by_area(const std::vector<Span>& spans);      // largest bytes x ticks first
Order by_duration(const std::vector<Span>& spans);  // longest-lived first
Order by_breadth(const std::vector<Span>& spans);   // those live at the fullest tick first, then the next fullest
Order by_time(const std::vector<Span>& spans);      // as the program allocates

}  // namespace stepc::memory
