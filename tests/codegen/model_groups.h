// The groups of training steps, from fused Graphs that model_graphs.py has written, each form once.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "codegen/codegen.h"
#include "ir/graph.h"
#include "loops/group_key.h"
#include "ops/op_def.h"
#include "tests/codegen/groups.h"

namespace stepc {

// Whose graphs: STEPC_KERNEL_GRAPHS, a folder that model_graphs.py has filled; else those of tests/codegen/models.
inline std::filesystem::path model_graphs(const std::filesystem::path& root) {
  const char* given = std::getenv("STEPC_KERNEL_GRAPHS");
  return given != nullptr ? std::filesystem::path(given) : root / "tests/codegen/models";
}

// Those of all files in `folder` that become kernels.
inline std::vector<NamedGroup> model_groups(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".ir") files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<NamedGroup> out;
  std::set<std::string> known;
  for (const std::filesystem::path& file : files) {
    const Graph graph = parse_graph(read_text(file, uint64_t{1} << 28));
    for (GroupGraph& group : extract_groups(graph)) {
      if (group.outputs.empty() || !why_not(group.graph).empty() || !known.insert(group_key(group.graph)).second)
        continue;
      out.push_back({str("{} group {}", file.stem().string(), group.group), std::move(group.graph)});
    }
  }
  return out;
}
// Those of them that an interpreter is done with in moments.
inline std::vector<NamedGroup> small_model_groups(const std::filesystem::path& folder, int64_t most_elements = 40000) {
  std::vector<NamedGroup> out = model_groups(folder);
  std::erase_if(out, [&](const NamedGroup& group) {
    return std::ranges::any_of(group.graph.tensors, [&](const GraphTensor& tensor) {
      return element_count(tensor.type.shape) > most_elements;
    });
  });
  return out;
}

}  // namespace stepc
