// Peers: the other ranks of a group, and the only way in which bytes go between them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/exchanges.h"
#include "comm/ranks.h"

namespace stepc {

struct SentBytes {
  const void* memory = nullptr;
  uint64_t bytes = 0;
};
struct ReceivedBytes {
  void* memory = nullptr;
  uint64_t bytes = 0;
};

// Messages on their way. Their memory is in use until Peers::end() has ended them.
struct PeerWorks final : InFlight::Works {
  PeerWorks(Peers& of, std::string_view name) : peers(of), op(name) {}
  ~PeerWorks() override;
  void end() override;

  Peers& peers;
  std::string op;
  std::vector<std::pair<size_t, c10::intrusive_ptr<c10d::Work>>> all;  // by peer; empty: they have ended
};

class Peers {
 public:
  // `members`: the ranks of the group by their number in the run. `own`: the index of this rank among them. There is no
  // backend if the rank is alone.
  // `timeout`: how long it waits for an answer.
  Peers(std::vector<int64_t> members, int64_t own, c10::intrusive_ptr<c10d::Backend> backend,
        std::chrono::milliseconds timeout);

  [[nodiscard]] int64_t rank() const { return own_; }
  [[nodiscard]] int64_t ranks() const { return std::ssize(members_); }
  [[nodiscard]] const std::vector<int64_t>& members() const { return members_; }
  [[nodiscard]] const Traffic& traffic() const { return traffic_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

  // Sends sent[i] to rank i of the group and receives received[i] from it, also for this rank itself. A second set of
  // as many may follow these, and so on: all are transferred at once. Both sides give the same sizes; for 0 bytes no
  // message is sent. begin() returns immediately; end() returns when everything has arrived and the sent memory may
  // change. Several exchanges may be in progress; all members begin them in one order. Both throw LostRank, and from
  // then on at every call. With a `tag` the messages have that number and the next ones, and are not counted.
  InFlight begin(std::string_view op, std::span<const SentBytes> sent, std::span<const ReceivedBytes> received,
                 std::optional<int> tag = {});
  void end(PeerWorks& exchange);
  void exchange(std::string_view op, std::span<const SentBytes> sent, std::span<const ReceivedBytes> received) {
    begin(op, sent, received).end();
  }

 private:
  friend struct PeerWorks;
  [[noreturn]] void lose(std::string_view op, const std::vector<size_t>& peers, const std::exception& error);

  std::vector<int64_t> members_;
  int64_t own_ = 0;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::chrono::milliseconds timeout_;
  int tag_ = 0;
  std::optional<LostRank> lost_;
  Traffic traffic_;
};

// The part of a c10d error for people: one line without the place in its source.
std::string line_of(const std::exception& error);

}  // namespace stepc
