#include "engine/ranks/data_parallel.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include <fmt/ranges.h>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/text.h"
#include "engine/compare/tensor_hash.h"

namespace stepc {

namespace {

// Large enough that the transfer takes longer than the latency of an exchange.
constexpr uint64_t kBucketBytes = uint64_t{4} << 20;

// Copies the tensors into contiguous buckets, calls `on` for each bucket, and copies the results back.
void for_buckets(const std::vector<at::Tensor>& tensors, const std::function<void(at::TensorList)>& on) {
  std::vector<at::Tensor> bucket;
  uint64_t bytes = 0;
  for (size_t begin = 0, t = 0; t < tensors.size(); ++t) {
    USER_CHECK(tensors[t].layout() == c10::Layout::Strided,
               "a sparse gradient is not averaged over ranks: use dense gradients");
    USER_CHECK(tensors[t].device() == tensors[0].device(),
               "a rank has tensors on {} and on {}: those that ranks exchange lie on one device of each",
               tensors[0].device().str(), tensors[t].device().str());
    bucket.push_back(tensors[t].contiguous());
    bytes += tensors[t].nbytes();
    if (bytes < kBucketBytes && t + 1 < tensors.size()) continue;
    on(bucket);
    for (size_t i = begin; i <= t; ++i)
      if (!tensors[i].is_contiguous()) tensors[i].copy_(bucket[i - begin]);
    bucket.clear();
    bytes = 0;
    begin = t + 1;
  }
}

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor.detach());
  return out;
}

// The first line of `one` that `other` does not have.
std::string missing_in(const std::string& one, const std::string& other) {
  const std::vector<std::string> has = split(other, '\n');
  for (const std::string& line : split(one, '\n'))
    if (std::ranges::find(has, line) == has.end()) return line;
  return {};
}

}  // namespace

void average(Ranks& ranks, const std::vector<at::Tensor>& tensors, const std::string& which) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::vector<std::string> all = ranks.exchange(which);
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const std::string extra = missing_in(all[r], all[0]), lacks = missing_in(all[0], all[r]);
    user_error("rank {} has {} gradient of '{}', and rank 0 has {}: every rank's step uses the same parameters", r,
               extra.empty() ? "no" : "a", extra.empty() ? lacks : extra, extra.empty() ? "one" : "none");
  }
  const int64_t n = ranks.ranks();
  at::Tensor scratch;
  for_buckets(detached(tensors), [&](at::TensorList bucket) {
    const uint64_t bytes = scratch_bytes_for(bucket, n);
    for (const at::Tensor& dense : bucket) dense.mul_(1.0 / static_cast<double>(n));
    if (!scratch.defined() || scratch.nbytes() < bytes)
      scratch = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte));
    ranks.all().all_reduce(bucket, ReduceOp::kSum, scratch.mutable_data_ptr(), bytes);
  });
}

bool differ(Ranks& ranks, const std::vector<at::Tensor>& tensors) {
  std::string looks, hashes;
  for (const at::Tensor& tensor : tensors) {
    looks += str("{} [{}]\n", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
    hashes += hash_text(hash_of(tensor));
  }
  const std::vector<std::string> all_looks = ranks.exchange(looks);
  for (size_t r = 1; r < all_looks.size(); ++r)
    USER_CHECK(all_looks[r] == all_looks[0], "rank {} has another model than rank 0: its parameters have other shapes",
               r);
  const std::vector<std::string> all = ranks.exchange(hashes);
  return std::ranges::any_of(all, [&](const std::string& one) { return one != all[0]; });
}

void share(Ranks& ranks, const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& owners) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  INTERNAL_CHECK_EQ(tensors.size(), owners.size());
  for (int64_t owner = 0; owner < ranks.ranks(); ++owner) {
    std::vector<at::Tensor> own;
    for (size_t t = 0; t < tensors.size(); ++t)
      if (owners[t] == owner) own.push_back(tensors[t].detach());
    for_buckets(own, [&](at::TensorList bucket) { ranks.all().broadcast(bucket, owner); });
  }
}

}  // namespace stepc
