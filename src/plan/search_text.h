// What a search found, for people and for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/search.h"

namespace stepc {

// Of the step that was searched for.
struct SearchSubject {
  std::string title;                          // "llama with 8.0 G parameters in bfloat16"
  int64_t rows = 0, tokens = 0;               // of a step; of a row
  std::string compute = {};                   // "bfloat16"
  bool overlaps = false;                      // exchanges may go on beside the computation
  double flops_per_token = 0;                 // forward and backward, of causal attention the half that counts
  double full_attention_flops_per_token = 0;  // all pairs counted, as Megatron-LM does
};

// The best of them as a table, why each other family is not among them, and [parallel] of the best as run.toml has it.
std::string to_text(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster, size_t top);

// What was found for each of several questions, a row each.
struct SearchAnswer {
  SearchSubject subject;
  Cluster cluster;
  SearchResult result;
};
std::string to_table(const std::vector<SearchAnswer>& answers);

// Of a search that found nothing which fits, one line: the smallest way, and how much it is too large.
std::string nothing_fits(const SearchResult& result, const Cluster& cluster);

// Of a search that found a way, one line: whether more memory for each device or links twice as fast would help more,
// and by how much.
std::string helps_most(const SearchResult& result, const Cluster& cluster);

// All outcomes: {"title", "cluster", "devices", "memory_bytes", "rows", "row_tokens", "planned", "search_seconds",
// "outcomes": [{...}]}.
std::string to_json(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster);

}  // namespace stepc
