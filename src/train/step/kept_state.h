// KeptState: what a learner leaves to the next one of its process, the tensors of its planned steps as they are between
// two steps and the random generator with them. So a rank that has lost others goes on without reading anything.
#pragma once

#include <cstdint>
#include <string>

#include "aten/generator_snapshot.h"
#include "engine/ranks/replicas.h"

namespace stepc::train {

struct KeptState {
  std::string plan;  // hashes of the steps, which say how the tensors lie
  KeptParts parts;
  GeneratorSnapshot generator;
  [[nodiscard]] uint64_t bytes() const;
};

}  // namespace stepc::train
