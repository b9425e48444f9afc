// Meeting: where the ranks of a run find each other; it connects groups of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/peers.h"
#include "comm/secret.h"
#include "comm/transport.h"

namespace stepc {

class Meeting {
 public:
  // `store` and `address`, where this rank listens for the others, are unused if the rank is alone. `round`: how often
  // ranks have met in that store, with this time. `secret`: every two ranks prove to each other that they have it.
  Meeting(int64_t rank, int64_t ranks, c10::intrusive_ptr<c10d::Store> store, std::string address,
          std::chrono::milliseconds timeout, int64_t round = 1, Secret secret = {});

  [[nodiscard]] int64_t rank() const { return rank_; }
  [[nodiscard]] int64_t ranks() const { return ranks_; }
  [[nodiscard]] int64_t round() const { return round_; }

  // Connects the members of a group, which includes this rank; all members call it together. Throws LostRank if some do
  // not come, and UserError or InternalError if the connections do not work. `name`: distinguishes several groups of
  // the same ranks.
  std::unique_ptr<Peers> connect(const std::vector<int64_t>& members, const std::string& name = {});
  // Stops accepting connections until the next connect(), which makes up to a second later if others call it earlier.
  void stop_listening();

 private:
  int64_t rank_, ranks_, round_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string address_;
  std::chrono::milliseconds timeout_;
  Secret secret_;
  std::unique_ptr<Transport> transport_;  // made on the first connect()
};

}  // namespace stepc
