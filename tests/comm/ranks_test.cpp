#include "comm/ranks.h"

#include <chrono>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "ir/rank_parts.h"
#include "tests/comm/rank_threads.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

void add(RankGroup& group, const at::Tensor& tensor) {
  const uint64_t bytes = reduction_scratch_bytes(tensor.numel(), tensor.element_size(), group.ranks());
  const at::Tensor scratch = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  group.all_reduce(tensor, ReduceOp::kSum, scratch.mutable_data_ptr(), bytes);
}

// Ranks count with the last axis fastest; groups along one axis work while those along the other do.
void check_axes(const Mesh& mesh) {
  on_ranks(mesh.ranks(), [&](Ranks& ranks) {
    const int64_t me = ranks.rank(), columns = mesh.size(1), rows = mesh.size(0);
    const int64_t row = me / columns, column = me % columns;
    RankGroup &down = ranks.along(mesh, {0}), &across = ranks.along(mesh, {1});
    EXPECT_EQ(&ranks.along(mesh, {0}), &down) << "kept";
    EXPECT_EQ(down.rank(), row);
    EXPECT_EQ(across.rank(), column);
    EXPECT_EQ(across.members().front(), row * columns);
    for (int64_t i = 0; i < 20; ++i) {
      if ((me + i) % 3 == 0) at::rand({100, 100}).mm(at::rand({100, 100}));  // out of step with each other
      const at::Tensor a = at::full({100}, me + i, at::kLong), b = a.clone();
      add(down, a);
      add(across, b);
      EXPECT_EQ(a[99].item<int64_t>(), rows * (column + i) + columns * rows * (rows - 1) / 2);
      EXPECT_EQ(b[0].item<int64_t>(), columns * (row * columns + i) + columns * (columns - 1) / 2);
    }
    // Both axes, the first fastest: another order of the same ranks.
    const at::Tensor order = at::empty({mesh.ranks()}, at::kLong);
    ranks.along(mesh, {1, 0}).all_gather(at::full({1}, me, at::kLong), order);
    EXPECT_EQ(order[1].item<int64_t>(), columns);
    ranks.along(mesh, {0, 1}).all_gather(at::full({1}, me, at::kLong), order);
    EXPECT_EQ(order[1].item<int64_t>(), 1);
  });
}

TEST(Ranks, FormGroupsAlongTheAxesOfAMesh) {
  check_axes(parse_mesh("dp_shard=2,tp=2"));
  check_axes(parse_mesh("dp_shard=2,tp=3"));
}

// Parts of a run talk among themselves at their own pace, with no others to wait for.
TEST(Ranks, APartIsARunOfItsOwn) {
  on_ranks(4, [](Ranks& ranks) {
    const int64_t half = ranks.rank() / 2;
    const auto part = ranks.part({2 * half, 2 * half + 1});
    EXPECT_EQ(part->rank(), ranks.rank() % 2);
    EXPECT_EQ(part->ranks(), 2);
    EXPECT_EQ(part->rank_in_run(), ranks.rank());
    for (int64_t i = 0; i < 3 + 5 * half; ++i) {
      EXPECT_EQ(part->exchange(str("{}", ranks.rank())),
                (std::vector<std::string>{str("{}", 2 * half), str("{}", 2 * half + 1)}));
      EXPECT_EQ(part->along(parse_mesh("tp=2"), {0}).ranks(), 2);
    }
    EXPECT_EQ(ranks.largest(ranks.rank()), 3);
    EXPECT_GT(ranks.traffic().sent_bytes, 0U) << "of its parts too";
  });
}

// Messages have numbers: they may be begun in another order than they are waited for.
TEST(Ranks, SendAndReceiveByNumber) {
  on_ranks(3, [](Ranks& ranks) {
    RankGroup& group = ranks.among({0, 1, 2}, /*for_messages=*/true);
    EXPECT_NE(&group, &ranks.all());
    constexpr int kMessages = 5;
    if (ranks.rank() == 0) {
      std::vector<at::Tensor> tensors;
      std::vector<InFlight> sends;
      for (int i = 0; i < kMessages; ++i) {
        tensors.push_back(at::full({100}, i, at::kFloat));
        sends.push_back(group.begin_send("a number", tensors.back(), 2, i));
      }
      for (InFlight& send : sends) send.end();
    } else if (ranks.rank() == 2) {
      for (int i = kMessages; i-- > 0;) {
        const at::Tensor got = at::zeros({100});
        group.begin_receive("a number", got, 0, i).end();
        EXPECT_EQ(got.min().item<double>(), i);
      }
    }
    ranks.barrier();
  });
}

TEST(Ranks, ExchangeTexts) {
  on_ranks(3, [](Ranks& ranks) {
    const std::string mine(static_cast<size_t>(ranks.rank()) * 5, static_cast<char>('a' + ranks.rank()));
    EXPECT_EQ(ranks.exchange(mine), (std::vector<std::string>{"", "bbbbb", "cccccccccc"}));
    EXPECT_EQ(ranks.exchange(""), (std::vector<std::string>{"", "", ""}));
  });
}

TEST(Ranks, ExchangeNumbers) {
  on_ranks(3, [](Ranks& ranks) {
    const int64_t large = int64_t{15} << 40;
    EXPECT_EQ(ranks.each(large + ranks.rank()), (std::vector<int64_t>{large, large + 1, large + 2}));
    EXPECT_EQ(ranks.each(0), (std::vector<int64_t>(3)));
  });
}

TEST(Ranks, AgreeOnTheLargest) {
  on_ranks(4, [](Ranks& ranks) {
    EXPECT_EQ(ranks.largest(ranks.rank() == 2 ? 7 : ranks.rank()), 7);
    EXPECT_EQ(ranks.largest(5 - ranks.rank()), 5);
  });
}

TEST(Ranks, OneThatFailsTellsTheOthers) {
  const auto expect_told = [](const auto& call, const std::string& text) {
    try {
      call();
      ADD_FAILURE() << "expected: " << text;
    } catch (const RankFailed& error) {
      EXPECT_EQ(error.what(), text);
    }
  };
  on_ranks(3, [&](Ranks& ranks) {
    ranks.barrier();
    expect_told([&] { ranks.rank() == 1 ? ranks.fail("no such file") : ranks.barrier(); }, "rank 1: no such file");
    EXPECT_EQ(ranks.largest(ranks.rank()), 2);  // they could go on
    expect_told([&] { ranks.rank() == 0 ? ranks.fail("") : static_cast<void>(ranks.exchange("text")); }, "rank 0: ");
    expect_told([&] { ranks.fail("of all"); }, "of all");
    expect_told([&] { ranks.fail(ranks.rank() == 2 ? "other" : "of two"); }, "rank 0: of two");
  });
}

TEST(Ranks, CountWhatTheySend) {
  on_ranks(2, [&](Ranks& ranks) {
    ranks.barrier();
    const Traffic before = ranks.traffic();
    const at::Tensor gathered = at::empty({2, 1000}, at::kByte);
    ranks.all().all_gather(gathered[ranks.rank()], gathered);
    EXPECT_EQ(ranks.traffic().sent_bytes - before.sent_bytes, 1000U);
    EXPECT_GT(ranks.traffic().seconds, before.seconds);
  });
}

TEST(Ranks, OneIsAlone) {
  on_ranks(1, [](Ranks& ranks) {
    EXPECT_EQ(ranks.exchange("x"), std::vector<std::string>{"x"});
    EXPECT_EQ(ranks.largest(3), 3);
    ranks.barrier();
  });
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const LostRank& error) {
    return error.what();
  }
  return "";
}

TEST(Ranks, SayWhomTheyWaitedFor) {
  const auto all = Ranks::threads(3, std::chrono::milliseconds(300));
  on_ranks(all, [](Ranks& ranks) {
    ranks.barrier();
    if (ranks.rank() == 1) return;  // does not come any more
    const std::string first = message_of([&] { ranks.barrier(); });
    EXPECT_NE(first.find("all-gather of ranks 0, 1, 2: rank "), std::string::npos) << first;
    EXPECT_NE(first.find("waited for rank "), std::string::npos) << first;
    EXPECT_NE(first.find("which is gone or late: "), std::string::npos) << first;
    EXPECT_EQ(first.find('\n'), std::string::npos) << first;
    EXPECT_EQ(message_of([&] { ranks.largest(1); }), first) << "for good";
  });
}

TEST(Ranks, DoNotConnectToThoseWhoDoNotCome) {
  const auto all = Ranks::threads(2, std::chrono::milliseconds(300));
  const std::string text = message_of([&] { all[0]->barrier(); });
  EXPECT_NE(text.find("ranks 0, 1 did not connect: "), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(Ranks, RefuseAMeshOfOthers) {
  on_ranks(2, [](Ranks& ranks) { EXPECT_THROW(ranks.along(parse_mesh("tp=4"), {0}), InternalError); });
}

// Of documentation's network, where no machine is: neither rank waits longer than it was told to.
TEST(Ranks, AnAddressWhereNobodyAnswers) {
  for (const int64_t rank : {0, 1}) {
    const Launch launch{.rank = rank, .ranks = 2, .address = "192.0.2.1", .port = 29431};
    const auto began = std::chrono::steady_clock::now();
    EXPECT_USER_ERROR(Ranks::join(launch, std::chrono::milliseconds(300), std::chrono::seconds(1)),
                      "nobody listened at 192.0.2.1:29431 within 0.3s");
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  }
}

}  // namespace
}  // namespace stepc
