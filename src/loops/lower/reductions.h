// Which loops a group's reductions run over and in what form: rows with sweep after sweep, lanes that are rows, or
// shares of all rows, each summed by one item.
#pragma once

#include <vector>

#include "loops/lower/loop_space.h"
#include "loops/lower/phase_writer.h"

namespace stepc {

using Loops = std::vector<uint32_t>;  // ascending
bool includes(const Loops& all, const Loops& some);
Loops without(const Loops& all, const Loops& some);

// A reduction that loops, as the space sees it.
struct Reduction {
  const Node* node = nullptr;
  Loops operand, dropped;  // loops
  bool across = false;     // over rows: the shares of the items are added in a phase of its own
  int depth = 0;           // of a row's reduction: after how many others
  uint32_t shares = 0;     // across: the scratch buffer
};

struct Reductions {
  std::vector<Reduction> all;
  PhaseForm form;              // of the phase that they run in
  std::vector<int> depths;     // by tensor: how many of a row's reductions come before it
  std::vector<bool> is_final;  // by tensor: made of sums over all rows
};

// NoLoops where they go together in no form. The nodes are the group's.
Reductions reductions_of(const Graph& group, const LoopSpace& space);

}  // namespace stepc
