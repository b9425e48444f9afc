// Decisions that all ranks of a run make together: all ranks call every function here, in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks.h"

namespace stepc {

// Of a call that all ranks make: what each gives to it. UserError where a rank makes another one.
std::vector<std::string> enter_together(Ranks& ranks, const std::string& call, const std::string& mine = {});

// The error of the first rank that has one, in one line; empty: no rank has.
std::string common_error(Ranks& ranks, const std::string& mine);

// Runs `part` on every rank. What one rank cannot do is an error on all, so that no rank waits for one that has left.
void together(Ranks& ranks, const std::function<void()>& part);

// The first rank that gave something else than rank 0, and both texts; nothing: all gave the same.
struct Unlike {
  int64_t rank = 0;
  std::string its, first;
};
std::optional<Unlike> find_unlike(Ranks& ranks, const std::string& mine);

// Of what the ranks have found, the text of the lowest place, with its rank; empty texts do not count.
std::optional<std::string> first_of_all(Ranks& ranks, const std::vector<size_t>& place, const std::string& what);

}  // namespace stepc
