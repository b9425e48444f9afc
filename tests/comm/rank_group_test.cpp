// Every collective on 1 to 8 ranks that are threads, by element type, against what ATen makes of all operands.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "comm/ranks.h"
#include "ir/alignment.h"
#include "ir/rank_parts.h"
#include "tests/comm/rank_threads.h"

namespace stepc {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kBool};

// What rank `rank` holds: the same on every call.
at::Tensor operand_of(int64_t rank, at::IntArrayRef shape, at::ScalarType type) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  const at::Tensor numbers = at::arange(count, at::kDouble) * 0.37 + static_cast<double>(rank) * 1.31;
  if (type == at::kBool) return (numbers.sin() > 0.2).reshape(shape);
  if (type == at::kLong) return (numbers.sin() * 1e6).to(type).reshape(shape);
  return numbers.sin().to(type).reshape(shape);
}
at::Tensor all_operands(int64_t ranks, at::IntArrayRef shape, at::ScalarType type) {
  std::vector<at::Tensor> each;
  for (int64_t rank = 0; rank < ranks; ++rank) each.push_back(operand_of(rank, shape, type));
  return at::stack(each);
}

// In the order of ranks, narrow types in float32.
at::Tensor reduced(const at::Tensor& parts, ReduceOp how) {
  const bool narrow = parts.scalar_type() == at::kBFloat16 || parts.scalar_type() == at::kHalf;
  const at::Tensor wide = narrow ? parts.to(at::kFloat) : parts;
  at::Tensor result = wide[0].clone();
  for (int64_t k = 1; k < parts.size(0); ++k) {
    if (how == ReduceOp::kSum)
      result = at::add(result, wide[k]).to(wide.scalar_type());
    else
      result = how == ReduceOp::kMax ? at::maximum(result, wide[k]) : at::minimum(result, wide[k]);
  }
  return result.to(parts.scalar_type());
}

at::Tensor scratch_of(uint64_t bytes) { return at::full({static_cast<int64_t>(bytes)}, 0xAB, at::kByte); }

at::Tensor reduce_scattered(RankGroup& group, const at::Tensor& operand, ReduceOp how) {
  const uint64_t bytes = reduction_scratch_bytes(operand.numel(), operand.element_size(), group.ranks());
  const at::Tensor scratch = scratch_of(bytes), result = at::empty_like(operand[0]);
  group.reduce_scatter(operand, result, how, scratch.mutable_data_ptr(), bytes);
  return result;
}
void all_reduce(RankGroup& group, const at::Tensor& tensor, ReduceOp how) {
  const uint64_t bytes = reduction_scratch_bytes(tensor.numel(), tensor.element_size(), group.ranks());
  const at::Tensor scratch = scratch_of(bytes);
  group.all_reduce(tensor, how, scratch.mutable_data_ptr(), bytes);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

// Connected once for all of these tests.
class RankGroups : public testing::TestWithParam<int64_t> {
 protected:
  static void TearDownTestSuite() { connected.clear(); }
  static void on_ranks(int64_t n, const std::function<void(Ranks&)>& work) {
    auto& all = connected[n];
    if (all.empty()) all = Ranks::threads(n);
    stepc::on_ranks(all, work);
  }
  static inline std::map<int64_t, std::vector<std::shared_ptr<Ranks>>> connected;
};
INSTANTIATE_TEST_SUITE_P(Ranks, RankGroups, testing::Values(1, 2, 3, 4, 8));

TEST_P(RankGroups, GatherWhatEachHolds) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    RankGroup& group = ranks.all();
    EXPECT_EQ(group.rank(), ranks.rank());
    EXPECT_EQ(group.ranks(), n);
    for (at::ScalarType type : kTypes) {
      const at::Tensor all = all_operands(n, {3, 5}, type), result = at::zeros({n, 3, 5}, type);
      group.all_gather(operand_of(ranks.rank(), {3, 5}, type), result);
      EXPECT_TRUE(same_bits(result, all)) << type;
    }
  });
}

TEST_P(RankGroups, BroadcastWhatTheFirstHolds) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    for (at::ScalarType type : kTypes) {
      const at::Tensor tensor = operand_of(ranks.rank(), {3, 5}, type);
      ranks.all().broadcast(tensor);
      EXPECT_TRUE(same_bits(tensor, operand_of(0, {3, 5}, type))) << type;
    }
  });
}

TEST_P(RankGroups, GatherInPlace) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    const at::Tensor result = at::zeros({n, 4}, at::kFloat);
    result[ranks.rank()].copy_(operand_of(ranks.rank(), {4}, at::kFloat));
    ranks.all().all_gather(result[ranks.rank()], result);
    EXPECT_TRUE(same_bits(result, all_operands(n, {4}, at::kFloat)));
  });
}

TEST_P(RankGroups, ExchangeParts) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    for (at::ScalarType type : kTypes) {
      const at::Tensor result = at::zeros({n, 7}, type);
      ranks.all().all_to_all(operand_of(ranks.rank(), {n, 7}, type), result);
      EXPECT_TRUE(same_bits(result, all_operands(n, {n, 7}, type).select(1, ranks.rank()).contiguous())) << type;
    }
  });
}

// Several at once are what each is alone.
TEST_P(RankGroups, ManyAtOnce) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    RankGroup& group = ranks.all();
    std::vector<at::Tensor> whole, parted, gathered, exchanged, scattered, wanted;
    uint64_t bytes = 0;
    for (const int64_t count : {5, 1, 1000}) {
      whole.push_back(operand_of(ranks.rank(), {count}, at::kBFloat16));
      parted.push_back(operand_of(ranks.rank(), {n, count}, at::kBFloat16));
      gathered.push_back(at::zeros({n, count}, at::kBFloat16));
      exchanged.push_back(at::zeros({n, count}, at::kBFloat16));
      scattered.push_back(at::zeros({count}, at::kBFloat16));
      wanted.push_back(reduced(all_operands(n, {n, count}, at::kBFloat16).select(1, ranks.rank()), ReduceOp::kSum));
      bytes += aligned(reduction_scratch_bytes(n * count, 2, n));
    }
    const at::Tensor scratch = scratch_of(bytes);
    group.all_gather(whole, gathered);
    group.all_to_all(parted, exchanged);
    group.reduce_scatter(parted, scattered, ReduceOp::kSum, scratch.mutable_data_ptr(), bytes);
    for (size_t t = 0; t < whole.size(); ++t) {
      const int64_t count = whole[t].numel();
      EXPECT_TRUE(same_bits(gathered[t], all_operands(n, {count}, at::kBFloat16)));
      EXPECT_TRUE(
          same_bits(exchanged[t], all_operands(n, {n, count}, at::kBFloat16).select(1, ranks.rank()).contiguous()));
      EXPECT_TRUE(same_bits(scattered[t], wanted[t]));
    }
    group.all_reduce(whole, ReduceOp::kSum, scratch.mutable_data_ptr(), bytes);
    for (const at::Tensor& tensor : whole)
      EXPECT_TRUE(same_bits(tensor, reduced(all_operands(n, tensor.sizes(), at::kBFloat16), ReduceOp::kSum)));
    if (n > 1) {
      EXPECT_THROW(group.all_reduce(whole, ReduceOp::kSum, scratch.mutable_data_ptr(), 64), InternalError)
          << "less than all of them take";
    }
  });
}

TEST_P(RankGroups, Rotate) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    const auto operands = [&](int64_t rank, at::ScalarType type) {
      return std::vector<at::Tensor>{operand_of(rank, {3, 5}, type), operand_of(rank, {7}, type)};
    };
    for (at::ScalarType type : kTypes)
      for (int64_t by = 1; by < n; ++by) {
        const std::vector<at::Tensor> results = {at::zeros({3, 5}, type), at::zeros({7}, type)};
        const std::vector<at::Tensor> wanted = operands((ranks.rank() + n - by) % n, type);
        ranks.all().rotate(operands(ranks.rank(), type), results, by);
        for (size_t t = 0; t < results.size(); ++t)
          EXPECT_TRUE(same_bits(results[t], wanted[t])) << type << " by " << by;
      }
  });
}

// Several exchanges on their way at once, which end in another order than they began in.
TEST_P(RankGroups, ExchangesGoOnBesideOthers) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    RankGroup& group = ranks.all();
    const at::Tensor own = operand_of(ranks.rank(), {3, 5}, at::kFloat),
                     parts = operand_of(ranks.rank(), {n, 7}, at::kFloat);
    const at::Tensor gathered = at::zeros({n, 3, 5}), expected = at::zeros({n, 3, 5});
    const at::Tensor exchanged = at::zeros({n, 7}), expected_parts = at::zeros({n, 7});
    InFlight first = group.begin_all_gather({own}, {gathered});
    InFlight second = group.begin_all_to_all({parts}, {exchanged});
    group.all_gather({own}, {expected});  // one that blocks between
    second.end();
    first.end();
    group.all_to_all({parts}, {expected_parts});
    EXPECT_TRUE(same_bits(gathered, expected));
    EXPECT_TRUE(same_bits(exchanged, expected_parts));
  });
}

TEST(RankGroup, WhoLetsGoOfAnExchangeHasLostTheOthers) {
  stepc::on_ranks(2, [](Ranks& ranks) {
    const at::Tensor own = at::ones({3}), gathered = at::zeros({2, 3});
    { const InFlight given_up = ranks.all().begin_all_gather({own}, {gathered}); }
    EXPECT_THROW(ranks.all().all_gather({own}, {gathered}), LostRank);
  });
}

TEST_P(RankGroups, ReduceAndScatter) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    for (at::ScalarType type : kTypes)
      for (ReduceOp how : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        const at::Tensor wanted = reduced(all_operands(n, {n, 9}, type).select(1, ranks.rank()), how);
        EXPECT_TRUE(same_bits(reduce_scattered(ranks.all(), operand_of(ranks.rank(), {n, 9}, type), how), wanted))
            << type << " " << name_of(how);
      }
  });
}

TEST_P(RankGroups, Reduce) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    for (at::ScalarType type : kTypes)
      for (ReduceOp how : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin})
        for (int64_t count : {1, 5, 1000}) {  // fewer than ranks, not a multiple of them
          const at::Tensor tensor = operand_of(ranks.rank(), {count}, type);
          all_reduce(ranks.all(), tensor, how);
          EXPECT_TRUE(same_bits(tensor, reduced(all_operands(n, {count}, type), how)))
              << count << " " << type << " " << name_of(how);
        }
  });
}

TEST_P(RankGroups, MoveNothing) {
  const int64_t n = GetParam();
  on_ranks(n, [&](Ranks& ranks) {
    RankGroup& group = ranks.all();
    const at::Tensor parts = at::empty({n, 0}), tensor = at::empty({0, 3});
    group.all_gather(tensor, at::empty({n, 0, 3}));
    group.all_to_all(parts, at::empty({n, 0}));
    EXPECT_EQ(reduce_scattered(group, parts, ReduceOp::kSum).numel(), 0);
    all_reduce(group, tensor, ReduceOp::kSum);
    ranks.barrier();
  });
}

// More than their scratch memory holds: piece by piece, of parts the last of which is shorter.
TEST(RankGroup, ReducesLargeTensorsInPieces) {
  constexpr int64_t kPart = 2'200'000;
  on_ranks(3, [&](Ranks& ranks) {
    const at::Tensor parts = at::arange(3 * kPart, at::kInt).remainder_(1013).add_(ranks.rank()).view({3, kPart});
    const at::Tensor whole = parts.flatten().slice(0, 0, 3 * kPart - 7).clone();
    EXPECT_LT(piece_elements(whole.numel(), 4, 3), kPart);
    const at::Tensor sum = parts.sub(ranks.rank()).mul_(3).add_(3);
    EXPECT_TRUE(same_bits(reduce_scattered(ranks.all(), parts, ReduceOp::kSum), sum[ranks.rank()]));
    all_reduce(ranks.all(), whole, ReduceOp::kSum);
    EXPECT_TRUE(same_bits(whole, sum.flatten().slice(0, 0, whole.numel())));
  });
}

TEST(RankGroup, ReducesScalarsAndLargeTensors) {
  on_ranks(2, [&](Ranks& ranks) {
    const at::Tensor scalar = at::full({}, static_cast<double>(ranks.rank()) + 0.5);
    all_reduce(ranks.all(), scalar, ReduceOp::kSum);
    EXPECT_EQ(scalar.item<double>(), 2.0);
    const at::Tensor large = operand_of(ranks.rank(), {(1 << 20) + 1}, at::kBFloat16);
    all_reduce(ranks.all(), large, ReduceOp::kSum);
    EXPECT_TRUE(same_bits(large, reduced(all_operands(2, large.sizes(), at::kBFloat16), ReduceOp::kSum)));
  });
}

// Added in bf16, each of them would vanish in 256.
TEST(RankGroup, SumsNarrowTypesInFloat) {
  on_ranks(4, [&](Ranks& ranks) {
    const at::Tensor tensor = at::full({3}, ranks.rank() == 0 ? 256.0 : 0.75, at::kBFloat16);
    all_reduce(ranks.all(), tensor, ReduceOp::kSum);
    EXPECT_EQ(tensor[1].item<float>(), 258.0F);
  });
}

TEST(RankGroup, NanWins) {
  on_ranks(3, [&](Ranks& ranks) {
    for (at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (ReduceOp how : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        const at::Tensor tensor =
            at::full({2}, ranks.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0, type);
        all_reduce(ranks.all(), tensor, how);
        EXPECT_TRUE(std::isnan(tensor[0].item<float>())) << name_of(how);
      }
  });
}

TEST(RankGroup, RefusesWhatItWasNotPromised) {
  on_ranks(2, [&](Ranks& ranks) {
    RankGroup& group = ranks.all();
    EXPECT_THROW(group.all_gather(at::zeros({3}), at::zeros({5})), InternalError);
    EXPECT_THROW(group.all_gather(at::zeros({4, 2}).t(), at::zeros({2, 2, 4})), InternalError);
    EXPECT_THROW(group.all_to_all(at::zeros({2}), at::zeros({2}, at::kLong)), InternalError);
    EXPECT_THROW(group.rotate(at::zeros({2}), at::zeros({2}), group.ranks()), InternalError);
    EXPECT_THROW(group.all_reduce(at::zeros({8}), ReduceOp::kSum, nullptr, 15), InternalError) << "takes 16 bytes";
    ranks.barrier();  // nothing was sent
  });
}

}  // namespace
}  // namespace stepc
