// The ranks of a pipeline as one of them sees them: all ranks of the run, the ranks of its stage, which share
// everything but the pipeline, and the ranks at its place in the other stages.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/ranks.h"
#include "ir/mesh.h"

namespace stepc {

struct StageRanks {
  Mesh mesh;                     // of all
  Mesh stage_mesh;               // without pp
  std::shared_ptr<Ranks> all;    // of the run
  std::shared_ptr<Ranks> stage;  // of the mesh without pp
  int64_t count = 1;             // ranks along pp
  int64_t own = 0;               // this one's place along pp
};

// Without an axis pp all ranks are one stage.
StageRanks stage_ranks(const Mesh& mesh, const std::shared_ptr<Ranks>& all);
Mesh without_stages(const Mesh& mesh);

// The group of those which have this rank's place along all axes but pp, the first stage's first.
RankGroup& across_stages(const StageRanks& ranks);
// The same, for messages alone.
RankGroup& messages_across_stages(const StageRanks& ranks);
// Of those the ones of some stages, in order, this one among them.
RankGroup& across_stages(const StageRanks& ranks, const std::vector<int64_t>& stages);

}  // namespace stepc
