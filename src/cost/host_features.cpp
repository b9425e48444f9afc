#include "cost/host_features.h"

namespace stepc {

Features host_features() {
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bf16");
  return {.bf16 = avx512, .f32 = avx512, .avx512 = avx512, .intel = __builtin_cpu_is("intel") != 0};
}

}  // namespace stepc
