// What each rank of a run measured, for its report: a row a rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/ranks.h"

namespace stepc::train {

// Of a step, but for the memory.
struct RankRow {
  double step_seconds = 0;  // median
  double comm_seconds = 0;  // in collectives: sending, and waiting for others
  double batch_seconds = 0;
  uint64_t sent_bytes = 0;
  uint64_t planned_bytes = 0, measured_bytes = 0;  // step memory at its peak, communication included
  uint64_t process_bytes = 0;                      // resident at most

  bool operator==(const RankRow&) const = default;
};

// Of all ranks, in their order; all call it together.
std::vector<RankRow> gather_rows(Ranks& ranks, const RankRow& mine);

// Lines for a terminal. Nothing of no ranks.
std::string to_text(const std::vector<RankRow>& rows);
// A section of a page.
std::string to_html(const std::vector<RankRow>& rows);

}  // namespace stepc::train
