// When a step is recorded, compared, trusted and given up: pure functions over plain counters, without LibTorch and
// without plans. docs/architecture.md has the table ("When a step is recorded, trusted and given up").
#pragma once

#include <cstdint>

#include "engine/config.h"

namespace stepc {

// What has become of the calls of one signature so far.
struct CallHistory {
  int recordings = 0;         // since the last plan
  int calls = 0;              // that no plan was there for
  int unreplayed = 0;         // recordings since a plan was last followed
  int64_t next_check = 2;     // replays after which a step is recorded, to be compared with its plans
  int to_record = 0;          // next steps that are recorded although there are plans
  int to_verify = 0;          // next steps that may follow a plan that is to be verified
  int unseen_values = 0;      // branch values read on the host that no plan has
  double value_branches = 0;  // traced steps that left their plans by a number that they had read; old ones count less
  double departures = 0;      // traced steps that left their plans, and replays that failed; old ones count less
};

// Of all signatures of a step together: replays that recordings have yet to be repaid with.
struct RecordingDebt {
  int replays = 0;
};

// A recording, or a look at a call, costs as much as this many replays save.
inline constexpr int kReplaysPerRecording = 8;
// From this debt on a signature is recorded only when it is met again and again.
inline constexpr int kMostDebt = 16 * kReplaysPerRecording;
// Recordings of one signature in a row without a replay.
inline constexpr int kMostUnreplayed = 40;
// Recordings of different paths of a traced step before one of them becomes a plan by itself.
inline constexpr int kPathsBeforeFirst = 3;
// A traced step that took a path without a plan may take it again soon: so many next steps are recorded, or verified.
inline constexpr int kRecordAfterDeparture = 8;
inline constexpr int kVerifyOthers = 8;
// Where most steps leave their plans, or fail, no plan is worth it. Each replay makes earlier ones count less.
inline constexpr int kMostDepartures = 12;
inline constexpr double kForgetDepartures = 0.9;
// A departure by a seed counts as so many: the next seed will be yet another one.
inline constexpr int kDeparturesOfSeed = 4;
// Paths that numbers lead to: a Graph for each costs more than it saves, and what it computes otherwise than eager, if
// only by rounding, may lead elsewhere.
inline constexpr double kMostValueBranches = 3;
// Branches by an integer that is read on the host, before it is taken for a number and not for a choice.
inline constexpr int kMostUnseenValues = 2;

// ---- recording

enum class RecordNext : uint8_t { kYes, kOnlyIfMetAgain, kGiveUp };
// Of a call without a plan, which it counts.
RecordNext record_next(CallHistory& history, const RecordingDebt& debt);
bool do_recordings_pay(const RecordingDebt& debt);
// A call was recorded, or looked at, which took longer than eager.
void count_recording(CallHistory& history, RecordingDebt& debt);
// A plan was followed: its recordings pay.
void count_followed(CallHistory& history, RecordingDebt& debt);
// Whether a signature that got no plan of its last recording gets none: not if it has others.
bool stops_recording(const CallHistory& history, bool has_plans, bool is_same_obstacle, int most_recordings);
// Whether one recording of a traced step is a plan: its calls are compared at every replay. The first one is to show
// which numbers change.
bool is_path_a_plan(const CallHistory& history, bool has_plans, bool has_obstacle);
void count_new_plan(CallHistory& history);

// ---- trusting

// Whether the next replay of a plan is compared with other runs of the step.
bool must_verify(const Verify& verify, bool is_verified, int64_t replays, bool are_timed);
// Whether the next step is recorded to see whether it still does what its plans do: after replays 2, 4, 8, and so on.
bool is_check_due(const CallHistory& history, int64_t replays);
void count_check(CallHistory& history, int64_t replays);
// A traced step would have followed a plan that is to be verified: the next steps may.
void verify_others(CallHistory& history);

// ---- giving up

struct AfterDeparture {
  bool runs_exactly = false;  // the recorded calls, from now on
  bool gives_up = false;
};
// A traced step left its plan. `is_decided`: after it had read a number that was not the recorded one.
AfterDeparture count_departure(CallHistory& history, bool is_reseeded, bool is_decided, bool records_next);
// A replay came to its end.
void forget_departures(CallHistory& history);
// A replay ended with an error. Whether that happens too often.
bool count_failure(CallHistory& history);
// The host read a branch value that no plan has. Whether it is a number that changes from step to step.
bool count_unseen_value(CallHistory& history);

}  // namespace stepc
