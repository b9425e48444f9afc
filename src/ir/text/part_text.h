// How the text forms of a Graph and a Schedule spell a mesh and what lies on it. Internal to text forms.
#pragma once

#include <optional>
#include <string>

#include "ir/graph.h"
#include "ir/text/text_cursor.h"

namespace stepc {

Mesh parse_mesh(TextCursor& in);  // "dp_shard=2,tp=4", in the order in which a mesh's axes stand
// Behind its "<"; of a tensor whose shape it gives.
PartOf parse_sharding(TextCursor& in, const Mesh& mesh);

// " part of <8/dp_shard, 4>", or nothing.
std::string part_text(const std::optional<PartOf>& part, const Mesh& mesh);
std::optional<PartOf> parse_part(TextCursor& in, const Mesh& mesh);

}  // namespace stepc
