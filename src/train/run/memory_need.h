// What a run is known to need before anything is allocated: a lower bound, for activations and workspaces come on top.
#pragma once

#include <cstdint>
#include <string>

#include "train/config/run_config.h"
#include "train/model/model_directory.h"
#include "train/step/model_slices.h"

namespace stepc::train {

struct MemoryNeed {
  uint64_t weights = 0;    // of the model, in the dtype of the computation
  uint64_t loading = 0;    // the weights' files, read whole; gone before the first step
  uint64_t optimizer = 0;  // moments and master weights
  uint64_t gradients = 0;  // all at once, for their norm
  CopiesNeed copies = {};
  [[nodiscard]] uint64_t total() const;
};

// What a run takes whose step is planned.
struct PlannedNeed {
  uint64_t process = 0;    // resident before there is a model: libraries, tokenizer, generated kernels
  uint64_t state = 0;      // model and optimizer
  uint64_t step = 0;       // the plan's peak
  CopiesNeed copies = {};  // with what it holds of other machines' snapshots
  [[nodiscard]] uint64_t total() const { return process + state + step + copies.total(); }
};
// One line, with what there is beside it. Model, optimizer and step lie on the device.
std::string to_text(const PlannedNeed& need, const at::Device& device = at::kCPU);

// The directory's adapter is chosen already. `file_bytes`: of the weights' files.
MemoryNeed memory_need(const RunConfig& config, const ModelDirectory& directory, uint64_t file_bytes);

// A UserError where a run needs more memory than there is, on the device or on the host.
void check_memory_need(const ModelDirectory& directory, const MemoryNeed& need, const at::Device& device = at::kCPU);
void check_memory_need(const ModelDirectory& directory, const PlannedNeed& need, const at::Device& device);

}  // namespace stepc::train
