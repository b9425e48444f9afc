// Peers: the other ranks of a group, and the one way in which bytes go between them.
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

// What an InFlight holds. Its memory is in use until Peers::end() has ended it.
struct InFlight::Works {
  Works(Peers& of, std::string_view name) : peers(of), op(name) {}
  ~Works();
  Works(const Works&) = delete;
  Works& operator=(const Works&) = delete;

  Peers& peers;
  std::string op;
  std::vector<std::pair<size_t, c10::intrusive_ptr<c10d::Work>>> all;  // with whom; none: it has ended
};

class Peers {
 public:
  // `members`: the ranks of the group by their number in the run; `own`: which of them this one is. No backend where
  // it is alone.
  Peers(std::vector<int64_t> members, int64_t own, c10::intrusive_ptr<c10d::Backend> backend);

  [[nodiscard]] int64_t rank() const { return own_; }
  [[nodiscard]] int64_t ranks() const { return std::ssize(members_); }
  [[nodiscard]] const std::vector<int64_t>& members() const { return members_; }
  [[nodiscard]] const Traffic& traffic() const { return traffic_; }

  // sent[i] goes to rank i of the group and received[i] comes from there, this rank's own included; behind these may
  // follow as many once more, and so on: all are on their way at once. Both sides give the same sizes, and where that
  // is nothing no message is sent. begin() returns at once, end() when all has come and what was sent may change;
  // several may be on their way, which all members begin in one order. Throw LostRank, from then on at every call.
  // With a `tag` the messages have that number and the next ones, and nothing is counted.
  InFlight begin(std::string_view op, std::span<const SentBytes> sent, std::span<const ReceivedBytes> received,
                 std::optional<int> tag = {});
  void end(InFlight::Works& exchange);
  void exchange(std::string_view op, std::span<const SentBytes> sent, std::span<const ReceivedBytes> received) {
    begin(op, sent, received).end();
  }

 private:
  friend struct InFlight::Works;
  [[noreturn]] void lose(std::string_view op, const std::vector<size_t>& peers, const std::exception& error);

  std::vector<int64_t> members_;
  int64_t own_ = 0;
  c10::intrusive_ptr<c10d::Backend> backend_;
  int tag_ = 0;
  std::optional<LostRank> lost_;
  Traffic traffic_;
};

// What is left of a c10d error for a person: one line without the place in its source.
std::string line_of(const std::exception& error);

}  // namespace stepc
