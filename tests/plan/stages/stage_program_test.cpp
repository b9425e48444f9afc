// Orders of a pipeline's passes and the calls that they become: complete, without deadlock, in bounded memory.
#include "plan/stages/stage_program.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "base/text.h"
#include "plan/stages/price_pipeline.h"
#include "plan/stages/simulate_program.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

// A chain of layers: each forward pass gives one value to the next stage and keeps one, each backward pass gives one;
// `splits`: it is two, and the pass for inputs leaves one to that for weights, which takes what is kept too.
StageCut chain_of(int64_t stages, bool splits = false) {
  StageCut cut;
  cut.stages = stages;
  cut.batch = 1;
  if (splits) {
    cut.splits_backward = true;
    std::vector<uint32_t> forward(static_cast<size_t>(stages)), inputs = forward, weights = forward;
    const auto function = [&](std::string_view what, int64_t s, Phase phase, bool is_of_weights) {
      StageFunction& one = cut.functions.emplace_back(StageFunction{str("{} {}", what, s), s, phase, is_of_weights});
      (void)one;
      return static_cast<uint32_t>(cut.functions.size() - 1);
    };
    const auto at = [](std::vector<uint32_t>& of, int64_t s) -> uint32_t& { return of[static_cast<size_t>(s)]; };
    for (int64_t s = 0; s + 1 < stages; ++s) at(forward, s) = function("forward", s, Phase::kForward, false);
    for (int64_t s = stages; s-- > 0;) at(inputs, s) = function("inputs", s, Phase::kBackward, false);
    for (int64_t s = stages; s-- > 0;) at(weights, s) = function("weights", s, Phase::kBackward, true);
    at(forward, stages - 1) = at(inputs, stages - 1);
    const auto add = [&](uint32_t maker, const std::vector<uint32_t>& users) {
      const auto value = static_cast<uint32_t>(cut.values.size());
      cut.values.push_back({{DType::kF32, {4}}, maker, users});
      cut.functions[maker].gives.push_back(value);
      for (const uint32_t user : users) cut.functions[user].takes.push_back(value);
    };
    for (int64_t s = 0; s + 1 < stages; ++s) {
      add(at(forward, s), {at(forward, s + 1)});
      add(at(forward, s), {at(inputs, s), at(weights, s)});
      add(at(inputs, s + 1), {at(inputs, s)});
    }
    for (int64_t s = 0; s < stages; ++s) add(at(inputs, s), {at(weights, s)});
    return cut;
  }
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

// Micro-batches of all stages of a rank that are between their forward pass and the end of their backward pass.
int64_t most_live(const StageOrder& order) {
  const std::vector<int64_t> live =
      price_pipeline(std::vector<StageCost>(static_cast<size_t>(order.stages)), order).live_most;
  return *std::ranges::max_element(live);
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
                    "there are ranks in turn: micro_batches can be 8");
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

// Backward passes for weights fill what 1F1B waits, in the same memory.
TEST(StageProgram, ZeroBubbleWaitsLess) {
  const auto at_once = [](const StageCall& /*send*/) { return 0.0; };
  for (const int64_t ranks : {2, 3, 4})
    for (const int64_t micro_batches : {2 * ranks, 4 * ranks + 1}) {
      SCOPED_TRACE(str("{} ranks, {} micro-batches", ranks, micro_batches));
      const auto idle = [&](const StageOrder& order) {
        verify(order);
        EXPECT_EQ(parse_stage_order(to_csv(order)), order);
        const StageCut cut = chain_of(order.stages, order.splits_backward());
        std::vector<double> seconds;  // a forward pass takes as long as each half of a backward one
        for (const StageFunction& one : cut.functions) {
          const bool is_both = !cut.splits_backward && one.phase == Phase::kBackward;
          const bool has_forward = one.stage + 1 == cut.stages && !one.is_of_weights;
          seconds.push_back((is_both ? 2 : 1) + (has_forward ? 1 : 0));
        }
        const StageProgram program = make_program(cut, order);
        verify(program);
        return simulate(program, seconds, at_once).idle_share();
      };
      const double of_1f1b = idle(one_forward_one_backward(ranks, micro_batches));
      EXPECT_LT(idle(zero_bubble_h1(ranks, micro_batches)), 0.75 * of_1f1b);
      EXPECT_LT(idle(zero_bubble_v(ranks, micro_batches)), 0.5 * of_1f1b);
      EXPECT_LT(idle(dual_pipe_v(ranks, micro_batches)), 0.75 * of_1f1b);
      // Of stages that are half as large there are twice as many.
      const StageOrder h1 = zero_bubble_h1(ranks, micro_batches);
      for (int64_t s = 0; s < ranks; ++s) EXPECT_LE(live_micro_batches(h1, s), ranks);
      EXPECT_LE(most_live(zero_bubble_v(ranks, micro_batches)), 2 * ranks);
      EXPECT_LE(most_live(dual_pipe_v(ranks, micro_batches)), 2 * ranks + 1);
      EXPECT_EQ(most_live(one_forward_one_backward(ranks, micro_batches)), ranks);
    }
  EXPECT_USER_ERROR(dual_pipe_v(2, 3),
                    "3 micro-batches for 4 stages in the order \"dualpipe-v\", which needs one a stage: "
                    "micro_batches must be at least 4");
  EXPECT_USER_ERROR(stage_order("zb-v", 2, 4, 3), "the order \"zb-v\" has 2 stages a rank, and parallel.chunks is 3");
  EXPECT_USER_ERROR(verify(parse_stage_order("0F0,0W0,0I0\n1F0,1B0\n")), "the order has 0W0 before 0I0");
  EXPECT_USER_ERROR(verify(parse_stage_order("0F0,0I0\n1F0,1B0\n")), "the order has no 0W0");
}

TEST(StageProgram, APipelineIsPricedWithoutItsGraph) {
  const std::vector<StageCost> stages(4, StageCost{1, 1, 1, 0, 100, 10, 1000});
  const PipelinePrice price = price_pipeline(stages, one_forward_one_backward(4, 8));
  EXPECT_NEAR(price.bubble, 3.0 / 11, 1e-12);
  EXPECT_NEAR(price.seconds, 33, 1e-12);
  EXPECT_EQ(price.bytes, (std::vector<uint64_t>{1410, 1310, 1210, 1110}));
  EXPECT_EQ(price.live_most, (std::vector<int64_t>{4, 3, 2, 1}));
  EXPECT_LT(price_pipeline(stages, zero_bubble_h1(4, 8)).seconds, price.seconds);
  EXPECT_GT(price_pipeline(std::vector<StageCost>(4, StageCost{1, 1, 1, 0.5}), one_forward_one_backward(4, 8)).seconds,
            price.seconds);
  const StageOrder crossed = parse_stage_order("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n");
  EXPECT_USER_ERROR(price_pipeline(std::vector<StageCost>(2), crossed), "never ends: rank 0 waits");
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
      std::ranges::stable_sort(row, {}, [](const StagePass& pass) { return std::pair(pass.micro_batch, pass.kind); });
      if (random() % 2 == 0) std::ranges::stable_sort(row, {}, &StagePass::kind);
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
  EXPECT_USER_ERROR(
      error_of("0F0,0B0\n1F0\n"),
      "the order has no 1B0: 2 stages and 1 micro-batches are 2 forward passes and as many backward ones");
  EXPECT_USER_ERROR(error_of("0F0,0B0,0F0\n1F0,1B0\n"), "the order has 0F0 twice");
  EXPECT_USER_ERROR(error_of("0B0,0F0\n1F0,1B0\n"), "the order has 0B0 before 0F0");
  EXPECT_USER_ERROR(error_of("1F0,1B0\n0F0,0B0\n"), "the order has 1F0 in row 1, and stage 1 is that of row 2");
  EXPECT_USER_ERROR(error_of("0F0,0X0\n"), "row 1 of the order has '0X0'; a cell is stage, F, B, I or W, micro-batch");
  EXPECT_USER_ERROR(error_of("99999999999999999999F0\n"), "a cell is stage, F, B, I or W");
  EXPECT_USER_ERROR(error_of("\n"), "the order is empty");
  EXPECT_USER_ERROR(stage_order("zb", 2, 2), "the order \"zb\" is none; it is \"1f1b\", \"gpipe\", \"zb-h1\"");
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
            "rank 0: receive backward 1, micro-batch 1 from 1, message 3 -> slot 4 = v2\n"
            "rank 0: run backward 0, micro-batch 1: slot 3 = v1, slot 4 = v2; frees 3, 4\n"
            "rank 0: wait until 1 has message 0: slot 0 = v0; frees 0\n"
            "rank 0: wait until 1 has message 1: slot 2 = v0; frees 2\n");
  EXPECT_NE(hash_of(make_program(chain_of(2), one_forward_one_backward(2, 3))),
            hash_of(make_program(chain_of(2), gpipe_order(2, 3))));
}

}  // namespace
}  // namespace stepc
