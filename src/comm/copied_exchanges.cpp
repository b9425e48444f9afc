// A device's tensors through copies on the host, in memory that is no tensor allocation of a step's.
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

#include "comm/exchanges.h"
#include "comm/ranks.h"

namespace stepc {

namespace {

at::Tensor place_on_host(const at::Tensor& tensor) {
  auto memory = std::make_shared_for_overwrite<std::byte[]>(tensor.nbytes() + 1);
  return at::from_blob(
      memory.get(), tensor.sizes(), [memory](void*) {}, at::TensorOptions(tensor.scalar_type()));
}
void copy_into(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  to.copy_(from);
}
std::vector<at::Tensor> places_on_host(at::TensorList tensors) {
  std::vector<at::Tensor> places;
  for (const at::Tensor& tensor : tensors) places.push_back(place_on_host(tensor));
  return places;
}
std::vector<at::Tensor> on_host(at::TensorList tensors) {
  std::vector<at::Tensor> copies = places_on_host(tensors);
  for (size_t t = 0; t < tensors.size(); ++t) copy_into(copies[t], tensors[t]);
  return copies;
}
void copy_all(at::TensorList to, at::TensorList from) {
  for (size_t t = 0; t < to.size(); ++t) copy_into(to[t], from[t]);
}

// The host's exchange, and what is done with its results.
struct CopiedWorks final : InFlight::Works {
  CopiedWorks(InFlight of_host, std::vector<at::Tensor> kept, at::TensorList have, at::TensorList want)
      : host(std::move(of_host)), sent(std::move(kept)), from(have.vec()), to(want.vec()) {}
  void end() override {
    host.end();
    copy_all(to, from);
  }
  InFlight host;
  std::vector<at::Tensor> sent, from, to;
};

class CopiedExchanges final : public Exchanges {
 public:
  CopiedExchanges(Exchanges& host, int64_t ranks) : host_(host), ranks_(ranks) {}

  InFlight begin_all_gather(at::TensorList operands, at::TensorList results) override {
    return begun(operands, results, [&](auto& sent, auto& got) { return host_.begin_all_gather(sent, got); });
  }
  InFlight begin_all_to_all(at::TensorList operands, at::TensorList results) override {
    return begun(operands, results, [&](auto& sent, auto& got) { return host_.begin_all_to_all(sent, got); });
  }
  InFlight begin_rotate(at::TensorList operands, at::TensorList results, int64_t by) override {
    return begun(operands, results, [&](auto& sent, auto& got) { return host_.begin_rotate(sent, got, by); });
  }
  InFlight begin_reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how) override {
    return begun(operands, results, [&](auto& sent, auto& got) { return host_.begin_reduce_scatter(sent, got, how); });
  }
  InFlight begin_messages(std::string_view what, at::TensorList sent, int64_t to, at::TensorList received, int64_t from,
                          std::optional<int> tag) override {
    return begun(sent, received,
                 [&](auto& have, auto& got) { return host_.begin_messages(what, have, to, got, from, tag); });
  }
  void broadcast(at::TensorList tensors, int64_t from) override {
    const std::vector<at::Tensor> copies = on_host(tensors);
    host_.broadcast(copies, from);
    copy_all(tensors, copies);
  }
  // The scratch memory that is given lies on the device, and is none where a library reduces there.
  void reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how, void*, uint64_t) override {
    const std::vector<at::Tensor> sent = on_host(operands), got = places_on_host(results);
    const uint64_t bytes = scratch_bytes_for(operands, ranks_);
    const auto scratch = std::make_unique_for_overwrite<std::byte[]>(bytes);
    host_.reduce_scatter(sent, got, how, scratch.get(), bytes);
    copy_all(results, got);
  }
  void all_reduce(at::TensorList tensors, ReduceOp how, void*, uint64_t) override {
    const std::vector<at::Tensor> copies = on_host(tensors);
    const uint64_t bytes = scratch_bytes_for(tensors, ranks_);
    const auto scratch = std::make_unique_for_overwrite<std::byte[]>(bytes);
    host_.all_reduce(copies, how, scratch.get(), bytes);
    copy_all(tensors, copies);
  }

 private:
  template <class Begin>
  static InFlight begun(at::TensorList operands, at::TensorList results, const Begin& begin) {
    std::vector<at::Tensor> sent = on_host(operands);
    const std::vector<at::Tensor> got = places_on_host(results);
    InFlight host = begin(sent, got);
    return InFlight(std::make_unique<CopiedWorks>(std::move(host), std::move(sent), got, results));
  }

  Exchanges& host_;
  int64_t ranks_;
};

}  // namespace

std::unique_ptr<Exchanges> copied_exchanges(Exchanges& host, int64_t ranks) {
  return std::make_unique<CopiedExchanges>(host, ranks);
}

}  // namespace stepc
