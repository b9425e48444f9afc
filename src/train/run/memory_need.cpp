#include "train/run/memory_need.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "base/machine_memory.h"
#include "base/text.h"
#include "train/machine/device.h"
#include "train/machine/machine.h"
#include "train/step/local_learner.h"
#include "train/step/optimizer_choice.h"

namespace stepc::train {

uint64_t MemoryNeed::total() const {
  return weights + optimizer + std::max(loading, gradients + copies.staging) + copies.snapshots;
}

MemoryNeed memory_need(const RunConfig& config, const ModelDirectory& directory, uint64_t file_bytes) {
  const auto compute = at::TensorOptions(at::kMeta).dtype(models::scalar_type(config.model.compute));
  models::Decoder model(directory.config, compute);  // shapes alone
  if (directory.adapter) models::add_adapters(model, *directory.adapter, 0);
  const models::NamedTensors trained = models::trainable_parameters(model);
  const ChosenOptimizer chosen = choose_optimizer(config, trained);

  MemoryNeed need;
  need.loading = file_bytes;
  for (const at::Tensor& parameter : model->parameters()) need.weights += parameter.nbytes();
  for (const auto& [name, tensor] : chosen.optimizer->named_state()) need.optimizer += tensor.nbytes();
  // Gradients of micro-batches are added, and scaled gradients unscaled, in float32.
  const bool wide = config.train.micro_batches > 1 || chosen.scaler;
  for (const auto& [name, tensor] : trained)
    need.gradients += static_cast<uint64_t>(
        tensor.numel() * (wide ? std::max<int64_t>(sizeof(float), tensor.element_size()) : tensor.element_size()));
  need.copies =
      copies_need(config, saved_weights(directory, model, *chosen.optimizer), chosen.optimizer->named_state());
  return need;
}

std::string to_text(const PlannedNeed& need, const at::Device& device) {
  const std::string step = str("model and optimizer {}, step {}", human_bytes(need.state), human_bytes(need.step));
  const std::string beside = str("{}the program itself {}", to_text(need.copies), human_bytes(need.process));
  const std::string there = human_bytes(usable_bytes());
  if (device.is_cpu())
    return str("a run takes {}: {}, {}; there is {}", human_bytes(need.total()), step, beside, there);
  return str("a run takes {} on {}: {}; beside it on the host {}, and there is {}", human_bytes(need.state + need.step),
             device.str(), step, beside, there);
}

void check_memory_need(const ModelDirectory& directory, const PlannedNeed& need, const at::Device& device) {
  const std::string what = "training " + directory.path.string();
  const uint64_t on_device = device.is_cpu() ? 0 : need.state + need.step;
  check_device_memory(what, device, on_device);
  check_memory(what, need.total() - on_device);
}

void check_memory_need(const ModelDirectory& directory, const MemoryNeed& need, const at::Device& device) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, uint64_t bytes) {
    if (bytes > 0) parts.push_back(str("{} {}", name, human_bytes(bytes)));
  };
  add("weights", need.weights);
  add("optimizer", need.optimizer);
  add("gradients", need.gradients);
  add("copy for saves", need.copies.staging);
  add("snapshots", need.copies.snapshots);
  const std::string what = str("training {} ({})", directory.path.string(), fmt::join(parts, ", "));
  if (device.is_cpu()) return check_memory(what, need.total());
  check_device_memory(what, device, need.weights + need.optimizer + need.gradients);
  check_memory(what, std::max(need.loading, need.copies.staging) + need.copies.snapshots);
}

}  // namespace stepc::train
