#include "engine/ranks/consensus.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/text.h"

namespace stepc {

std::vector<std::string> enter_together(Ranks& ranks, const std::string& call, const std::string& mine) {
  std::vector<std::string> all = ranks.exchange(call + "\n" + mine), calls;
  for (std::string& one : all) {
    const size_t end = std::min(one.find('\n'), one.size());
    calls.push_back(one.substr(0, end));
    one.erase(0, end + 1);
  }
  for (size_t r = 1; r < calls.size(); ++r)
    USER_CHECK(calls[r] == calls[0],
               "rank {} calls {}, and rank 0 {}: all ranks make the same calls, in the same order", r, calls[r],
               calls[0]);
  return all;
}

std::string common_error(Ranks& ranks, const std::string& mine) {
  const std::vector<std::string> all = ranks.exchange(mine);
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) return mine.empty() ? str("rank {}: {}", r, all[r]) : mine;
  return {};
}

void together(Ranks& ranks, const std::function<void()>& part) {
  std::string problem;
  std::exception_ptr thrown;
  try {
    part();
  } catch (const std::exception& error) {
    problem = first_line(error.what());
    thrown = std::current_exception();
  }
  if (const std::string error = common_error(ranks, problem); !error.empty()) {
    if (thrown) std::rethrow_exception(thrown);
    user_error("{}", error);
  }
}

std::optional<Unlike> find_unlike(Ranks& ranks, const std::string& mine) {
  const std::vector<std::string> all = ranks.exchange(mine);
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0]) return Unlike{static_cast<int64_t>(r), all[r], all[0]};
  return std::nullopt;
}

std::optional<std::string> first_of_all(Ranks& ranks, const std::vector<size_t>& place, const std::string& what) {
  const nlohmann::json mine = {{"place", place}, {"what", what}};
  std::optional<std::pair<std::vector<size_t>, std::string>> first;
  const std::vector<std::string> all = ranks.exchange(mine.dump());
  for (size_t r = 0; r < all.size(); ++r) {
    const nlohmann::json json = nlohmann::json::parse(all[r]);
    auto found = json.at("place").get<std::vector<size_t>>();
    const auto text = json.at("what").get<std::string>();
    if (!text.empty() && (!first || found < first->first))
      first.emplace(std::move(found), str("{} on rank {}", text, r));
  }
  if (!first) return std::nullopt;
  return first->second;
}

}  // namespace stepc
