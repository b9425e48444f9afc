// The result of a search, for people and for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/search.h"

namespace stepc {

// The step that was searched for.
struct SearchSubject {
  std::string title;                          // "llama with 8.0 G parameters in bfloat16"
  int64_t rows = 0, tokens = 0;               // of a step; of a row
  std::string compute = {};                   // "bfloat16"
  bool overlaps = false;                      // exchanges may run beside the computation
  double flops_per_token = 0;                 // forward and backward; of causal attention only the half that counts
  double full_attention_flops_per_token = 0;  // with all pairs, as Megatron-LM counts
};

// The best ways as a table, the reason why each other family is missing from it, and the [parallel] table of the best
// for run.toml.
std::string to_text(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster, size_t top);

// The answer to one of several questions: a row of the table.
struct SearchAnswer {
  SearchSubject subject;
  Cluster cluster;
  SearchResult result;
};
std::string to_table(const std::vector<SearchAnswer>& answers);

// For a search in which nothing fits, one line: the smallest way, and the memory that it lacks.
std::string nothing_fits(const SearchResult& result, const Cluster& cluster);

// For a search that found a way, one line: which helps more, more memory for each device or links that are twice as
// fast, and by how much.
std::string helps_most(const SearchResult& result, const Cluster& cluster);

// All outcomes: {"title", "cluster", "devices", "memory_bytes", "rows", "row_tokens", "planned", "search_seconds",
// "outcomes": [{...}]}.
std::string to_json(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster);

}  // namespace stepc
