#include "engine/ranks/data_parallel.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include <fmt/ranges.h>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/text.h"
#include "engine/compare/tensor_hash.h"
#include "ir/rank_parts.h"

namespace stepc {

namespace {

// Of what is smaller it is the call that takes the time, not its bytes.
constexpr int64_t kLargeBytes = 64 << 10;

// Calls `on` with contiguous tensors that hold what these hold, the small ones of a kind in one, and puts back what it
// leaves there.
void for_dense(const std::vector<at::Tensor>& tensors, const std::function<void(const at::Tensor&)>& on) {
  std::map<at::ScalarType, std::vector<at::Tensor>> small;
  for (const at::Tensor& tensor : tensors) {
    USER_CHECK(tensor.layout() == c10::Layout::Strided && tensor.device().is_cpu(),
               "a sparse gradient, or one of another device, is not averaged over ranks: use dense gradients");
    if (static_cast<int64_t>(tensor.nbytes()) < kLargeBytes) {
      small[tensor.scalar_type()].push_back(tensor);
    } else if (tensor.is_contiguous()) {
      on(tensor);
    } else {
      const at::Tensor dense = tensor.contiguous();
      on(dense);
      tensor.copy_(dense);
    }
  }
  for (const auto& [type, some] : small) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : some) flat.push_back(tensor.reshape({-1}));
    const at::Tensor together = at::cat(flat);
    on(together);
    int64_t begin = 0;
    for (const at::Tensor& tensor : some) {
      tensor.copy_(together.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor.detach());
  return out;
}

// Lines of the one that the other has not.
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
  for_dense(detached(tensors), [&](const at::Tensor& dense) {
    const uint64_t bytes = reduction_scratch_bytes(dense.numel(), static_cast<uint64_t>(dense.element_size()), n);
    if (!scratch.defined() || scratch.nbytes() < bytes)
      scratch = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte));
    dense.mul_(1.0 / static_cast<double>(n));
    ranks.all().all_reduce(dense, ReduceOp::kSum, scratch.mutable_data_ptr(), bytes);
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
    for_dense(own, [&](const at::Tensor& dense) { ranks.all().broadcast(dense, owner); });
  }
}

}  // namespace stepc
