#include "comm/meeting.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/check.h"
#include "comm/ranks.h"

namespace stepc {

namespace {

// Each gives its number and gets those of the others: a library that is not what its declarations say is found here,
// and not in the first step.
void check_round(Peers& peers) {
  const int64_t mine = peers.members()[static_cast<size_t>(peers.rank())];
  std::vector<int64_t> got(peers.members().size(), -1);
  std::vector<SentBytes> sent(got.size(), {&mine, sizeof(mine)});
  std::vector<ReceivedBytes> received;
  for (int64_t& of : got) received.push_back({&of, sizeof(of)});
  peers.exchange("the first round", sent, received);
  INTERNAL_CHECK(got == peers.members(), "ranks {} answered as {}", fmt::join(peers.members(), ", "),
                 fmt::join(got, ", "));
}

}  // namespace

Meeting::Meeting(int64_t rank, int64_t ranks, c10::intrusive_ptr<c10d::Store> store, std::string address,
                 std::chrono::milliseconds timeout, int64_t round)
    : rank_(rank),
      ranks_(ranks),
      round_(round),
      store_(std::move(store)),
      address_(std::move(address)),
      timeout_(timeout) {}

std::unique_ptr<Peers> Meeting::connect(const std::vector<int64_t>& members, const std::string& name) {
  const auto own = std::ranges::find(members, rank_);
  INTERNAL_CHECK(own != members.end(), "rank {} makes a group of others", rank_);
  const int64_t place = own - members.begin();
  if (members.size() == 1) return std::make_unique<Peers>(members, place, nullptr);
  if (!transport_) transport_ = cpu_transport(address_);
  c10::intrusive_ptr<c10d::Backend> backend;
  const std::string names = str("{}", fmt::join(members, ", "));
  try {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(str("ranks {}{}", names, name), store_);
    backend = transport_->connect(store, place, std::ssize(members), timeout_);
  } catch (const std::exception& error) {
    throw LostRank(str("ranks {} did not connect: {}", names, line_of(error)));
  }
  auto peers = std::make_unique<Peers>(members, place, std::move(backend));
  check_round(*peers);
  return peers;
}

}  // namespace stepc
