#include "engine/plan/plan_policy.h"

#include <vector>

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(PlanPolicy, RecordsAnythingWhileRecordingsPay) {
  CallHistory history;
  RecordingDebt debt;
  for (int i = 0; i < kMostDebt / kReplaysPerRecording; ++i) {
    CallHistory other;
    EXPECT_EQ(record_next(other, debt), RecordNext::kYes) << i;
    count_recording(other, debt);
  }
  EXPECT_FALSE(do_recordings_pay(debt));
  EXPECT_EQ(record_next(history, debt), RecordNext::kOnlyIfMetAgain);
  EXPECT_EQ(record_next(history, debt), RecordNext::kYes);  // met twice
  count_followed(history, debt);
  EXPECT_TRUE(do_recordings_pay(debt));
}

TEST(PlanPolicy, AReplayRepaysItsRecordings) {
  CallHistory history;
  RecordingDebt debt;
  for (int i = 0; i < kMostUnreplayed; ++i) count_recording(history, debt);
  EXPECT_EQ(record_next(history, debt), RecordNext::kGiveUp);
  count_followed(history, debt);
  EXPECT_EQ(history.unreplayed, 0);
  EXPECT_NE(record_next(history, debt), RecordNext::kGiveUp);
  RecordingDebt none;
  count_followed(history, none);
  EXPECT_EQ(none.replays, 0);
}

TEST(PlanPolicy, StopsRecordingAfterTheSameObstacleOrTooManyRecordings) {
  CallHistory history;
  history.recordings = 2;
  EXPECT_FALSE(stops_recording(history, false, false, 3));
  EXPECT_TRUE(stops_recording(history, false, true, 3));
  EXPECT_TRUE(stops_recording(history, false, false, 2));
  EXPECT_FALSE(stops_recording(history, true, true, 2));
}

TEST(PlanPolicy, ThreePathsOfATracedStepMakeOneAPlan) {
  CallHistory history;
  history.recordings = kPathsBeforeFirst - 1;
  EXPECT_FALSE(is_path_a_plan(history, false, false));
  EXPECT_TRUE(is_path_a_plan(history, true, true));
  history.recordings = kPathsBeforeFirst;
  EXPECT_TRUE(is_path_a_plan(history, false, false));
  EXPECT_FALSE(is_path_a_plan(history, false, true));
}

TEST(PlanPolicy, VerifiesTheFirstReplayOrEveryNth) {
  EXPECT_TRUE(must_verify(Verify::first(), false, 0, false));
  EXPECT_FALSE(must_verify(Verify::first(), true, 6, false));
  EXPECT_TRUE(must_verify(Verify::every(3), true, 6, false));
  EXPECT_FALSE(must_verify(Verify::every(3), true, 7, false));
  EXPECT_FALSE(must_verify(Verify::every(3), true, 6, true));  // while replays are timed
  EXPECT_TRUE(must_verify(Verify::every(3), false, 6, true));
}

TEST(PlanPolicy, ChecksAfterReplaysTwoFourEight) {
  CallHistory history;
  std::vector<int64_t> at;
  for (int64_t replays = 0; replays < 20; ++replays)
    if (is_check_due(history, replays)) {
      at.push_back(replays);
      count_check(history, replays);
    }
  EXPECT_EQ(at, (std::vector<int64_t>{2, 4, 8, 16}));
  count_new_plan(history);
  EXPECT_TRUE(is_check_due(history, 2));
}

TEST(PlanPolicy, GivesUpWhereMostStepsLeaveTheirPlans) {
  CallHistory history;
  for (int i = 0; i < kMostDepartures; ++i) {
    EXPECT_FALSE(count_departure(history, false, false, true).gives_up) << i;
    EXPECT_EQ(history.to_record, kRecordAfterDeparture);
  }
  EXPECT_TRUE(count_departure(history, false, false, true).gives_up);
  CallHistory rare;  // one of twenty
  for (int i = 0; i < 1000; ++i)
    if (i % 20 == 0)
      EXPECT_FALSE(count_departure(rare, false, false, false).gives_up) << i;
    else
      forget_departures(rare);
  EXPECT_EQ(rare.to_record, 0);
}

TEST(PlanPolicy, ASeedCountsAsSeveralDepartures) {
  CallHistory history;
  int steps = 1;
  while (!count_departure(history, true, true, false).gives_up) ++steps;
  EXPECT_EQ(steps, kMostDepartures / kDeparturesOfSeed + 1);
  EXPECT_EQ(history.value_branches, 0);  // whatever it has read
}

TEST(PlanPolicy, RunsExactlyWhereNumbersDecideAgainAndAgain) {
  CallHistory history;
  for (int i = 0; i < kMostValueBranches; ++i) EXPECT_FALSE(count_departure(history, false, true, true).runs_exactly);
  EXPECT_TRUE(count_departure(history, false, true, true).runs_exactly);
  for (int i = 0; i < kMostUnseenValues; ++i) EXPECT_FALSE(count_unseen_value(history));
  EXPECT_TRUE(count_unseen_value(history));
}

TEST(PlanPolicy, FailuresCountAsDepartures) {
  CallHistory history;
  int failures = 1;
  while (!count_failure(history)) ++failures;
  EXPECT_EQ(failures, kMostDepartures + 1);
}

TEST(PlanPolicy, OtherPlansWaitForTheNextSteps) {
  CallHistory history;
  verify_others(history);
  EXPECT_EQ(history.to_verify, kVerifyOthers);
  count_departure(history, false, false, false);
  EXPECT_EQ(history.to_verify, 0);
}

}  // namespace
}  // namespace stepc
