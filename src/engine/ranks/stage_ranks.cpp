#include "engine/ranks/stage_ranks.h"

#include <numeric>
#include <vector>

namespace stepc {

namespace {
// The places of the ranks along pp, which is the outermost axis.
std::vector<int64_t> places_across(const StageRanks& ranks) {
  const int64_t of_stage = ranks.stage_mesh.ranks(), place = ranks.all->rank() % of_stage;
  std::vector<int64_t> members;
  for (int64_t s = 0; s < ranks.count; ++s) members.push_back(s * of_stage + place);
  return members;
}
}  // namespace

Mesh without_stages(const Mesh& mesh) {
  Mesh stage = mesh;
  std::erase_if(stage.axes, [](const MeshAxis& axis) { return axis.name == "pp"; });
  return stage;
}

StageRanks stage_ranks(const Mesh& mesh, const std::shared_ptr<Ranks>& all) {
  StageRanks ranks{mesh, without_stages(mesh), all, all};
  const auto pp = mesh.find("pp");
  if (!pp) return ranks;
  INTERNAL_CHECK(*pp == 0, "pp is not the outermost axis of {}", to_text(mesh));
  ranks.count = mesh.size(*pp);
  const int64_t of_stage = ranks.stage_mesh.ranks();
  ranks.own = all->rank() / of_stage;
  std::vector<int64_t> members(static_cast<size_t>(of_stage));
  std::iota(members.begin(), members.end(), ranks.own * of_stage);
  ranks.stage = all->part(members);
  return ranks;
}

RankGroup& across_stages(const StageRanks& ranks) { return ranks.all->among(places_across(ranks)); }

RankGroup& messages_across_stages(const StageRanks& ranks) {
  return ranks.all->among(places_across(ranks), /*for_messages=*/true);
}

RankGroup& across_stages(const StageRanks& ranks, const std::vector<int64_t>& stages) {
  const std::vector<int64_t> all = places_across(ranks);
  std::vector<int64_t> members;
  for (const int64_t stage : stages) members.push_back(all.at(static_cast<size_t>(stage)));
  return ranks.all->among(members);
}

}  // namespace stepc
