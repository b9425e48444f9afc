#include "comm/ranks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/meeting.h"

namespace stepc {

Ranks::Ranks(std::unique_ptr<Meeting> meeting) : meeting_(std::move(meeting)) {}
Ranks::~Ranks() = default;

std::vector<std::shared_ptr<Ranks>> Ranks::threads(int64_t ranks, std::chrono::milliseconds timeout) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::shared_ptr<Ranks>> all;
  for (int64_t rank = 0; rank < ranks; ++rank)
    all.push_back(std::make_shared<Ranks>(std::make_unique<Meeting>(rank, ranks, store, "127.0.0.1", timeout)));
  return all;
}

int64_t Ranks::rank() const { return meeting_->rank(); }
int64_t Ranks::ranks() const { return meeting_->ranks(); }

RankGroup& Ranks::group(const std::vector<int64_t>& members) {
  if (const auto it = groups_.find(members); it != groups_.end()) return it->second;
  return groups_.emplace(members, RankGroup(meeting_->connect(members))).first->second;
}

RankGroup& Ranks::along(const Mesh& mesh, const std::vector<Axis>& axes) {
  INTERNAL_CHECK_EQ(mesh.ranks(), ranks(), "the mesh {} on the ranks of this run", to_text(mesh));
  return group(group_of(mesh, axes, rank()));
}

RankGroup& Ranks::all() {
  std::vector<int64_t> members(static_cast<size_t>(ranks()));
  std::iota(members.begin(), members.end(), 0);
  return group(members);
}

std::vector<std::string> Ranks::exchange(const std::string& mine) {
  const auto bytes = static_cast<int64_t>(mine.size());
  const at::Tensor sizes = at::empty({ranks()}, at::kLong);
  all().all_gather(at::full({1}, bytes, at::kLong), sizes);
  const std::span<const int64_t> size_of(sizes.const_data_ptr<int64_t>(), static_cast<size_t>(ranks()));
  const int64_t longest = std::ranges::max(size_of);
  const at::Tensor own = at::zeros({longest}, at::kByte), texts = at::empty({ranks(), longest}, at::kByte);
  std::ranges::copy(mine, own.mutable_data_ptr<uint8_t>());
  all().all_gather(own, texts);
  std::vector<std::string> result;
  for (int64_t k = 0; k < ranks(); ++k)
    result.emplace_back(static_cast<const char*>(texts.const_data_ptr()) + k * longest,
                        static_cast<size_t>(size_of[static_cast<size_t>(k)]));
  return result;
}

int64_t Ranks::largest(int64_t mine) {
  std::vector<int64_t> given(static_cast<size_t>(ranks()));
  all().all_gather(at::from_blob(&mine, {1}, at::kLong), at::from_blob(given.data(), {ranks()}, at::kLong));
  return std::ranges::max(given);
}

void Ranks::barrier() { largest(0); }

}  // namespace stepc
