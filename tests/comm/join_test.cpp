// Ranks that meet at an address: as threads of this process, each of which joins as a process would.
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/ranks.h"
#include "tests/comm/free_port.h"

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

// Whether somebody accepts connections there.
bool answers(const char* address, int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const bool yes = connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  close(fd);
  return yes;
}

TEST(Join, RanksMeetAtAnAddress) {
  const int port = free_port();
  const auto said = joined(launches_of(3, port), milliseconds(20000), [&](Ranks& ranks) {
    EXPECT_EQ(ranks.exchange(std::to_string(ranks.rank())), (std::vector<std::string>{"0", "1", "2"}));
    EXPECT_TRUE(answers("127.0.0.1", port));
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
