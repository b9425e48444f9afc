#include "train/model/adapter_choice.h"

#include "base/check.h"

namespace stepc::train {

std::optional<models::LoraConfig> adapter_of(const RunConfig::Lora& lora) {
  if (lora.rank == 0) return std::nullopt;
  models::LoraConfig adapter;
  adapter.rank = lora.rank;
  adapter.alpha = lora.alpha;
  adapter.dropout = lora.dropout;
  adapter.target_modules = lora.targets;
  return adapter;
}

void choose_adapter(const RunConfig& config, ModelDirectory& directory) {
  const RunConfig::Lora& lora = config.lora;
  if (directory.adapter) {
    USER_CHECK(lora.rank == 0 || lora.rank == directory.adapter->rank,
               "lora.rank = {}: the adapter in {} has rank {}; give that, or 0", lora.rank, directory.path.string(),
               directory.adapter->rank);
    return;
  }
  directory.adapter = adapter_of(lora);
  if (!directory.adapter) return;
  directory.adapter->base_model = directory.path.string();
  directory.fresh_adapter_seed = static_cast<uint64_t>(config.train.seed) + 1;
}

}  // namespace stepc::train
