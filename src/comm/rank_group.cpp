#include <utility>

#include "aten/cuda_library.h"
#include "base/check.h"
#include "comm/exchanges.h"
#include "comm/nccl_exchanges.h"
#include "comm/peers.h"
#include "comm/ranks.h"
#include "ir/alignment.h"
#include "ir/rank_parts.h"

namespace stepc {

namespace {

void check_tensors(std::string_view op, at::TensorList operands, at::TensorList results) {
  INTERNAL_CHECK_EQ(operands.size(), results.size(), "operands and results of {}", op);
  for (size_t k = 0; k < operands.size(); ++k)
    INTERNAL_CHECK(operands[k].is_contiguous() && results[k].is_contiguous() &&
                       operands[k].device() == operands[0].device() && results[k].device() == operands[0].device(),
                   "a tensor of {} lies elsewhere", op);
}
// `whole` has a part of `part` for each rank.
void check_parts(std::string_view op, const at::Tensor& whole, const at::Tensor& part, int64_t ranks) {
  INTERNAL_CHECK(whole.scalar_type() == part.scalar_type(), "{} of {} and {}", op, c10::toString(whole.scalar_type()),
                 c10::toString(part.scalar_type()));
  INTERNAL_CHECK_EQ(whole.numel(), part.numel() * ranks, "{} of {} ranks", op, ranks);
}

}  // namespace

uint64_t scratch_bytes_for(at::TensorList operands, int64_t ranks) {
  uint64_t bytes = 0;
  for (const at::Tensor& one : operands)
    bytes += aligned(reduction_scratch_bytes(one.numel(), static_cast<uint64_t>(one.element_size()), ranks));
  return bytes;
}

RankGroup::RankGroup(std::unique_ptr<Peers> peers)
    : peers_(std::move(peers)), host_(host_exchanges(*peers_)), copied_(copied_exchanges(*host_, peers_->ranks())) {}
RankGroup::~RankGroup() = default;
RankGroup::RankGroup(RankGroup&&) noexcept = default;

int64_t RankGroup::rank() const { return peers_->rank(); }
int64_t RankGroup::ranks() const { return peers_->ranks(); }
const std::vector<int64_t>& RankGroup::members() const { return peers_->members(); }
const Traffic& RankGroup::traffic() const { return peers_->traffic(); }

Exchanges& RankGroup::exchanges_of(at::TensorList tensors) {
  if (tensors.empty() || tensors[0].is_cpu()) return *host_;
  const c10::Device device = tensors[0].device();
  if (!device.is_cuda()) return *copied_;
  std::unique_ptr<Exchanges>& own = cuda_[device.index()];
  if (!own) own = nccl_exchanges(*peers_, *copied_, device, Nccl::library(), &native_stream);
  return *own;
}

void RankGroup::check() const {
  for (const auto& [device, own] : cuda_) own->check();
}

InFlight RankGroup::begin_all_gather(at::TensorList operands, at::TensorList results) {
  check_tensors("all-gather", operands, results);
  for (size_t t = 0; t < operands.size(); ++t) check_parts("all-gather", results[t], operands[t], ranks());
  return exchanges_of(operands).begin_all_gather(operands, results);
}
void RankGroup::all_gather(at::TensorList operands, at::TensorList results) {
  begin_all_gather(operands, results).end();
}

InFlight RankGroup::begin_all_to_all(at::TensorList operands, at::TensorList results) {
  check_tensors("all-to-all", operands, results);
  for (size_t t = 0; t < operands.size(); ++t) {
    check_parts("all-to-all", results[t], operands[t], 1);
    INTERNAL_CHECK_EQ(operands[t].numel() % ranks(), 0, "all-to-all of {} ranks", ranks());
  }
  return exchanges_of(operands).begin_all_to_all(operands, results);
}
void RankGroup::all_to_all(at::TensorList operands, at::TensorList results) {
  begin_all_to_all(operands, results).end();
}

InFlight RankGroup::begin_rotate(at::TensorList operands, at::TensorList results, int64_t by) {
  check_tensors("rotation", operands, results);
  INTERNAL_CHECK(by > 0 && by < ranks(), "{} ranks turn by {}", ranks(), by);
  for (size_t t = 0; t < operands.size(); ++t) check_parts("rotation", results[t], operands[t], 1);
  return exchanges_of(operands).begin_rotate(operands, results, by);
}
void RankGroup::rotate(at::TensorList operands, at::TensorList results, int64_t by) {
  begin_rotate(operands, results, by).end();
}

InFlight RankGroup::begin_reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how) {
  check_tensors("reduce-scatter", operands, results);
  for (size_t t = 0; t < operands.size(); ++t) check_parts("reduce-scatter", operands[t], results[t], ranks());
  return exchanges_of(operands).begin_reduce_scatter(operands, results, how);
}

InFlight RankGroup::begin_send(std::string_view what, at::TensorList tensors, int64_t to, int tag) {
  check_tensors("message", tensors, tensors);
  return messages_of(tensors).begin_messages(what, tensors, to, {}, 0, tag);
}
InFlight RankGroup::begin_receive(std::string_view what, at::TensorList tensors, int64_t from, int tag) {
  check_tensors("message", tensors, tensors);
  return messages_of(tensors).begin_messages(what, {}, 0, tensors, from, tag);
}

void RankGroup::broadcast(at::TensorList tensors, int64_t from) {
  check_tensors("broadcast", tensors, tensors);
  exchanges_of(tensors).broadcast(tensors, from);
}

void RankGroup::reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how, void* scratch,
                               uint64_t scratch_bytes) {
  check_tensors("reduce-scatter", operands, results);
  for (size_t t = 0; t < operands.size(); ++t) check_parts("reduce-scatter", operands[t], results[t], ranks());
  exchanges_of(operands).reduce_scatter(operands, results, how, scratch, scratch_bytes);
}

void RankGroup::all_reduce(at::TensorList tensors, ReduceOp how, void* scratch, uint64_t scratch_bytes) {
  check_tensors("all-reduce", tensors, tensors);
  exchanges_of(tensors).all_reduce(tensors, how, scratch, scratch_bytes);
}

// NCCL cannot tell messages apart by tags.
Exchanges& RankGroup::messages_of(at::TensorList tensors) {
  return tensors.empty() || tensors[0].is_cpu() ? *host_ : *copied_;
}

}  // namespace stepc
