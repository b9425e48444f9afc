#include "engine/plan/plan_policy.h"

#include <algorithm>

namespace stepc {

RecordNext record_next(CallHistory& history, const RecordingDebt& debt) {
  ++history.calls;
  if (history.unreplayed >= kMostUnreplayed) return RecordNext::kGiveUp;
  const bool is_met_often = history.calls > debt.replays / kMostDebt;
  return do_recordings_pay(debt) || is_met_often ? RecordNext::kYes : RecordNext::kOnlyIfMetAgain;
}

bool do_recordings_pay(const RecordingDebt& debt) { return debt.replays < kMostDebt; }

void count_recording(CallHistory& history, RecordingDebt& debt) {
  ++history.unreplayed;
  debt.replays += kReplaysPerRecording;
}

void count_followed(CallHistory& history, RecordingDebt& debt) {
  history.unreplayed = 0;
  debt.replays = std::max(debt.replays - 1, 0);
}

bool stops_recording(const CallHistory& history, bool has_plans, bool is_same_obstacle, int most_recordings) {
  return !has_plans && (is_same_obstacle || history.recordings >= most_recordings);
}

bool is_path_a_plan(const CallHistory& history, bool has_plans, bool has_obstacle) {
  return has_plans || (!has_obstacle && history.recordings >= kPathsBeforeFirst);
}

void count_new_plan(CallHistory& history) {
  history.recordings = 0;
  history.next_check = 2;
  history.to_record = 0;
}

bool must_verify(const Verify& verify, bool is_verified, int64_t replays, bool are_timed) {
  if (!is_verified) return true;
  return verify.kind == Verify::Kind::kEvery && !are_timed && replays % verify.interval == 0;
}

bool is_check_due(const CallHistory& history, int64_t replays) { return replays >= history.next_check; }

void count_check(CallHistory& history, int64_t replays) {
  history.next_check = std::max(history.next_check, 2 * replays);
}

void verify_others(CallHistory& history) { history.to_verify = std::max(history.to_verify, kVerifyOthers); }

AfterDeparture count_departure(CallHistory& history, bool is_reseeded, bool is_decided, bool records_next) {
  AfterDeparture after;
  history.departures += is_reseeded ? kDeparturesOfSeed : 1;
  history.to_verify = 0;
  after.runs_exactly = !is_reseeded && is_decided && ++history.value_branches > kMostValueBranches;
  after.gives_up = history.departures > kMostDepartures;
  if (!after.gives_up && records_next) history.to_record = kRecordAfterDeparture;
  return after;
}

void forget_departures(CallHistory& history) {
  history.departures *= kForgetDepartures;
  history.value_branches *= kForgetDepartures;
}

bool count_failure(CallHistory& history) { return ++history.departures > kMostDepartures; }

bool count_unseen_value(CallHistory& history) { return ++history.unseen_values > kMostUnseenValues; }

}  // namespace stepc
