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

// Each proves to each that it has the secret, of the number that the other has just drawn: who has only listened, at
// another time, cannot.
void check_secret(Peers& peers, const Secret& secret, const std::string& group) {
  constexpr size_t kNonce = 32, kProof = 64;
  const size_t n = peers.members().size(), own = static_cast<size_t>(peers.rank());
  const auto exchange = [&](const std::vector<std::string>& to_each, size_t bytes) {
    std::vector<std::string> got(n, std::string(bytes, '\0'));
    std::vector<SentBytes> sent;
    std::vector<ReceivedBytes> received;
    for (size_t k = 0; k < n; ++k) {
      sent.push_back({to_each[k].data(), bytes});
      received.push_back({got[k].data(), bytes});
    }
    peers.exchange("the proof of the secret", sent, received);
    return got;
  };
  const auto proof = [&](size_t from, size_t to, const std::string& nonce) {
    return str("{}: from {} to {}: {}", group, peers.members()[from], peers.members()[to], nonce);
  };
  const std::string mine = draw_nonce();
  const std::vector<std::string> nonces = exchange(std::vector(n, mine), kNonce);
  std::vector<std::string> proofs;
  for (size_t k = 0; k < n; ++k) proofs.push_back(secret.sign(proof(own, k, nonces[k])));
  const std::vector<std::string> got = exchange(proofs, kProof);
  for (size_t k = 0; k < n; ++k)
    USER_CHECK(secret.is_signed(proof(k, own, mine), got[k]),
               "who answers as rank {} does not have the STEPC_SECRET of rank {}", peers.members()[k],
               peers.members()[own]);
}

}  // namespace

Meeting::Meeting(int64_t rank, int64_t ranks, c10::intrusive_ptr<c10d::Store> store, std::string address,
                 std::chrono::milliseconds timeout, int64_t round, Secret secret)
    : rank_(rank),
      ranks_(ranks),
      round_(round),
      store_(std::move(store)),
      address_(std::move(address)),
      timeout_(timeout),
      secret_(std::move(secret)) {}

std::unique_ptr<Peers> Meeting::connect(const std::vector<int64_t>& members, const std::string& name) {
  const auto own = std::ranges::find(members, rank_);
  INTERNAL_CHECK(own != members.end(), "rank {} makes a group of others", rank_);
  const int64_t place = own - members.begin();
  if (members.size() == 1) return std::make_unique<Peers>(members, place, nullptr, timeout_);
  if (!transport_) transport_ = cpu_transport(address_);
  transport_->listen(true);
  c10::intrusive_ptr<c10d::Backend> backend;
  const std::string names = str("{}", fmt::join(members, ", "));
  try {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(str("ranks {}{}", names, name), store_);
    backend = transport_->connect(store, place, std::ssize(members), timeout_);
  } catch (const std::exception& error) {
    throw LostRank(str("ranks {} did not connect: {}", names, line_of(error)));
  }
  auto peers = std::make_unique<Peers>(members, place, std::move(backend), timeout_);
  check_round(*peers);
  if (secret_.is_given()) check_secret(*peers, secret_, str("ranks {}{}", names, name));
  return peers;
}

void Meeting::stop_listening() {
  if (transport_) transport_->listen(false);
}

}  // namespace stepc
