// Tensors on the host: a collective sends and receives in place, and each rank reduces its part itself.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "comm/exchanges.h"
#include "comm/peers.h"
#include "comm/reduce.h"
#include "ir/alignment.h"
#include "ir/rank_parts.h"

namespace stepc {

namespace {

// Of `parts` in memory, one after another, the one that is `k`th.
const char* part_of(const void* memory, int64_t k, uint64_t bytes) {
  return static_cast<const char*>(memory) + static_cast<uint64_t>(k) * bytes;
}
char* part_of(void* memory, int64_t k, uint64_t bytes) {
  return static_cast<char*>(memory) + static_cast<uint64_t>(k) * bytes;
}
// Where in scratch lies what rank `k` sent: there is no place for what this rank sends to itself.
int64_t place_of(int64_t k, int64_t own) { return k < own ? k : k - 1; }
// What one exchange moves: so many messages for each rank.
struct Messages {
  std::vector<SentBytes> sent;
  std::vector<ReceivedBytes> received;
};

// One of several operands while ranks reduce them, each rank its part of it, piece by piece.
struct Reduction {
  const at::Tensor& operand;
  void* out;      // this rank's part; may lie in the operand: nobody else gets it
  char* scratch;  // for what the others send of a piece
  int64_t part, piece;
  [[nodiscard]] int64_t begin(int64_t rank, int64_t at) const { return rank * part + at; }
  // Of the piece that begins `at` elements into a part, what there is of it in that of `rank`.
  [[nodiscard]] int64_t count(int64_t rank, int64_t at) const {
    return std::max<int64_t>(std::min({piece, part - at, operand.numel() - begin(rank, at)}), 0);
  }
};

// `out_of(k)`: where this rank's part of operand k goes.
template <class OutOf>
void reduce_own_parts(std::string_view op, Peers& peers, at::TensorList operands, const OutOf& out_of, ReduceOp how,
                      void* scratch, uint64_t scratch_bytes) {
  const int64_t n = peers.ranks(), own = peers.rank();
  std::vector<Reduction> all;
  uint64_t used = 0;
  int64_t most_pieces = 0;
  for (size_t k = 0; k < operands.size(); ++k) {
    const int64_t elements = operands[k].numel();
    const auto size = static_cast<uint64_t>(operands[k].element_size());
    const int64_t part = part_elements(elements, n), piece = piece_elements(elements, size, n);
    all.push_back({operands[k], out_of(k), static_cast<char*>(scratch) + used, part, piece});
    const uint64_t bytes = reduction_scratch_bytes(elements, size, n);
    INTERNAL_CHECK_LE(used + bytes, scratch_bytes, "the scratch memory of {}", op);
    used += aligned(bytes);
    if (part > 0) most_pieces = std::max(most_pieces, (part + piece - 1) / piece);
  }
  for (int64_t p = 0; p < most_pieces; ++p) {
    Messages messages;
    for (const Reduction& one : all) {
      const auto size = static_cast<uint64_t>(one.operand.element_size());
      const int64_t at = p * one.piece;
      const uint64_t own_bytes = static_cast<uint64_t>(one.count(own, at)) * size;
      for (int64_t k = 0; k < n; ++k) {
        const bool is_own = k == own;
        messages.sent.push_back({part_of(one.operand.const_data_ptr(), one.begin(k, at), size),
                                 is_own ? 0 : static_cast<uint64_t>(one.count(k, at)) * size});
        messages.received.push_back({part_of(one.scratch, place_of(k, own) * one.piece, size), is_own ? 0 : own_bytes});
      }
    }
    peers.exchange(op, messages.sent, messages.received);
    for (size_t i = 0; i < all.size(); ++i) {
      const Reduction& one = all[i];
      const int64_t at = p * one.piece, count = one.count(own, at);
      if (count == 0) continue;
      std::vector<const void*> parts;
      for (int64_t k = 0; k < n; ++k) {
        const size_t message = i * static_cast<size_t>(n) + static_cast<size_t>(k);
        parts.push_back(k == own ? messages.sent[message].memory : messages.received[message].memory);
      }
      reduce_parts(parts, part_of(one.out, at, static_cast<uint64_t>(one.operand.element_size())), count,
                   one.operand.scalar_type(), how);
    }
  }
}

// What the ranks send of their parts for this one, reduced once it is there.
struct Reducing final : InFlight::Works {
  Reducing(int64_t count, at::TensorList of, ReduceOp op) : ranks(count), results(of.vec()), how(op) {
    for (const at::Tensor& result : results)
      memory.push_back(std::make_unique_for_overwrite<std::byte[]>(result.nbytes() * static_cast<size_t>(ranks)));
  }
  void end() override {
    messages->end();
    for (size_t t = 0; t < results.size(); ++t) {
      std::vector<const void*> parts;
      for (int64_t k = 0; k < ranks; ++k) parts.push_back(part_of(memory[t].get(), k, results[t].nbytes()));
      reduce_parts(parts, results[t].mutable_data_ptr(), results[t].numel(), results[t].scalar_type(), how);
    }
  }
  int64_t ranks;
  std::vector<at::Tensor> results;
  ReduceOp how;
  std::vector<std::unique_ptr<std::byte[]>> memory;  // by result, a part of each rank
  std::optional<InFlight> messages;
};

class HostExchanges final : public Exchanges {
 public:
  explicit HostExchanges(Peers& peers) : peers_(peers) {}

  InFlight begin_all_gather(at::TensorList operands, at::TensorList results) override {
    Messages messages;
    for (size_t t = 0; t < operands.size(); ++t) {
      const uint64_t bytes = operands[t].nbytes();
      for (int64_t k = 0; k < ranks(); ++k) {
        messages.sent.push_back({operands[t].const_data_ptr(), bytes});
        messages.received.push_back({part_of(results[t].mutable_data_ptr(), k, bytes), bytes});
      }
    }
    return peers_.begin("all-gather", messages.sent, messages.received);
  }

  InFlight begin_all_to_all(at::TensorList operands, at::TensorList results) override {
    Messages messages;
    for (size_t t = 0; t < operands.size(); ++t) {
      const uint64_t bytes = operands[t].nbytes() / static_cast<uint64_t>(ranks());
      for (int64_t k = 0; k < ranks(); ++k) {
        messages.sent.push_back({part_of(operands[t].const_data_ptr(), k, bytes), bytes});
        messages.received.push_back({part_of(results[t].mutable_data_ptr(), k, bytes), bytes});
      }
    }
    return peers_.begin("all-to-all", messages.sent, messages.received);
  }

  InFlight begin_rotate(at::TensorList operands, at::TensorList results, int64_t by) override {
    return begin_messages("rotation", operands, (rank() + by) % ranks(), results, (rank() + ranks() - by) % ranks(),
                          {});
  }

  InFlight begin_reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how) override {
    auto reducing = std::make_unique<Reducing>(ranks(), results, how);
    Messages messages;
    for (size_t t = 0; t < operands.size(); ++t)
      for (int64_t k = 0; k < ranks(); ++k) {
        const uint64_t bytes = results[t].nbytes();
        messages.sent.push_back({part_of(operands[t].const_data_ptr(), k, bytes), bytes});
        messages.received.push_back({part_of(reducing->memory[t].get(), k, bytes), bytes});
      }
    reducing->messages.emplace(peers_.begin("reduce-scatter", messages.sent, messages.received));
    return InFlight(std::move(reducing));
  }

  InFlight begin_messages(std::string_view what, at::TensorList sent, int64_t to, at::TensorList received, int64_t from,
                          std::optional<int> tag) override {
    Messages messages;
    for (const at::Tensor& tensor : sent)
      for (int64_t k = 0; k < ranks(); ++k)
        messages.sent.push_back({tensor.const_data_ptr(), k == to ? tensor.nbytes() : 0});
    for (const at::Tensor& tensor : received)
      for (int64_t k = 0; k < ranks(); ++k)
        messages.received.push_back({tensor.mutable_data_ptr(), k == from ? tensor.nbytes() : 0});
    const size_t count = std::max(messages.sent.size(), messages.received.size());
    messages.sent.resize(count);
    messages.received.resize(count);
    return peers_.begin(what, messages.sent, messages.received, tag);
  }

  void broadcast(at::TensorList tensors, int64_t from) override {
    Messages messages;
    for (const at::Tensor& tensor : tensors) {
      void* const memory = tensor.mutable_data_ptr();
      for (int64_t k = 0; k < ranks(); ++k) {
        const bool is_sent = rank() == from && k != from, is_received = rank() != from && k == from;
        messages.sent.push_back({memory, is_sent ? tensor.nbytes() : 0});
        messages.received.push_back({memory, is_received ? tensor.nbytes() : 0});
      }
    }
    peers_.exchange("broadcast", messages.sent, messages.received);
  }

  void reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how, void* scratch,
                      uint64_t scratch_bytes) override {
    const auto out_of = [&](size_t t) { return results[t].mutable_data_ptr(); };
    reduce_own_parts("reduce-scatter", peers_, operands, out_of, how, scratch, scratch_bytes);
  }

  void all_reduce(at::TensorList tensors, ReduceOp how, void* scratch, uint64_t scratch_bytes) override {
    const auto begin = [&](const at::Tensor& tensor, int64_t k) {
      return std::min(k * part_elements(tensor.numel(), ranks()), tensor.numel());
    };
    const auto memory = [&](const at::Tensor& tensor, int64_t k) {
      return part_of(tensor.mutable_data_ptr(), begin(tensor, k), static_cast<uint64_t>(tensor.element_size()));
    };
    const auto bytes = [&](const at::Tensor& tensor, int64_t k) {
      return static_cast<uint64_t>(begin(tensor, k + 1) - begin(tensor, k)) *
             static_cast<uint64_t>(tensor.element_size());
    };
    const auto out_of = [&](size_t t) { return memory(tensors[t], rank()); };
    reduce_own_parts("all-reduce", peers_, tensors, out_of, how, scratch, scratch_bytes);
    Messages messages;
    for (const at::Tensor& tensor : tensors)
      for (int64_t k = 0; k < ranks(); ++k) {
        messages.sent.push_back({memory(tensor, rank()), bytes(tensor, rank())});
        messages.received.push_back({memory(tensor, k), bytes(tensor, k)});
      }
    peers_.exchange("all-reduce", messages.sent, messages.received);
  }

 private:
  [[nodiscard]] int64_t rank() const { return peers_.rank(); }
  [[nodiscard]] int64_t ranks() const { return peers_.ranks(); }

  Peers& peers_;
};

}  // namespace

std::unique_ptr<Exchanges> host_exchanges(Peers& peers) { return std::make_unique<HostExchanges>(peers); }

}  // namespace stepc
