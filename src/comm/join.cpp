// How the processes of a run meet: in a store of keys at one address, where each says that it is there.
#include <algorithm>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/addresses.h"
#include "comm/meeting.h"
#include "comm/ranks.h"

namespace stepc {

namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kLongestPause{100};
constexpr int kAnyPort = 1;  // to ask which of its addresses a machine uses, without sending anything

std::string place_of(const Launch& launch) { return str("{}:{}", launch.address, launch.port); }

// Others may keep what is theirs in the same store, and earlier attempts of a run that was started again.
c10::intrusive_ptr<c10d::Store> under_own_names(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store) {
  return c10::make_intrusive<c10d::PrefixStore>(str("stepc {}", launch.restart), store);
}

c10d::TCPStoreOptions options_of(int port, bool is_server, Milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;  // below, so that it can be said who did not come
  options.timeout = timeout;
  return options;
}

c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch, Milliseconds timeout) {
  c10d::TCPStoreOptions options = options_of(launch.port, launch.rank == 0 && !launch.agent_store, timeout);
  // The store believes whoever connects, and by itself would listen on all addresses of the machine.
  if (options.isServer) options.masterListenFd = bind_socket(launch.address, launch.port);
  wait_for_listener(launch.address, launch.port, timeout);  // rank 0, too: the address may be another machine's
  return under_own_names(launch, c10::make_intrusive<c10d::TCPStore>(launch.address, options));
}

// Each says that it is there, and where the others reach it; returns once all have.
void meet(const Launch& launch, c10d::Store& store, const std::string& address, Milliseconds timeout) {
  const auto key = [](int64_t rank) { return str("address of {}", rank); };
  const std::string ranks = std::to_string(launch.ranks);
  const std::string said = store.compareSet("ranks", std::string(), ranks);
  USER_CHECK(said == ranks, "rank {} is one of {} ranks, and others that meet at {} are of {}: start all alike",
             launch.rank, ranks, place_of(launch), said);
  USER_CHECK(store.add(str("count of {}", launch.rank), 1) == 1,
             "rank {} of {} is given twice: two processes say so at {}", launch.rank, ranks, place_of(launch));
  store.set(key(launch.rank), address);
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < launch.ranks; ++rank) keys.push_back(key(rank));
  // Not the store's own wait, which would not say who is missing.
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (Milliseconds pause{1}; !store.check(keys); pause = std::min(2 * pause, kLongestPause)) {
    if (std::chrono::steady_clock::now() > end) {
      std::vector<int64_t> missing;
      for (int64_t rank = 0; rank < launch.ranks; ++rank)
        if (!store.check({key(rank)})) missing.push_back(rank);
      user_error("of {} ranks {} did not come to {} within {}", ranks, fmt::join(missing, ", "), place_of(launch),
                 human_seconds(std::chrono::duration<double>(timeout).count()));
    }
    std::this_thread::sleep_for(pause);
  }
  for (int64_t rank = 0; rank < launch.ranks; ++rank) {
    const std::string other = store.get_to_str(key(rank));
    USER_CHECK(is_loopback(other) == is_loopback(address),
               "rank {} is at {} and rank {} at {}, which do not reach each other: give as {} an address of their "
               "network",
               launch.rank, address, rank, other, launch.address);
  }
}

// Of ranks that have met: another one, at a port that the system gives. All have it when this returns.
c10::intrusive_ptr<c10d::Store> store_of_its_own(const Launch& launch, c10d::Store& met_in, Milliseconds timeout) {
  c10d::TCPStoreOptions options = options_of(0, launch.rank == 0, timeout);
  if (options.isServer) {
    options.masterListenFd = bind_socket(launch.address, 0);
    met_in.set("port", std::to_string(port_of(*options.masterListenFd)));
  }
  options.port = static_cast<uint16_t>(std::stoi(met_in.get_to_str("port")));
  auto store = c10::make_intrusive<c10d::TCPStore>(launch.address, options);
  if (store->add("moved", 1) == launch.ranks) store->set("here", std::vector<uint8_t>{1});
  store->wait({"here"});
  return store;
}

// `store`: none where they meet at the launcher's port.
std::shared_ptr<Ranks> join_in(c10::intrusive_ptr<c10d::Store> store, bool leaves_port, const Launch& launch,
                               Milliseconds to_meet, Milliseconds to_answer) {
  INTERNAL_CHECK(launch.rank >= 0 && launch.rank < launch.ranks, "rank {} of {}", launch.rank, launch.ranks);
  if (launch.ranks == 1) return std::make_shared<Ranks>(std::make_unique<Meeting>(0, 1, nullptr, "", to_answer));
  std::string address;
  try {
    store = store ? under_own_names(launch, store) : open_store(launch, to_meet);
    address = address_toward(launch.address, launch.port == 0 ? kAnyPort : launch.port);
    meet(launch, *store, address, to_meet);
    if (leaves_port) store = store_of_its_own(launch, *store, to_meet);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw LostRank(
        str("rank {} lost the others while it met them at {}: {}", launch.rank, place_of(launch), line_of(error)));
  }
  auto ranks = std::make_shared<Ranks>(
      std::make_unique<Meeting>(launch.rank, launch.ranks, std::move(store), address, to_answer));
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
