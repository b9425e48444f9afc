// From a group of nodes to the loops of one kernel. The largest tensor gives the loops; reductions over its last
// dimensions make rows, in which sweep follows sweep (softmax, normalisations); sums over the rows themselves (of a
// bias's gradient, of a norm) come last: every item sums a share that is fixed by the shape, a second phase adds the
// shares. Parts of a group that nothing connects have phases of their own.
#pragma once

#include <string>

#include "ir/graph.h"
#include "loops/loop_program.h"
#include "loops/lower/loop_space.h"

namespace stepc {

// Why `group` cannot be one kernel; empty: it can.
std::string why_no_loops(const Graph& group, Together together = Together::kConnected);

// What follows from the machine that the loops are for; the defaults are for CPUs.
struct LoopLimits {
  int64_t chunks = 64;            // of a sum over all rows: no more than the machine has use for
  int64_t local_bytes = 1 << 16;  // of a row's costly elements; longer rows compute them again
  bool earlier_sweeps = false;    // read what the last sweep over a row may replace in its place
};

// Buffers: the group's inputs (with their strides and offsets), then its outputs (with their strides). UserError with
// the reason where there is one.
LoopProgram lower(const Graph& group, Together together = Together::kConnected, const LoopLimits& limits = {});

}  // namespace stepc
