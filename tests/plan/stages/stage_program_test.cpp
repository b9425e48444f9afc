// Orders of a pipeline's passes and the calls that they become: complete, without deadlock, in bounded memory.
#include "plan/stages/stage_program.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "base/text.h"
#include "plan/stages/simulate_program.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

// A chain of layers: each forward pass gives one value to the next stage and keeps one, each backward pass gives one.
StageCut chain_of(int64_t stages) {
  StageCut cut;
  cut.stages = stages;
  cut.batch = 1;
  const auto last = static_cast<uint32_t>(2 * stages - 2);
  for (int64_t s = 0; s + 1 < stages; ++s) cut.functions.push_back({str("forward {}", s), s, Phase::kForward, {}});
  for (int64_t s = stages; s-- > 0;) cut.functions.push_back({str("backward {}", s), s, Phase::kBackward, {}});
  const auto add = [&](uint32_t maker, const std::vector<uint32_t>& users) {
    const auto value = static_cast<uint32_t>(cut.values.size());
    cut.values.push_back({{DType::kF32, {4}}, maker, users});
    cut.functions[maker].gives.push_back(value);
    for (const uint32_t user : users) cut.functions[user].takes.push_back(value);
  };
  for (uint32_t s = 0; s + 1 < stages; ++s) {
    add(s, {s + 1});
    add(s, {last - s});
  }
  for (uint32_t f = static_cast<uint32_t>(stages) - 1; f < last; ++f) add(f, {f + 1});
  return cut;
}

TEST(StageProgram, OrdersRunToTheirEnd) {
  for (int64_t stages = 1; stages <= 6; ++stages)
    for (int64_t micro_batches = stages; micro_batches <= 9; ++micro_batches)
      for (const StageOrder& order :
           {gpipe_order(stages, micro_batches), one_forward_one_backward(stages, micro_batches)}) {
        SCOPED_TRACE(to_csv(order));
        verify(order);
        EXPECT_EQ(parse_stage_order(to_csv(order)), order);
        const StageProgram program = make_program(chain_of(stages), order);
        verify(program);
        EXPECT_EQ(make_program(chain_of(stages), order), program);
      }
}

TEST(StageProgram, SeveralStagesARankWaitLess) {
  const auto at_once = [](const StageCall& /*send*/) { return 0.0; };
  for (const int64_t ranks : {2, 3, 4})
    for (const int64_t chunks : {2, 3})
      for (const int64_t micro_batches : {ranks, 3 * ranks}) {
        const StageCut cut = chain_of(ranks * chunks);
        std::vector<double> seconds;
        for (const StageFunction& one : cut.functions) seconds.push_back(one.stage + 1 == cut.stages ? 2 : 1);
        for (const StageOrder& order :
             {interleaved_order(ranks, micro_batches, chunks), gpipe_order(ranks, micro_batches, chunks)}) {
          verify(order);
          EXPECT_EQ(parse_stage_order(to_csv(order)), order);
          verify(make_program(cut, order));
        }
        const ProgramTimeline timeline =
            simulate(make_program(cut, interleaved_order(ranks, micro_batches, chunks)), seconds, at_once);
        const auto p = static_cast<double>(ranks - 1), m = static_cast<double>(micro_batches * chunks);
        EXPECT_NEAR(timeline.idle_share(), p / (m + p), 0.05) << ranks << " " << chunks << " " << micro_batches;
      }
  EXPECT_USER_ERROR(interleaved_order(4, 6, 2),
                    "6 micro-batches on 4 ranks of 2 stages each, which take as many as "
                    "there are ranks in turn: train.grad_accum can be 8");
}

TEST(StageProgram, HoldsAtMostAsManyMicroBatchesAsStagesAreLeft) {
  const StageOrder order = one_forward_one_backward(4, 16), gpipe = gpipe_order(4, 16);
  for (int64_t s = 0; s < 4; ++s) {
    EXPECT_EQ(live_micro_batches(order, s), 4 - s);
    EXPECT_EQ(live_micro_batches(gpipe, s), 16);
  }
  const StageCut cut = chain_of(4);
  const std::vector<uint64_t> bytes(cut.values.size(), 1);
  // What each of the live ones keeps, what is on its way, and the gradient that has come.
  EXPECT_LE(peak_slot_bytes(make_program(cut, order), 0, bytes), 4U + 4U);
  EXPECT_GE(peak_slot_bytes(make_program(cut, gpipe), 0, bytes), 16U);
}

TEST(StageProgram, ItsBubbleIsTheFormulas) {
  // Of p stages and m micro-batches that take as long in both passes: (p - 1) / (m + p - 1). The last stage's forward
  // pass is part of its backward pass.
  for (const auto& [stages, micro_batches] : {std::pair<int64_t, int64_t>{2, 2}, {2, 8}, {4, 4}, {4, 12}}) {
    const StageCut cut = chain_of(stages);
    std::vector<double> seconds;
    for (const StageFunction& one : cut.functions) seconds.push_back(one.stage + 1 == stages ? 2 : 1);
    const auto at_once = [](const StageCall& /*send*/) { return 0.0; };
    const ProgramTimeline timeline =
        simulate(make_program(cut, one_forward_one_backward(stages, micro_batches)), seconds, at_once);
    const double expected = static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
    EXPECT_NEAR(timeline.idle_share(), expected, 1e-12) << stages << " " << micro_batches;
    const auto late = [](const StageCall& /*send*/) { return 1.0; };
    EXPECT_GT(simulate(make_program(cut, one_forward_one_backward(stages, micro_batches)), seconds, late).seconds,
              timeline.seconds);
  }
}

// Whatever order a person gives: it ends in as many steps as it says, or is refused.
TEST(StageProgram, RandomOrdersEndOrAreRefused) {
  std::mt19937_64 random(7);
  size_t ended = 0, refused = 0;
  for (int round = 0; round < 300; ++round) {
    const auto stages = static_cast<int64_t>(2 + random() % 3), micro_batches = static_cast<int64_t>(1 + random() % 4);
    StageOrder order = gpipe_order(stages, micro_batches);
    for (auto& row : order.passes) {  // any order of forward passes, any of backward passes behind their own
      std::shuffle(row.begin(), row.end(), random);
      std::ranges::stable_sort(row, {},
                               [](const StagePass& pass) { return std::pair(pass.micro_batch, pass.is_backward); });
      if (random() % 2 == 0) std::ranges::stable_sort(row, {}, &StagePass::is_backward);
      if (random() % 3 == 0)
        std::ranges::stable_sort(row, std::greater<>(), [](const StagePass& pass) { return pass.micro_batch; });
    }
    verify(order);
    try {
      verify(make_program(chain_of(stages), order));
      ++ended;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("never ends"), std::string::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(ended, 30U);
  EXPECT_GT(refused, 30U);
}

TEST(StageProgram, BadOrdersAreRefused) {
  const auto error_of = [](std::string_view csv) { verify(parse_stage_order(csv)); };
  EXPECT_USER_ERROR(one_forward_one_backward(4, 3), "3 micro-batches for 4 stages");
  EXPECT_USER_ERROR(error_of("0F0,0B0\n1F0\n"), "the order has no 1B0: 2 stages and 1 micro-batches are 4 passes");
  EXPECT_USER_ERROR(error_of("0F0,0B0,0F0\n1F0,1B0\n"), "the order has 0F0 twice");
  EXPECT_USER_ERROR(error_of("0B0,0F0\n1F0,1B0\n"), "the order has 0B0 before 0F0");
  EXPECT_USER_ERROR(error_of("1F0,1B0\n0F0,0B0\n"), "the order has 1F0 in row 1, and stage 1 is that of row 2");
  EXPECT_USER_ERROR(error_of("0F0,0X0\n"), "row 1 of the order has '0X0'; a cell is stage, F or B, micro-batch");
  EXPECT_USER_ERROR(error_of("99999999999999999999F0\n"), "a cell is stage, F or B");
  EXPECT_USER_ERROR(error_of("\n"), "the order is empty");
  EXPECT_USER_ERROR(stage_order("zb", 2, 2), "the order \"zb\" is none; it is \"1f1b\", \"gpipe\" or a file");
  const StageOrder crossed = parse_stage_order("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n");
  verify(crossed);
  EXPECT_USER_ERROR(make_program(chain_of(2), crossed), "the order of the pipeline's passes never ends: rank 0 waits");
}

// Every promise that is broken is found.
TEST(StageProgram, BrokenProgramsAreFound) {
  const StageProgram good = make_program(chain_of(3), one_forward_one_backward(3, 4));
  size_t broken = 0;
  for (size_t rank = 0; rank < 3; ++rank)
    for (size_t c = 0; c < good.calls[rank].size(); ++c) {
      StageProgram less = good;
      less.calls[rank].erase(less.calls[rank].begin() + static_cast<ptrdiff_t>(c));
      EXPECT_THROW(verify(less), InternalError) << rank << " " << c;
      if (good.calls[rank][c].reads.empty()) continue;
      StageProgram other = good;
      other.calls[rank][c].reads[0].slot = (other.calls[rank][c].reads[0].slot + 1) % other.slots[rank];
      EXPECT_THROW(verify(other), InternalError) << rank << " " << c;
      ++broken;
    }
  EXPECT_GT(broken, 10U);
}

TEST(StageProgram, ItsTextSaysEachCall) {
  const StageProgram program = make_program(chain_of(2), one_forward_one_backward(2, 2));
  EXPECT_EQ(to_text(program).substr(0, to_text(program).find("rank 1")),
            "rank 0: run forward 0, micro-batch 0 -> slot 0 = v0, slot 1 = v1\n"
            "rank 0: send forward 0, micro-batch 0 to 1, message 0: slot 0 = v0\n"
            "rank 0: run forward 0, micro-batch 1 -> slot 2 = v0, slot 3 = v1\n"
            "rank 0: send forward 0, micro-batch 1 to 1, message 1: slot 2 = v0\n"
            "rank 0: receive backward 1, micro-batch 0 from 1, message 2 -> slot 4 = v2\n"
            "rank 0: run backward 0, micro-batch 0: slot 1 = v1, slot 4 = v2; frees 1, 4\n"
            "rank 0: receive backward 1, micro-batch 1 from 1, message 3 -> slot 1 = v2\n"
            "rank 0: run backward 0, micro-batch 1: slot 3 = v1, slot 1 = v2; frees 3, 1\n"
            "rank 0: wait until 1 has message 0: slot 0 = v0; frees 0\n"
            "rank 0: wait until 1 has message 1: slot 2 = v0; frees 2\n");
  EXPECT_NE(hash_of(make_program(chain_of(2), one_forward_one_backward(2, 3))),
            hash_of(make_program(chain_of(2), gpipe_order(2, 3))));
}

}  // namespace
}  // namespace stepc
