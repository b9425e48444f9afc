#include "train/machine/machine.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/machine_memory.h"
#include "base/text.h"

namespace stepc::train {

void check_memory(const std::string& what, uint64_t needed_bytes) {
  const uint64_t there = usable_bytes();
  USER_CHECK(needed_bytes <= there, "{} needs at least {} of memory, there is {}", what, human_bytes(needed_bytes),
             human_bytes(there));
}

RunConfig use_threads(RunConfig config, int64_t local_ranks) {
  const int64_t sharing = std::getenv("OMP_NUM_THREADS") == nullptr ? local_ranks : 1;
  if (config.train.threads == 0) config.train.threads = std::max<int64_t>(1, at::get_num_threads() / sharing);
  at::set_num_threads(static_cast<int>(config.train.threads));
  return config;
}

}  // namespace stepc::train
