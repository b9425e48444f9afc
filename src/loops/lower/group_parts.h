// The parts of a group that nothing connects (ops/unconnected_parts.h), each a group, and their loops as one program:
// phases that do not wait for each other.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "loops/loop_program.h"

namespace stepc {

struct GroupPart {
  Graph graph;
  std::vector<uint32_t> inputs, outputs;  // of the whole group, by those of the part
};
// One part: empty.
std::vector<GroupPart> parts_of(const Graph& group);

// `programs`: of each part; the phases of equal ones stand together. The buffers are those of the whole group. What two
// parts read is no part's to write.
LoopProgram side_by_side(const Graph& group, const std::vector<GroupPart>& parts,
                         const std::vector<LoopProgram>& programs);

}  // namespace stepc
