#include "train/machine.h"

#include <sys/resource.h>

namespace stepc::train {

uint64_t peak_process_bytes() {
  rusage usage = {};
  constexpr uint64_t kKibibyte = 1024;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<uint64_t>(usage.ru_maxrss) * kKibibyte : 0;
}

}  // namespace stepc::train
