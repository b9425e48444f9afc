// [parallel] of run.toml as a Strategy: how the step is spread over ranks.
#pragma once

#include "comm/launch.h"
#include "engine/ranks/stage_cuts.h"
#include "passes/partition/strategy.h"
#include "train/config/run_config.h"

namespace stepc::train {

// UserError that begins with the key: a dp_shard of -1 without a rank count, a mesh that is not parallel.ranks, a rule
// along an axis that the mesh has not. Of one rank its mesh has no axes; ranks without any axis are dp_shard.
Strategy strategy_of(const RunConfig& config);
// Of a run's ranks: UserError where they cannot hold an axis that is given, which it names with the number needed.
Strategy strategy_of(RunConfig config, const Launch& launch);

// Whether [parallel] gives an axis; where it gives none, all ranks are dp_shard.
bool has_axes(const RunConfig::Parallel& parallel);
// Whether the axes are still to be chosen: strategy = "auto" (train/run/choose_strategy.h).
bool is_searched(const RunConfig& config);
// What a strategy says beside its mesh and zero.
Strategy without_mesh(const RunConfig::Parallel& parallel);

// "8 ranks (dp_shard=4,tp=2), zero 3, without sequence_parallel": what a person chose, in words.
std::string to_text(const Strategy& strategy);

// UserError for heads or classes of which not every rank along tp can have one; it says which sizes of tp can.
void check_tensor_parallel(const Strategy& strategy, int64_t heads, int64_t classes);
// UserError for rows of fewer tokens than there are ranks along cp.
void check_context_parallel(const Strategy& strategy, int64_t tokens);

// UserError for more stages than a model with so many layers has, unless the run names the modules that they begin
// with.
void check_pipeline(const RunConfig& config, int64_t layers);
// What it says of a pipeline.
Pipeline pipeline_of(const RunConfig& config);
// UserError for what a pipeline cannot do with this configuration, an order of its passes among it.
void check_stages(const RunConfig& config);

}  // namespace stepc::train
