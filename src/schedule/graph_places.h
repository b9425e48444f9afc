// The second stage of schedule_graph(): the order of the units, and a place for every tensor and every unit's scratch
// memory. Private to schedule/.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/graph_memory.h"
#include "memory/layout.h"
#include "schedule/graph_kernels.h"
#include "schedule/schedule.h"

namespace stepc {

// The place of a tensor that is not a window.
struct Place {
  enum class Kind : uint8_t { kNowhere, kArena, kInput, kOwn };
  Kind kind = Kind::kNowhere;
  uint32_t input = 0;   // kInput
  uint64_t offset = 0;  // kArena
};

struct GraphPlaces {
  GraphMemory graph_memory;
  UnitOrder order;
  Layout layout;
  uint64_t live_bytes = 0;       // the largest sum of live bytes: no layout is smaller
  std::vector<Place> places;     // by tensor
  std::vector<Scratch> scratch;  // by unit
};

// The memory of all workers of an ATen call.
uint64_t worker_bytes(const GraphKernels::Unit& unit, int threads);

// Keeps the order of units from graph_memory(): program order, except for what guards need.
GraphPlaces plan_places(const GraphKernels& kernels, int threads);

}  // namespace stepc
