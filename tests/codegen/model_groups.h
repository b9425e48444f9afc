// The groups of training steps, from fused Graphs that model_graphs.py has written, each form once.
#pragma once

#include <algorithm>
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

}  // namespace stepc
