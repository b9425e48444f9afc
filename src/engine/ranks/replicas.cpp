#include "engine/ranks/replicas.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/check.h"
#include "base/hash.h"
#include "engine/compare/tensor_hash.h"

namespace stepc {

namespace {

constexpr size_t kHashDigits = 16;

uint64_t hash_of_part(const ShardedState& state, Owner owner, const std::string& key) {
  uint64_t hash = 0;
  for (const ShardedState::Slice& slice : state.held(owner, key)) {
    const std::array<uint64_t, 2> both = {hash, hash_of(state.window(owner, key, slice))};
    hash = hash_bytes(std::as_bytes(std::span(both)));
  }
  return hash;
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  return str("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// Describes how the hashes of the ranks `holders` differ.
std::string difference(const std::vector<int64_t>& holders, const std::vector<std::string>& hashes) {
  const std::vector<size_t> odd = odd_ones(hashes);
  if (odd.size() == holders.size())
    return str("{} should hold the same and do not, and no more than half of them agree on what is right",
               ranks_text(holders));
  std::vector<int64_t> others = holders, wrong;
  for (const size_t at : odd) wrong.push_back(holders[at]);
  std::erase_if(others, [&](int64_t rank) { return std::ranges::count(wrong, rank) > 0; });
  return str("{} {} other values than {}, which agree", ranks_text(wrong), wrong.size() == 1 ? "has" : "have",
             ranks_text(others));
}

// The tensors that last beyond a step. A step begins without gradients.
std::vector<std::pair<Owner, std::string>> lasting_names(const ShardedState& state) {
  std::vector<std::pair<Owner, std::string>> names = state.names();
  std::erase_if(names, [](const auto& name) { return name.first == Owner::kGradient; });
  return names;
}

}  // namespace

std::vector<size_t> odd_ones(std::span<const std::string> hashes) {
  std::vector<size_t> odd;
  for (size_t i = 0; i < hashes.size(); ++i)
    if (2 * static_cast<size_t>(std::ranges::count(hashes, hashes[i])) <= hashes.size()) odd.push_back(i);
  return odd;
}

std::optional<std::string> find_unlike_replica(const ShardedState& state) {
  std::vector<std::pair<Owner, std::string>> names = lasting_names(state);
  std::erase_if(names, [&](const auto& name) { return !state.part(name.first, name.second).defined(); });
  std::string mine;
  for (const auto& [owner, key] : names) mine += hash_text(hash_of_part(state, owner, key));
  const std::vector<std::string> all = state.ranks().exchange(mine);
  std::string first;
  size_t count = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& [owner, key] = names[i];
    for (int64_t rank = 0; rank < state.ranks().ranks(); ++rank) {
      const std::vector<int64_t> holders = state.holders(owner, key, rank);
      if (holders[0] != rank) continue;  // counted with another
      std::vector<std::string> hashes;
      for (const int64_t holder : holders) {
        const std::string& of_holder = all[static_cast<size_t>(holder)];
        USER_CHECK(of_holder.size() == mine.size(), "rank {} holds other tensors than rank {}", holder,
                   state.ranks().rank());
        hashes.push_back(of_holder.substr(i * kHashDigits, kHashDigits));
      }
      if (std::ranges::count(hashes, hashes[0]) == std::ssize(hashes)) continue;
      if (count++ == 0) first = str("{} '{}': {}", name_of(owner), key, difference(holders, hashes));
    }
  }
  if (count == 0) return std::nullopt;
  return count == 1 ? first : str("{} ({} tensors in all differ)", first, count);
}

bool complete_from_replicas(ShardedState& state, Ranks& ranks, const KeptParts* kept) {
  Ranks& own = state.ranks();
  const std::vector<int64_t> have = own.each(kept != nullptr ? 1 : 0);
  const auto has = [&](int64_t rank) { return have[static_cast<size_t>(rank)] != 0; };
  const auto names = lasting_names(state);
  const bool is_whole = std::ranges::all_of(names, [&](const auto& name) {
    for (int64_t rank = 0; rank < own.ranks(); ++rank)
      if (std::ranges::none_of(state.holders(name.first, name.second, rank), has)) return false;
    return true;
  });
  if (ranks.largest(is_whole ? 0 : 1) != 0) return false;
  if (kept != nullptr)
    for (const auto& [name, part] : *kept) state.replace(name.first, name.second, part);
  state.load();
  // The key is the sender followed by the receivers, so all ranks send in the same order.
  std::map<std::vector<int64_t>, std::vector<at::Tensor>> moves;
  for (const auto& [owner, key] : names) {
    const std::vector<int64_t> holders = state.holders(owner, key, own.rank());
    std::vector<int64_t> members = {*std::ranges::find_if(holders, has)};
    std::ranges::copy_if(holders, std::back_inserter(members), [&](int64_t rank) { return !has(rank); });
    if (members.size() > 1 && std::ranges::count(members, own.rank()) > 0)
      moves[members].push_back(state.part(owner, key));
  }
  for (const auto& [members, parts] : moves) {
    std::vector<at::Tensor> dense;
    for (const at::Tensor& part : parts) dense.push_back(part.contiguous());
    own.among(members).broadcast(dense);
    for (size_t i = 0; i < parts.size(); ++i)
      if (!dense[i].is_same(parts[i]) && !has(own.rank())) parts[i].copy_(dense[i]);
  }
  return true;
}

}  // namespace stepc
