#include <cstring>
#include <utility>

#include "base/check.h"
#include "comm/peers.h"
#include "comm/ranks.h"
#include "comm/reduce.h"

namespace stepc {

namespace {

void check_tensor(const at::Tensor& tensor, std::string_view what) {
  INTERNAL_CHECK(tensor.device().is_cpu() && tensor.is_contiguous(), "the {} of a collective lies elsewhere", what);
}
// Of `parts` in memory, one after another, the one that is `k`th.
const char* part_of(const void* memory, int64_t k, uint64_t bytes) {
  return static_cast<const char*>(memory) + static_cast<uint64_t>(k) * bytes;
}
char* part_of(void* memory, int64_t k, uint64_t bytes) {
  return static_cast<char*>(memory) + static_cast<uint64_t>(k) * bytes;
}
// Where in scratch lies what rank `k` sent: there is no place for what this rank sends to itself.
int64_t place_of(int64_t k, int64_t own) { return k < own ? k : k - 1; }
// The elements of each rank's part of what all reduce; the last parts may be shorter, or empty.
int64_t part_elements(int64_t elements, int64_t ranks) { return (elements + ranks - 1) / ranks; }

// `whole` has a part of `part` for each rank.
void check_parts(std::string_view op, const at::Tensor& whole, const at::Tensor& part, int64_t ranks) {
  INTERNAL_CHECK(whole.scalar_type() == part.scalar_type(), "{} of {} and {}", op, c10::toString(whole.scalar_type()),
                 c10::toString(part.scalar_type()));
  INTERNAL_CHECK_EQ(whole.numel(), part.numel() * ranks, "{} of {} ranks", op, ranks);
}

}  // namespace

uint64_t reduce_scatter_scratch_bytes(int64_t elements, uint64_t element_bytes, int64_t ranks) {
  return static_cast<uint64_t>(elements / ranks * (ranks - 1)) * element_bytes;
}
uint64_t all_reduce_scratch_bytes(int64_t elements, uint64_t element_bytes, int64_t ranks) {
  return static_cast<uint64_t>(part_elements(elements, ranks) * (ranks - 1)) * element_bytes;
}

RankGroup::RankGroup(std::unique_ptr<Peers> peers) : peers_(std::move(peers)) {}
RankGroup::~RankGroup() = default;
RankGroup::RankGroup(RankGroup&&) noexcept = default;

int64_t RankGroup::rank() const { return peers_->rank(); }
int64_t RankGroup::ranks() const { return peers_->ranks(); }
const std::vector<int64_t>& RankGroup::members() const { return peers_->members(); }

void RankGroup::all_gather(const at::Tensor& operand, const at::Tensor& result) {
  check_tensor(operand, "operand");
  check_tensor(result, "result");
  check_parts("all-gather", result, operand, ranks());
  const uint64_t bytes = operand.nbytes();
  std::vector<SentBytes> sent;
  std::vector<ReceivedBytes> received;
  for (int64_t k = 0; k < ranks(); ++k) {
    sent.push_back({operand.const_data_ptr(), bytes});
    received.push_back({part_of(result.mutable_data_ptr(), k, bytes), bytes});
  }
  peers_->exchange("all-gather", sent, received);
}

void RankGroup::all_to_all(const at::Tensor& operand, const at::Tensor& result) {
  check_tensor(operand, "operand");
  check_tensor(result, "result");
  check_parts("all-to-all", result, operand, 1);
  INTERNAL_CHECK_EQ(operand.numel() % ranks(), 0, "all-to-all of {} ranks", ranks());
  const uint64_t bytes = operand.nbytes() / static_cast<uint64_t>(ranks());
  std::vector<SentBytes> sent;
  std::vector<ReceivedBytes> received;
  for (int64_t k = 0; k < ranks(); ++k) {
    sent.push_back({part_of(operand.const_data_ptr(), k, bytes), bytes});
    received.push_back({part_of(result.mutable_data_ptr(), k, bytes), bytes});
  }
  peers_->exchange("all-to-all", sent, received);
}

void RankGroup::reduce_scatter(const at::Tensor& operand, const at::Tensor& result, ReduceOp how, void* scratch,
                               uint64_t scratch_bytes) {
  check_tensor(operand, "operand");
  check_tensor(result, "result");
  check_parts("reduce-scatter", operand, result, ranks());
  INTERNAL_CHECK_LE(reduce_scatter_scratch_bytes(operand.numel(), operand.element_size(), ranks()), scratch_bytes,
                    "the scratch memory of reduce-scatter");
  const int64_t own = rank();
  const uint64_t bytes = result.nbytes();
  std::vector<SentBytes> sent;
  std::vector<ReceivedBytes> received;
  std::vector<const void*> parts;
  for (int64_t k = 0; k < ranks(); ++k) {
    sent.push_back({k == own ? nullptr : part_of(operand.const_data_ptr(), k, bytes), k == own ? 0 : bytes});
    received.push_back({k == own ? nullptr : part_of(scratch, place_of(k, own), bytes), k == own ? 0 : bytes});
    parts.push_back(k == own ? part_of(operand.const_data_ptr(), k, bytes) : received.back().memory);
  }
  peers_->exchange("reduce-scatter", sent, received);
  reduce_parts(parts, result.mutable_data_ptr(), result.numel(), result.scalar_type(), how);
}

void RankGroup::all_reduce(const at::Tensor& tensor, ReduceOp how, void* scratch, uint64_t scratch_bytes) {
  check_tensor(tensor, "operand");
  INTERNAL_CHECK_LE(all_reduce_scratch_bytes(tensor.numel(), tensor.element_size(), ranks()), scratch_bytes,
                    "the scratch memory of all-reduce");
  const int64_t own = rank();
  const auto size = static_cast<uint64_t>(tensor.element_size());
  const int64_t longest = part_elements(tensor.numel(), ranks());
  const auto begin = [&](int64_t k) { return std::min(k * longest, tensor.numel()); };
  const auto count = [&](int64_t k) { return begin(k + 1) - begin(k); };
  const auto memory = [&](int64_t k) { return part_of(tensor.mutable_data_ptr(), begin(k), size); };
  const uint64_t own_bytes = static_cast<uint64_t>(count(own)) * size;
  std::vector<SentBytes> sent;
  std::vector<ReceivedBytes> received;
  std::vector<const void*> parts;
  for (int64_t k = 0; k < ranks(); ++k) {
    sent.push_back({memory(k), k == own ? 0 : static_cast<uint64_t>(count(k)) * size});
    received.push_back({part_of(scratch, place_of(k, own), own_bytes), k == own ? 0 : own_bytes});
    parts.push_back(k == own ? memory(own) : received.back().memory);
  }
  peers_->exchange("all-reduce", sent, received);
  reduce_parts(parts, memory(own), count(own), tensor.scalar_type(), how);
  for (int64_t k = 0; k < ranks(); ++k) {
    sent[static_cast<size_t>(k)] = {memory(own), k == own ? 0 : own_bytes};
    received[static_cast<size_t>(k)] = {memory(k), k == own ? 0 : static_cast<uint64_t>(count(k)) * size};
  }
  peers_->exchange("all-reduce", sent, received);
}

}  // namespace stepc
