// What a search found, for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include "plan/search.h"

namespace stepc {

// Of the step that was searched for.
struct SearchSubject {
  std::string title;                          // "llama with 8.0 G parameters in bfloat16"
  int64_t rows = 0, tokens = 0;               // of a step; of a row
  bool overlaps = false;                      // exchanges may go on beside the computation
  double flops_per_token = 0;                 // forward and backward, of causal attention the half that counts
  double full_attention_flops_per_token = 0;  // all pairs counted, as Megatron-LM does
};

// The best of them as a table, why each other family is not among them, and [parallel] of the best as run.toml has it.
std::string to_text(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster, size_t top);

// All outcomes: {"title", "cluster", "devices", "planned", "search_seconds", "outcomes": [{...}]}.
std::string to_json(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster);

}  // namespace stepc
