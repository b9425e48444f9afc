// Ranks that meet at an address: as threads of this process, each of which joins as a process would.
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/machine_memory.h"
#include "comm/addresses.h"
#include "comm/meeting.h"
#include "comm/ranks.h"
#include "comm/secret.h"
#include "comm/signed_store.h"
#include "tests/comm/free_port.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

using std::chrono::milliseconds;

// What each rank of `ranks` ends with: "" where all went well, else the message.
std::vector<std::string> joined(const std::vector<Launch>& launches, milliseconds timeout,
                                const std::function<void(Ranks&)>& work) {
  std::vector<std::string> said(launches.size());
  std::vector<std::thread> threads;
  for (size_t k = 0; k < launches.size(); ++k)
    threads.emplace_back([&, k] {
      try {
        work(*Ranks::join(launches[k], timeout, timeout));
      } catch (const UserError& error) {
        said[k] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}
std::vector<Launch> launches_of(int64_t ranks, int port) {
  std::vector<Launch> all;
  for (int64_t rank = 0; rank < ranks; ++rank)
    all.push_back({rank, ranks, rank, ranks, "127.0.0.1", port, false, 0, "tests"});
  return all;
}
void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

// Whether somebody accepts connections there; `keeps`: where the connection is kept.
bool answers(const char* address, int port, std::vector<int>* keeps = nullptr) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to));
  pollfd one{fd, POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof(error);
  constexpr int kMoment = 200;  // milliseconds
  const bool yes =
      poll(&one, 1, kMoment) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  if (keeps != nullptr && yes)
    keeps->push_back(fd);
  else
    close(fd);
  return yes;
}

// Listening ports of this process.
std::vector<int> own_ports() {
  std::vector<int> ports;
  for (const int socket : listening_sockets()) ports.push_back(port_of(socket));
  return ports;
}

TEST(Join, RanksMeetAtAnAddress) {
  const int port = free_port();
  const auto said = joined(launches_of(3, port), milliseconds(20000), [&](Ranks& ranks) {
    EXPECT_EQ(ranks.exchange(std::to_string(ranks.rank())), (std::vector<std::string>{"0", "1", "2"}));
    EXPECT_FALSE(answers("127.0.0.1", port)) << "all have come";
    EXPECT_FALSE(answers("127.0.0.2", port)) << "listens at the given address alone";
    ranks.barrier();
  });
  EXPECT_EQ(said, std::vector<std::string>(3));
}

// A program's own may want it later, for torch.distributed.
TEST(Join, ThePortOfAProgramsOwnLaunchIsLeft) {
  const int port = free_port();
  std::vector<std::thread> threads;
  for (const Launch& launch : launches_of(3, port))
    threads.emplace_back([launch, port] {
      const auto ranks =
          Ranks::join(launch, c10::intrusive_ptr<c10d::Store>(), milliseconds(20000), milliseconds(20000));
      ranks->barrier();
      EXPECT_FALSE(answers("127.0.0.1", port));
      ranks->barrier();
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(port);
      options.isServer = ranks->rank() == 0;
      const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
      const Mesh mesh = make_mesh({{"dp_shard", 3}});  // its group is met in the ranks' own store
      at::Tensor sum = at::ones({});
      ranks->along(mesh, {0}).broadcast(sum);
      EXPECT_EQ(ranks->exchange("a"), std::vector<std::string>(3, "a"));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Join, OneMeetsNobody) {
  EXPECT_EQ(Ranks::join({}, milliseconds(10), milliseconds(10))->exchange("a"), std::vector<std::string>{"a"});
}

TEST(Join, TheAgentsStoreServesEveryAttempt) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto launches = [&](int64_t ranks) {
    std::vector<Launch> all = launches_of(ranks, agent->getPort());
    for (Launch& one : all) one.agent_store = true;
    return all;
  };
  // One of them does not come, and says so to nobody.
  std::vector<Launch> some = launches(3);
  some.pop_back();
  for (const std::string& said : joined(some, milliseconds(300), [](Ranks&) {}))
    expect_part(said, "of 3 ranks 2 did not come to 127.0.0.1:");
  int64_t round = 1;
  for (const int64_t count : {2, 2, 4, 3}) {  // the number of ranks changes, and no restart is counted for that
    ++round;
    std::vector<Launch> all = launches(count);
    all.back().restart = 5;  // an agent that came later counts for itself
    const auto work = [&](Ranks& ranks) {
      EXPECT_EQ(ranks.round(), round);
      EXPECT_EQ(ranks.largest(ranks.rank()), count - 1);
    };
    EXPECT_EQ(joined(all, milliseconds(20000), work), std::vector<std::string>(static_cast<size_t>(count)));
  }
}

// Rank 0 of a later group comes last: until then what the group before has said is there.
TEST(Join, TheOthersWaitForANewRound) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::vector<Launch> all = launches_of(3, agent->getPort());
    std::vector<std::thread> threads;
    for (Launch& one : all) {
      one.agent_store = true;
      threads.emplace_back([&one, attempt] {
        if (one.rank == 0) std::this_thread::sleep_for(milliseconds(100));
        const auto ranks = Ranks::join(one, milliseconds(20000), milliseconds(20000));
        EXPECT_EQ(ranks->round(), attempt + 1);
        ranks->barrier();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Join, SaysWhereNobodyAnswers) {
  const int port = free_port();
  Launch launch = launches_of(2, port)[1];
  const auto said = joined({launch}, milliseconds(300), [](Ranks&) {});
  expect_part(said[0], str("nobody listened at 127.0.0.1:{} within 0.3s, where rank 0 or the launcher's agent should: "
                           "Connection refused",
                           port));
  launch.address = "no-such-machine.invalid";
  expect_part(joined({launch}, milliseconds(300), [](Ranks&) {})[0],
              "the ranks cannot meet at 'no-such-machine.invalid': ");
}

// At once: it listened before it started any rank.
TEST(Join, AnAgentThatIsGone) {
  const int port = free_port();
  Launch launch = launches_of(2, port)[1];
  launch.agent_store = true;
  const auto said = joined({launch}, milliseconds(20000), [](Ranks&) {});
  EXPECT_EQ(said[0], str("nobody listens at 127.0.0.1:{} any more, where the launcher's agent did: it is gone; start "
                         "the run again, from what it has saved",
                         port));
}

// While a rank waits there for the others.
TEST(Join, AnAgentThatGoes) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const int port = agent->getPort();
  Launch launch = launches_of(2, port)[0];
  launch.agent_store = true;
  std::string said;
  std::thread rank([&] { said = joined({launch}, milliseconds(20000), [](Ranks&) {})[0]; });
  agent->wait({"stepc 1/address of 0"});
  agent.reset();
  rank.join();
  expect_part(said, str("rank 0 lost the launcher's agent while it met the others at 127.0.0.1:{}: ", port));
}

TEST(Join, SaysWhoDidNotCome) {
  const int port = free_port();
  std::vector<Launch> launches = launches_of(4, port);
  launches.resize(2);
  const auto said = joined(launches, milliseconds(300), [](Ranks&) {});
  expect_part(said[0], str("of 4 ranks 2, 3 did not come to 127.0.0.1:{} within 0.3s", port));
  EXPECT_NE(said[1], "") << "the same, or that rank 0 has gone with the store";
}

TEST(Join, RefusesAPortThatIsTaken) {
  const PortHolder holder;
  expect_part(joined({launches_of(2, holder.port)[0]}, milliseconds(300), [](Ranks&) {})[0],
              str("port {} of 127.0.0.1 is taken, by another run or by a second rank 0 of this one: give another port",
                  holder.port));
}

std::vector<Launch> with_secrets(const std::vector<std::string>& secrets, int port) {
  std::vector<Launch> all = launches_of(std::ssize(secrets), port);
  for (size_t rank = 0; rank < all.size(); ++rank) all[rank].secret = secrets[rank];
  return all;
}

TEST(Join, RanksOfOneSecret) {
  const auto said =
      joined(with_secrets({"the same", "the same", "the same"}, free_port()), milliseconds(20000), [&](Ranks& ranks) {
        EXPECT_EQ(ranks.largest(ranks.rank()), 2);
        ranks.among({1, 0, 2}, /*for_messages=*/true);
        ranks.barrier();
        const std::vector<int> ports = own_ports();
        ranks.barrier();
        ranks.stop_listening();
        ranks.barrier();
        if (ranks.rank() == 0) {
          EXPECT_GE(ports.size(), 4U) << "the store and three ranks";
          for (const int port : ports) EXPECT_FALSE(answers("127.0.0.1", port)) << port;
        }
        ranks.barrier();
        ranks.among({0, 2, 1});  // they hear again
        ranks.barrier();
      });
  EXPECT_EQ(said, std::vector<std::string>(3));
}

TEST(Join, OtherSecretsDoNotMeet) {
  for (const char* other : {"another", ""}) {
    const auto said = joined(with_secrets({"the same", other}, free_port()), milliseconds(700),
                             [&](Ranks& /*ranks*/) { ADD_FAILURE() << "they met"; });
    EXPECT_NE(said[0].find("of 2 ranks 1 did not come to 127.0.0.1:"), std::string::npos) << said[0];
    expect_part(said[0], ": all want the STEPC_SECRET of this one");
    EXPECT_FALSE(said[1].empty());
  }
}

// Somebody who speaks the store's language, and knows its names, but not the secret.
TEST(Join, WhatIsNotSignedIsNotBelieved) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto one = c10::make_intrusive<SignedStore>(store, Secret("the same"));
  one->set("address of 1", "127.0.0.1");
  EXPECT_EQ(one->get_to_str("address of 1"), "127.0.0.1");
  EXPECT_EQ(one->compareSet("ranks", "", "2"), "2");
  EXPECT_EQ(one->compareSet("ranks", "", "3"), "2");
  EXPECT_FALSE(store->check({"address of 1"})) << "names are not to be guessed";
  const std::string name = Secret("the same").sign("name address of 1");
  ASSERT_TRUE(store->check({name}));
  const std::vector<uint8_t> good = store->get(name);
  const auto refused = [&](std::vector<uint8_t> value) {
    store->set(name, value);
    EXPECT_USER_ERROR(one->get("address of 1"), "'address of 1' was said by somebody who does not have STEPC_SECRET");
  };
  refused({});
  refused({1, 2, 3});
  for (size_t at : {size_t{0}, good.size() - 1}) {
    std::vector<uint8_t> bad = good;
    bad[at] ^= 1;
    refused(bad);
  }
  one->set("address of 2", "127.0.0.1");
  refused(store->get(Secret("the same").sign("name address of 2")));  // signed, of another name
}

TEST(Join, AProofOfTheSecretIsOfOneMeeting) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (const int64_t rank : {0, 1})
    threads.emplace_back([&, rank] {
      Meeting meeting(rank, 2, store, "127.0.0.1", milliseconds(5000), 1, Secret(rank == 0 ? "the same" : "another"));
      try {
        meeting.connect({0, 1});
      } catch (const UserError& error) {
        said[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(said[0], "who answers as rank 1 does not have the STEPC_SECRET of rank 0");
  EXPECT_EQ(said[1], "who answers as rank 0 does not have the STEPC_SECRET of rank 1");
}

// 1,000 that connect and say nothing, bytes that mean nothing, and half of a message: the ranks meet all the same.
TEST(Join, WhoeverElseConnects) {
  const int port = free_port();
  const auto launches = with_secrets({"the same", "the same"}, port);
  std::vector<int> silent;
  std::vector<std::string> said(2);
  const auto join = [&](size_t rank) {
    return std::thread([&, rank] {
      try {
        const auto ranks = Ranks::join(launches[rank], milliseconds(20000), milliseconds(20000));
        EXPECT_EQ(ranks->largest(3), 3);
        for (int i = 0; i < 100; ++i) ranks->barrier();
      } catch (const UserError& error) {
        said[rank] = error.what();
      }
    });
  };
  std::thread first = join(0);
  while (!answers("127.0.0.1", port, &silent)) std::this_thread::sleep_for(milliseconds(10));
  const uint64_t before = resident_process_bytes();
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(answers("127.0.0.1", port, &silent));
  std::mt19937 draw(7);
  for (size_t i = 0; i < silent.size(); i += 3) {
    std::string bytes(draw() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(draw());
    // A store of PyTorch's begins with the kind of message, and lengths: one that is never all there.
    if (i % 2 == 0) bytes = std::string("\x00\xff\xff\xff\xff\xff\xff\xff\x7f", 9) + bytes;
    [[maybe_unused]] const ssize_t sent = ::send(silent[i], bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  std::this_thread::sleep_for(milliseconds(200));
  std::thread second = join(1);
  first.join();
  second.join();
  EXPECT_EQ(said, std::vector<std::string>(2));
  constexpr uint64_t kMost = 200 << 20;  // 2 libraries of connections
  EXPECT_LT(resident_process_bytes(), before + kMost);
  for (const int socket : silent) close(socket);
}

TEST(Secret, SignsAsOthersDo) {  // RFC 4231, test case 2
  EXPECT_EQ(Secret("Jefe").sign("what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_TRUE(Secret("Jefe").is_signed("a", Secret("Jefe").sign("a")));
  EXPECT_FALSE(Secret("Jefe").is_signed("a", Secret("Jefe").sign("b")));
  EXPECT_FALSE(Secret("Jefe").is_signed("a", ""));
  EXPECT_EQ(draw_nonce().size(), 32U);
  EXPECT_NE(draw_nonce(), draw_nonce());
}

TEST(Join, RefusesARankThatIsGivenTwice) {
  const int port = free_port();
  std::vector<Launch> launches = launches_of(3, port);
  launches[2] = launches[1];
  const auto said = joined(launches, milliseconds(300), [](Ranks&) {});
  const std::string twice = str("rank 1 of 3 is given twice: two processes say so at 127.0.0.1:{}", port);
  EXPECT_EQ((said[1] == twice) + (said[2] == twice), 1) << said[1] << "\n" << said[2];
  expect_part(said[0], "of 3 ranks 2 did not come");
}

TEST(Join, RefusesRanksOfOtherRuns) {
  const int port = free_port();
  std::vector<Launch> launches = launches_of(2, port);
  launches[1].ranks = 4;
  const auto said = joined(launches, milliseconds(300), [](Ranks&) {});
  expect_part(said[0] + said[1], "start all alike");
}

}  // namespace
}  // namespace stepc
