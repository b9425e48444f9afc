// Whether the ranks of a run were started alike, before the first of them does anything that the others wait for.
#pragma once

#include "comm/ranks.h"
#include "train/config/run_config.h"

namespace stepc::train {

// UserError on every rank, naming the first key that a rank has otherwise than rank 0, and both values.
void check_same_config(Ranks& ranks, const RunConfig& config);
// The same of one fact: "rank 2 has the data 81d2..., and rank 0 ...".
void check_same(Ranks& ranks, const std::string& what, const std::string& mine);

}  // namespace stepc::train
