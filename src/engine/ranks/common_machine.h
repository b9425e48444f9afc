// What all machines of a run have. Ranks run one plan, and what each of them computes must have the same bits. On
// different CPUs this needs the same instructions and kernels on all of them.
#pragma once

#include <string>

#include "blocked/micro_kernels.h"
#include "codegen/cpu_target.h"
#include "comm/ranks.h"
#include "cost/features.h"
#include "engine/prediction.h"

namespace stepc {

struct CommonMachine {
  CpuTarget cpu;
  blocked::MicroKernels micro_kernels;
  KnownTarget known;  // rank 0's rates
  std::string told;   // where the machines differ: what all compute with, and who has not more; else empty
};

// This rank's machine cut down to it. All ranks call it together, with as many threads.
CommonMachine common_machine(const CpuTarget& cpu, const blocked::MicroKernels& kernels, const KnownTarget& known,
                             Ranks& ranks);

// What steps on the ranks' devices are weighed and predicted with: the Target of a GPU that is given, else rank 0's
// card; what is not known of one rank's card is known of none. All ranks call it together.
struct CommonCard {
  KnownTarget known;        // without Target::gpu: none is known,
  std::string why_unknown;  // and why
};
CommonCard common_card(const c10::Device& device, const std::optional<Target>& given, Ranks& ranks);

// The least CPU of all: one of them where all are the same, else the level of x86-64 that all have.
CpuTarget common_cpu(const std::vector<CpuTarget>& all);
// What all have.
Features common_features(const std::vector<Features>& all);

}  // namespace stepc
