// How the processes of a run meet: in a store of keys at one address, where each says that it is there.
#include <algorithm>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/addresses.h"
#include "comm/meeting.h"
#include "comm/ranks.h"
#include "comm/secret.h"
#include "comm/signed_store.h"

namespace stepc {

namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kLongestPause{100};
constexpr Milliseconds kOfAgent = std::chrono::seconds(7);  // that its store is waited for, twice
constexpr int kAnyPort = 1;  // to ask which of its addresses a machine uses, without sending anything

std::string place_of(const Launch& launch) { return str("{}:{}", launch.address, launch.port); }

c10d::TCPStoreOptions options_of(int port, bool is_server, Milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;  // below, so that it can be said who did not come
  options.timeout = timeout;
  return options;
}

// The store of the run, and where it is this rank's, the socket at which it listens.
struct OpenStore {
  c10::intrusive_ptr<c10d::Store> store;
  int socket = -1;
};

c10::intrusive_ptr<c10d::Store> with_secret(c10::intrusive_ptr<c10d::Store> store, const Launch& launch) {
  if (launch.secret.empty()) return store;
  return c10::make_intrusive<SignedStore>(std::move(store), Secret(launch.secret));
}

OpenStore open_store(const Launch& launch, Milliseconds timeout) {
  c10d::TCPStoreOptions options = options_of(launch.port, launch.rank == 0 && !launch.agent_store, timeout);
  // The store believes whoever connects, and by itself would listen on all addresses of the machine.
  if (options.isServer) options.masterListenFd = bind_socket(launch.address, launch.port);
  // An agent listened before it started this rank; its machine may be gone, or it itself go between the two waits.
  if (launch.agent_store) options.timeout = std::min(timeout, kOfAgent);
  // Rank 0, too: it may be another machine's address.
  wait_for_listener(launch.address, launch.port, options.timeout, /*has_listened=*/launch.agent_store);
  auto store = c10::make_intrusive<c10d::TCPStore>(launch.address, options);
  store->setTimeout(timeout);
  return {with_secret(std::move(store), launch), options.masterListenFd.value_or(-1)};
}

std::string address_key(int64_t rank) { return str("address of {}", rank); }
constexpr const char* kRounds = "stepc rounds";  // how often ranks have begun to meet in a store
constexpr const char* kAllAreHere = "all are here";

// One meeting of ranks in a store. A store of an agent's outlives the groups of ranks that it starts, and what they
// said stays in it: so rank 0 opens a new round, the others come to the newest one that they can, and none counts
// before its rank 0 has seen them all. How often an agent has restarted its ranks says nothing: agents that came later
// count from 0, and a change of their number is no restart.
class Round {
 public:
  // `is_fresh`: rank 0 has just made the store, so there is one round, and who does not fit into it is wrong.
  Round(const Launch& launch, c10::intrusive_ptr<c10d::Store> store, bool is_fresh, Milliseconds timeout)
      : launch_(launch), store_(std::move(store)), is_fresh_(is_fresh), timeout_(timeout) {}

  // Says that this rank is there, and where the others reach it; returns the round's number once all have.
  int64_t meet(const std::string& address) {
    if (launch_.rank == 0) enter(store_->add(kRounds, 1), address);
    const auto end = std::chrono::steady_clock::now() + timeout_;
    for (Milliseconds pause{1}; !is_complete(address); pause = std::min(2 * pause, kLongestPause)) {
      if (std::chrono::steady_clock::now() > end) give_up();
      std::this_thread::sleep_for(pause);
    }
    check_addresses(address);
    return number_;
  }
  // What all have said in it.
  [[nodiscard]] const c10::intrusive_ptr<c10d::Store>& names() const { return names_; }

 private:
  void enter(int64_t number, const std::string& address) {
    number_ = number;
    is_in_ = false;
    // Others may keep what is theirs in the same store.
    names_ = c10::make_intrusive<c10d::PrefixStore>(str("stepc {}", number), store_);
    const std::string ranks = std::to_string(launch_.ranks);
    const std::string said = names_->compareSet("ranks", std::string(), ranks);
    if (said != ranks)
      return stay_out(str("rank {} is one of {} ranks, and others that meet at {} are of {}: start all alike",
                          launch_.rank, ranks, place_of(launch_), said));
    if (names_->add(str("count of {}", launch_.rank), 1) != 1)
      return stay_out(
          str("rank {} of {} is given twice: two processes say so at {}", launch_.rank, ranks, place_of(launch_)));
    names_->set(address_key(launch_.rank), address);
    is_in_ = true;
  }
  // Of a round that is over, perhaps: a newer one may come.
  void stay_out(const std::string& why) {
    if (is_fresh_) throw UserError(why);
    why_out_ = why;
  }

  bool is_complete(const std::string& address) {
    const int64_t newest = store_->add(kRounds, 0);
    if (launch_.rank != 0 && newest > number_) enter(newest, address);
    if (!is_in_) return false;
    if (launch_.rank != 0) return names_->check({kAllAreHere});
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < launch_.ranks; ++rank) keys.push_back(address_key(rank));
    if (!names_->check(keys)) return false;
    names_->set(kAllAreHere, std::vector<uint8_t>{1});
    return true;
  }
  // Not the store's own wait, which would not say who is missing.
  [[nodiscard]] std::vector<int64_t> missing() const {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < launch_.ranks; ++rank)
      if (names_ == nullptr || !names_->check({address_key(rank)})) ranks.push_back(rank);
    if (names_ == nullptr) std::erase(ranks, launch_.rank);
    return ranks;
  }
  [[noreturn]] void give_up() const {
    if (!is_in_ && !why_out_.empty()) throw UserError(why_out_);
    user_error("of {} ranks {} did not come to {} within {}{}", launch_.ranks, fmt::join(missing(), ", "),
               place_of(launch_), human_seconds(std::chrono::duration<double>(timeout_).count()),
               launch_.secret.empty() ? "" : ": all want the STEPC_SECRET of this one");
  }
  void check_addresses(const std::string& address) const {
    for (int64_t rank = 0; rank < launch_.ranks; ++rank) {
      const std::string other = names_->get_to_str(address_key(rank));
      USER_CHECK(is_loopback(other) == is_loopback(address),
                 "rank {} is at {} and rank {} at {}, which do not reach each other: give as {} an address of their "
                 "network",
                 launch_.rank, address, rank, other, launch_.address);
    }
  }

  const Launch& launch_;
  c10::intrusive_ptr<c10d::Store> store_;
  bool is_fresh_;
  Milliseconds timeout_;
  int64_t number_ = 0;
  bool is_in_ = false;
  std::string why_out_;
  c10::intrusive_ptr<c10d::Store> names_;
};

// Of ranks that have met: another one, at a port that the system gives. All have it when this returns.
OpenStore store_of_its_own(const Launch& launch, c10d::Store& met_in, Milliseconds timeout) {
  c10d::TCPStoreOptions options = options_of(0, launch.rank == 0, timeout);
  if (options.isServer) {
    options.masterListenFd = bind_socket(launch.address, 0);
    met_in.set("port", std::to_string(port_of(*options.masterListenFd)));
  }
  options.port = static_cast<uint16_t>(std::stoi(met_in.get_to_str("port")));
  auto store = with_secret(c10::make_intrusive<c10d::TCPStore>(launch.address, options), launch);
  if (store->add("moved", 1) == launch.ranks) store->set("here", std::vector<uint8_t>{1});
  store->wait({"here"});
  return {std::move(store), options.masterListenFd.value_or(-1)};
}

// `store`: none where they meet at the launcher's port.
std::shared_ptr<Ranks> join_in(c10::intrusive_ptr<c10d::Store> store, bool leaves_port, const Launch& launch,
                               Milliseconds to_meet, Milliseconds to_answer) {
  INTERNAL_CHECK(launch.rank >= 0 && launch.rank < launch.ranks, "rank {} of {}", launch.rank, launch.ranks);
  if (launch.ranks == 1) return std::make_shared<Ranks>(std::make_unique<Meeting>(0, 1, nullptr, "", to_answer));
  std::string address;
  int64_t round = 1;
  try {
    const bool is_fresh = !store && !launch.agent_store;
    OpenStore open = store ? OpenStore{with_secret(std::move(store), launch)} : open_store(launch, to_meet);
    address = address_toward(launch.address, launch.port == 0 ? kAnyPort : launch.port);
    Round meeting(launch, open.store, is_fresh, to_meet);
    round = meeting.meet(address);
    store = meeting.names();
    if (leaves_port) {
      open = store_of_its_own(launch, *meeting.names(), to_meet);
      store = open.store;
    }
    if (open.socket >= 0) hear_nobody(open.socket);  // all have come
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw LostRank(str("rank {} lost {} while it met the others at {}: {}", launch.rank,
                       launch.agent_store ? "the launcher's agent" : "rank 0", place_of(launch), line_of(error)));
  }
  auto ranks = std::make_shared<Ranks>(std::make_unique<Meeting>(launch.rank, launch.ranks, std::move(store), address,
                                                                 to_answer, round, Secret(launch.secret)));
  ranks->all();
  return ranks;
}

}  // namespace

std::shared_ptr<Ranks> Ranks::join(const Launch& launch, Milliseconds to_meet, Milliseconds to_answer) {
  return join_in({}, /*leaves_port=*/false, launch, to_meet, to_answer);
}

std::shared_ptr<Ranks> Ranks::join(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store,
                                   Milliseconds to_meet, Milliseconds to_answer) {
  const bool is_own_port = !store && !launch.agent_store;  // that of a launcher's agent stays open
  return join_in(store, is_own_port, launch, to_meet, to_answer);
}

}  // namespace stepc
