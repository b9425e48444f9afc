// CpuTarget: a CPU as code is generated for it, as plain data.
#pragma once

#include <string>

namespace stepc {

struct CpuTarget {
  std::string name;      // as LLVM calls it: "sapphirerapids", "x86-64"
  std::string features;  // "+avx2,-amx-tile,..."
  int vector_bits = 128;
  bool has_fma = false;
  bool has_f16c = false;  // converts f16 in hardware
  bool operator==(const CpuTarget&) const = default;
};

CpuTarget host_cpu();
// What every x86-64 machine has: SSE2.
CpuTarget generic_cpu();

}  // namespace stepc
