// Every collective on tensors of a device, on ranks that are threads: by way of the host, and by NCCL, for which
// tests/comm/pretend_nccl.h stands in. Beside those of the same tensors on the host, bit by bit.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/exchanges.h"
#include "comm/meeting.h"
#include "comm/nccl_exchanges.h"
#include "comm/peers.h"
#include "tests/comm/pretend_nccl.h"
#include "tests/comm/rank_threads.h"
#include "tests/device/open_emulated_device.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

using pretend_nccl::kDevice;

const Nccl& pretended() {
  static const Nccl nccl = pretend_nccl::table();
  return nccl;
}

// One rank's.
struct Member {
  Meeting meeting;
  std::unique_ptr<Peers> peers;
  std::unique_ptr<Exchanges> host, copied, nccl;
  Nccl::Comm* comm = nullptr;

  Member(int64_t rank, int64_t ranks, const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout)
      : meeting(rank, ranks, store, "127.0.0.1", timeout) {
    std::vector<int64_t> all;
    for (int64_t k = 0; k < ranks; ++k) all.push_back(k);
    peers = meeting.connect(all);
    host = host_exchanges(*peers);
    copied = copied_exchanges(*host, peers->ranks());
  }
  void connect_nccl(const c10::Device& device = kDevice) {
    nccl = nccl_exchanges(*peers, *copied, device, pretended(),
                          [](const c10::Stream&) { return &pretend_nccl::g_stream; });
  }
};

class DeviceExchanges : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if (emulated_device() == nullptr) GTEST_SKIP() << "there is no emulated device in this build";
  }
  static void on_members(int64_t ranks, const std::function<void(Member&)>& work,
                         std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        try {
          Member member(rank, ranks, store, timeout);
          work(member);
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceExchanges, testing::Values(1, 2, 3));

// What all of them can be reduced to without rounding.
at::Tensor exact_operand(int64_t rank, at::IntArrayRef shape, at::ScalarType type) {
  at::Tensor numbers = at::arange(c10::multiply_integers(shape), at::kLong).mul_(3 + rank).add_(rank).remainder_(17);
  if (type == at::kBool) numbers = numbers.gt(8);
  return numbers.to(type).reshape(shape);
}
std::vector<at::Tensor> moved(const std::vector<at::Tensor>& tensors, const c10::Device& device) {
  std::vector<at::Tensor> there;
  for (const at::Tensor& tensor : tensors) there.push_back(tensor.to(device).clone());
  return there;
}

// The results of every call, from its operands on the device, on the host again.
std::vector<at::Tensor> results_of(Exchanges& exchanges, const Peers& peers, at::ScalarType type,
                                   const c10::Device& device) {
  const int64_t n = peers.ranks(), rank = peers.rank();
  const auto whole = [&] { return moved({exact_operand(rank, {3, 5}, type), exact_operand(rank, {}, type)}, device); };
  const auto parted = [&] {
    return moved({exact_operand(rank, {n, 7}, type), exact_operand(rank, {n, 2, 3}, type)}, device);
  };
  const auto zeros = [&](std::vector<std::vector<int64_t>> shapes) {
    std::vector<at::Tensor> made;
    for (const auto& shape : shapes) made.push_back(at::zeros(shape, type));
    return moved(made, device);
  };
  std::vector<at::Tensor> results;
  const auto keep = [&](const std::vector<at::Tensor>& more) {
    for (const at::Tensor& tensor : more) results.push_back(tensor.cpu());
  };
  const auto gathered = zeros({{n, 3, 5}, {n}}), exchanged = zeros({{n, 7}, {n, 2, 3}});
  const auto to_gather = whole(), to_exchange = parted();            // in use until these have ended
  InFlight first = exchanges.begin_all_gather(to_gather, gathered);  // they end in another order than they began in
  InFlight second = exchanges.begin_all_to_all(to_exchange, exchanged);
  second.end();
  first.end();
  keep(gathered);
  keep(exchanged);
  for (int64_t by = 1; by < n; ++by) {
    const auto turned = zeros({{3, 5}, {}});
    exchanges.begin_rotate(whole(), turned, by).end();
    keep(turned);
  }
  for (int64_t from = 0; from < n; ++from) {
    const auto tensors = whole();
    exchanges.broadcast(tensors, from);
    keep(tensors);
  }
  const at::Tensor scratch = at::empty({device.is_cpu() ? 1 << 16 : 0}, at::kByte);  // on a device there is none
  for (const ReduceOp how : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    const auto scattered = zeros({{7}, {2, 3}});
    exchanges.reduce_scatter(parted(), scattered, how, scratch.data_ptr(), scratch.nbytes());
    keep(scattered);
    const auto begun = zeros({{7}, {2, 3}});
    exchanges.begin_reduce_scatter(parted(), begun, how).end();
    keep(begun);
    for (size_t t = 0; t < begun.size(); ++t) EXPECT_TRUE(at::equal(begun[t].cpu(), scattered[t].cpu())) << type;
    const auto sums = whole();
    exchanges.all_reduce(sums, how, scratch.data_ptr(), scratch.nbytes());
    keep(sums);
  }
  if (n > 1) {  // messages by tags, in any order
    const int64_t next = (rank + 1) % n, last = (rank + n - 1) % n;
    const auto sent = whole(), got = zeros({{3, 5}, {}});
    InFlight two = exchanges.begin_messages("two", {}, 0, {got[1]}, last, 2),
             one = exchanges.begin_messages("one", {}, 0, {got[0]}, last, 1);
    InFlight to_one = exchanges.begin_messages("one", {sent[0]}, next, {}, 0, 1),
             to_two = exchanges.begin_messages("two", {sent[1]}, next, {}, 0, 2);
    for (InFlight* message : {&one, &two, &to_one, &to_two}) message->end();
    keep(got);
  }
  return results;
}

void expect_same(const std::vector<at::Tensor>& have, const std::vector<at::Tensor>& want, at::ScalarType type) {
  ASSERT_EQ(have.size(), want.size());
  for (size_t t = 0; t < have.size(); ++t) EXPECT_TRUE(at::equal(have[t], want[t])) << "result " << t << " of " << type;
}

constexpr at::ScalarType kMovedTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                          at::kLong,  at::kInt,    at::kByte,     at::kBool};

TEST_P(DeviceExchanges, ComeToWhatTheHostsComeTo) {
  on_members(GetParam(), [](Member& member) {
    member.connect_nccl();
    for (const at::ScalarType type : kMovedTypes) {
      const auto wanted = results_of(*member.host, *member.peers, type, at::kCPU);
      expect_same(results_of(*member.copied, *member.peers, type, kDevice), wanted, type);
      expect_same(results_of(*member.nccl, *member.peers, type, kDevice), wanted, type);
    }
    EXPECT_USER_ERROR(member.nccl->all_reduce(at::zeros({2}, at::kShort).to(kDevice), ReduceOp::kSum, nullptr, 0),
                      "ranks on CUDA devices do not reduce tensors of Short: NCCL has no such type");
  });
}

TEST_P(DeviceExchanges, AreARankGroupsWhereItsTensorsLie) {
  on_ranks(GetParam(), [&](Ranks& ranks) {
    const int64_t n = ranks.ranks();
    const at::Tensor own = exact_operand(ranks.rank(), {3, 5}, at::kBFloat16),
                     gathered = at::zeros({n, 3, 5}, at::kBFloat16);
    const at::Tensor on_device = gathered.to(kDevice);
    ranks.all().all_gather(own, gathered);
    ranks.all().all_gather(own.to(kDevice), on_device);
    EXPECT_TRUE(at::equal(on_device.cpu(), gathered));
    EXPECT_THROW(ranks.all().all_gather(own, on_device), InternalError) << "in two memories";
    ranks.barrier();
  });
}

// Returns when all members have called it.
void meet(Member& member) {
  const at::Tensor own = at::ones({1}), all = at::zeros({member.peers->ranks()});
  member.host->begin_all_gather(own, all).end();
}

// Stops the device, which all members share: what begins there does not end, nor does what a member has not yet seen
// end.
void stop_device(bool stops) {
  auto* const stop = reinterpret_cast<void (*)(bool)>(::dlsym(emulated_device(), "emulated_device_stop"));
  ASSERT_NE(stop, nullptr);
  stop(stops);
}

// What the group says once it has lost others.
std::optional<LostRank> loss_of(Exchanges& exchanges) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < end) try {
      exchanges.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } catch (const LostRank& error) {
      return error;
    }
  return std::nullopt;
}

TEST_P(DeviceExchanges, ARankThatEndsBetweenStartAndWaitIsNamed) {
  const int64_t n = GetParam();
  if (n != 2) return;  // of more, one that has heard of it may end before another asks
  on_members(n, [&](Member& member) {
    member.connect_nccl();
    meet(member);  // else others may still connect
    stop_device(true);
    const at::Tensor own = at::ones({3}).to(kDevice), gathered = at::zeros({n, 3}).to(kDevice);
    InFlight begun = member.nccl->begin_all_gather(own, gathered);
    meet(member);  // else it may die while others still begin
    if (member.peers->rank() == n - 1) return pretend_nccl::die_everywhere();
    const auto lost = loss_of(*member.nccl);
    ASSERT_TRUE(lost.has_value());
    EXPECT_EQ(lost->lost.op, "all-gather");
    EXPECT_EQ(lost->lost.missing, std::vector<int64_t>{n - 1});
    EXPECT_NE(std::string(lost->what()).find("rank 0 waited for rank 1, which is gone or late"), std::string::npos)
        << lost->what();
    EXPECT_THROW(begun.end(), LostRank);
    EXPECT_THROW(member.nccl->broadcast(own, 0), LostRank);
  });
  stop_device(false);
}

TEST_P(DeviceExchanges, AreGivenUpWhereAllAnswerAndTheDeviceStands) {
  if (GetParam() != 2) return;  // it takes as long as the ranks wait
  const auto begins = [](Member& member) {
    member.connect_nccl();
    meet(member);  // else others may still connect
    stop_device(true);
    member.nccl->broadcast(at::ones({3}).to(kDevice), 0);
    const auto lost = loss_of(*member.nccl);
    ASSERT_TRUE(lost.has_value());
    const std::string said = lost->what();
    EXPECT_NE(said.find("broadcast of ranks 0"), std::string::npos) << said;
    EXPECT_NE(said.find("it has not ended within 5"), std::string::npos) << said;
    EXPECT_NE(said.find("all of these ranks answer"), std::string::npos) << said;
  };
  on_members(GetParam(), begins, std::chrono::seconds(5));
  stop_device(false);
}

TEST_P(DeviceExchanges, TwoRanksOnOneDeviceAreRefused) {
  if (GetParam() == 1) return;
  ::setenv("EMULATED_CARD", "90 0 0 the only one", 1);
  const auto connect = [](Member& member) { member.connect_nccl(); };
  EXPECT_USER_ERROR(on_members(GetParam(), connect), "are on one device of ");
  ::unsetenv("EMULATED_CARD");
}

}  // namespace
}  // namespace stepc
