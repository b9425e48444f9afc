#include <algorithm>
#include <utility>

#include "base/check.h"
#include "comm/peers.h"
#include "comm/ranks.h"
#include "comm/reduce.h"
#include "ir/rank_parts.h"

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
// `whole` has a part of `part` for each rank.
void check_parts(std::string_view op, const at::Tensor& whole, const at::Tensor& part, int64_t ranks) {
  INTERNAL_CHECK(whole.scalar_type() == part.scalar_type(), "{} of {} and {}", op, c10::toString(whole.scalar_type()),
                 c10::toString(part.scalar_type()));
  INTERNAL_CHECK_EQ(whole.numel(), part.numel() * ranks, "{} of {} ranks", op, ranks);
}

// Sends every rank its part of `memory`, where all parts but the last are of `part` elements, and reduces this rank's
// with what the others send of it, into `out`, piece by piece. `out` may be this rank's part: nobody else gets it.
void reduce_own_part(std::string_view op, Peers& peers, const at::Tensor& operand, void* out, ReduceOp how,
                     void* scratch, uint64_t scratch_bytes) {
  const int64_t n = peers.ranks(), own = peers.rank(), elements = operand.numel();
  const auto size = static_cast<uint64_t>(operand.element_size());
  INTERNAL_CHECK_LE(reduction_scratch_bytes(elements, size, n), scratch_bytes, "the scratch memory of {}", op);
  const int64_t part = part_elements(elements, n), piece = piece_elements(elements, size, n);
  for (int64_t at = 0; at < part; at += piece) {
    const auto begin = [&](int64_t k) { return k * part + at; };
    const auto count = [&](int64_t k) {
      return std::max<int64_t>(std::min({piece, part - at, elements - begin(k)}), 0);
    };
    const uint64_t own_bytes = static_cast<uint64_t>(count(own)) * size;
    std::vector<SentBytes> sent;
    std::vector<ReceivedBytes> received;
    std::vector<const void*> parts;
    for (int64_t k = 0; k < n; ++k) {
      const char* of_operand = part_of(operand.const_data_ptr(), begin(k), size);
      sent.push_back({of_operand, k == own ? 0 : static_cast<uint64_t>(count(k)) * size});
      received.push_back({part_of(scratch, place_of(k, own) * piece, size), k == own ? 0 : own_bytes});
      parts.push_back(k == own ? of_operand : received.back().memory);
    }
    peers.exchange(op, sent, received);
    reduce_parts(parts, part_of(out, at, size), count(own), operand.scalar_type(), how);
  }
}

}  // namespace

RankGroup::RankGroup(std::unique_ptr<Peers> peers) : peers_(std::move(peers)) {}
RankGroup::~RankGroup() = default;
RankGroup::RankGroup(RankGroup&&) noexcept = default;

int64_t RankGroup::rank() const { return peers_->rank(); }
int64_t RankGroup::ranks() const { return peers_->ranks(); }
const std::vector<int64_t>& RankGroup::members() const { return peers_->members(); }
const Traffic& RankGroup::traffic() const { return peers_->traffic(); }

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

void RankGroup::broadcast(const at::Tensor& tensor, int64_t from) {
  check_tensor(tensor, "operand");
  void* const memory = tensor.mutable_data_ptr();
  std::vector<SentBytes> sent(static_cast<size_t>(ranks()));
  std::vector<ReceivedBytes> received(sent.size());
  if (rank() == from) {
    for (int64_t k = 0; k < ranks(); ++k)
      if (k != from) sent[static_cast<size_t>(k)] = {memory, tensor.nbytes()};
  } else {
    received[static_cast<size_t>(from)] = {memory, tensor.nbytes()};
  }
  peers_->exchange("broadcast", sent, received);
}

void RankGroup::reduce_scatter(const at::Tensor& operand, const at::Tensor& result, ReduceOp how, void* scratch,
                               uint64_t scratch_bytes) {
  check_tensor(operand, "operand");
  check_tensor(result, "result");
  check_parts("reduce-scatter", operand, result, ranks());
  reduce_own_part("reduce-scatter", *peers_, operand, result.mutable_data_ptr(), how, scratch, scratch_bytes);
}

void RankGroup::all_reduce(const at::Tensor& tensor, ReduceOp how, void* scratch, uint64_t scratch_bytes) {
  check_tensor(tensor, "operand");
  const auto size = static_cast<uint64_t>(tensor.element_size());
  const int64_t part = part_elements(tensor.numel(), ranks());
  const auto begin = [&](int64_t k) { return std::min(k * part, tensor.numel()); };
  const auto memory = [&](int64_t k) { return part_of(tensor.mutable_data_ptr(), begin(k), size); };
  const auto bytes = [&](int64_t k) { return static_cast<uint64_t>(begin(k + 1) - begin(k)) * size; };
  reduce_own_part("all-reduce", *peers_, tensor, memory(rank()), how, scratch, scratch_bytes);
  std::vector<SentBytes> sent;
  std::vector<ReceivedBytes> received;
  for (int64_t k = 0; k < ranks(); ++k) {
    sent.push_back({memory(rank()), bytes(rank())});
    received.push_back({memory(k), bytes(k)});
  }
  peers_->exchange("all-reduce", sent, received);
}

}  // namespace stepc
