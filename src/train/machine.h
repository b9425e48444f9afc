// What the system says of this process.
#pragma once

#include <cstdint>

namespace stepc::train {

// The most memory that this process has had resident so far.
uint64_t peak_process_bytes();

}  // namespace stepc::train
