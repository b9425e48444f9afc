// Where generated kernels are kept between runs.
#pragma once

#include <filesystem>

namespace stepc {

// $XDG_CACHE_HOME/stepc/kernels, else ~/.cache/stepc/kernels; empty (no cache) where neither is set.
std::filesystem::path kernel_directory();

}  // namespace stepc
