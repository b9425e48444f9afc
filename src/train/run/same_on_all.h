// Whether the ranks of a run were started alike, before the first of them does anything that the others wait for.
#pragma once

#include <filesystem>
#include <string>

#include "base/check.h"
#include "comm/ranks.h"
#include "train/config/run_config.h"

namespace stepc::train {

// UserError on every rank, naming the first key that a rank has otherwise than rank 0, and both values.
void check_same_config(Ranks& ranks, const RunConfig& config);
// The same of one fact: "rank 2 has the data 81d2..., and rank 0 ...".
void check_same(Ranks& ranks, const std::string& what, const std::string& mine);

// UserError on a rank that does not find in the directory what rank 0 writes there, and takes away again. All ranks
// call it together.
void check_shared_directory(Ranks& ranks, const std::filesystem::path& directory);

// Does it. What goes wrong on one rank, and would leave the others waiting for it, ends all of them alike: they hear of
// it in the next call that all make together (Ranks::fail()). Without ranks it is thrown as ever.
template <class Work>
auto or_fail_together(Ranks* ranks, const Work& work) {
  try {
    return work();
  } catch (const LostRank&) {
    throw;
  } catch (const RankFailed&) {
    throw;
  } catch (const UserError& error) {
    if (ranks == nullptr) throw;
    try {
      ranks->fail(error.what());
    } catch (const LostRank&) {  // NOLINT(bugprone-empty-catch): its own reason comes first
    }
    throw;
  }
}

}  // namespace stepc::train
