// Whom the ranks' last instructions blame, and what is no file of them.
#include "train/command/blame.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc::train {
namespace {

using End = FlightFile::End;

FlightFile file_of(int64_t rank, End end, std::vector<int64_t> missing = {}, uint64_t noted = 500) {
  FlightFile file{.rank = rank,
                  .ranks = 4,
                  .host = str("host-{}", rank),
                  .attempt = {1000, "1000 host-0 17"},
                  .left_at = 1100,
                  .end = end,
                  .why = "a broken row",
                  .at = kInStep,
                  .stuck_seconds = end == End::kStuck ? 46 : 0.0,
                  .step = 12,
                  .noted = noted,
                  .lost = {"all-gather", {0, 1, 2, 3}, std::move(missing), true}};
  file.last = {{.step = 12}, {-1, 17, 2, {"all_gather", "model.layers.3", "forward", "dp_shard"}}};
  return file;
}
std::string first_line_of(const std::string& text) { return text.substr(0, text.find('\n')); }

TEST(Blame, TheOneThatFailed) {
  EXPECT_EQ(first_line_of(blame({file_of(0, End::kTold), file_of(1, End::kFailed), file_of(2, End::kLost, {1}),
                                 file_of(3, End::kTold)})),
            "rank 1 on host-1 failed in step 12, instruction 17 (all_gather over dp_shard), forward of "
            "'model.layers.3': a broken row");
}

TEST(Blame, TheOneThatTheOthersWereToldOf) {
  FlightFile file = file_of(0, End::kTold);
  file.why = "rank 3: a full disk";
  file.at = "agreeing on the step";
  EXPECT_EQ(first_line_of(blame({file})), "rank 3: a full disk: all were told, in step 12, agreeing on the step");
}

TEST(Blame, TheOneThatLeftNothing) {
  const std::string text =
      blame({file_of(0, End::kLost, {1}), file_of(1, End::kLost, {3}), file_of(2, End::kLost, {3})});
  EXPECT_EQ(first_line_of(text),
            "rank 3 left nothing: it was killed or stopped, or its machine is gone; ranks 1, 2 waited for it in "
            "all-gather of ranks 0, 1, 2, 3, at step 12, instruction 17 (all_gather over dp_shard), forward of "
            "'model.layers.3'");
  EXPECT_NE(text.find("  3      ?                    left nothing\n"), std::string::npos) << text;
  // Of several that left nothing, those that others waited for: the rest may have been killed for them.
  EXPECT_EQ(first_line_of(blame({file_of(0, End::kLost, {2})})).substr(0, 20), "rank 2 left nothing:");
  EXPECT_EQ(first_line_of(blame({file_of(0, End::kLost, {1, 2})})).substr(0, 24), "ranks 1, 2 left nothing:");
}

TEST(Blame, TheOneThatStayed) {
  EXPECT_EQ(first_line_of(blame({file_of(0, End::kLost, {2}), file_of(1, End::kLost, {2}), file_of(2, End::kStuck)})),
            "rank 2 on host-2 stayed in step 12, instruction 17 (all_gather over dp_shard), forward of "
            "'model.layers.3' for 46s; ranks 0, 1 waited for it in all-gather of ranks 0, 1, 2, 3, at step 12, "
            "instruction 17 (all_gather over dp_shard), forward of 'model.layers.3'");
}

TEST(Blame, TheOneThatWasLate) {
  const std::string text = first_line_of(blame({file_of(0, End::kLost, {2}, 500), file_of(1, End::kLost, {2}, 503),
                                                file_of(2, End::kLost, {0}, 480), file_of(3, End::kLost, {2}, 500)}));
  EXPECT_EQ(text.substr(0, 80), "rank 2 on host-2 was late: it had come to step 12, instruction 17 (all_gather ov");
  EXPECT_NE(text.find(", 20 instructions behind the next; ranks 0, 1, 3 waited for it"), std::string::npos) << text;
}

TEST(Blame, AConnection) {
  EXPECT_EQ(first_line_of(blame({file_of(0, End::kLost, {1}), file_of(1, End::kLost, {0}), file_of(2, End::kLost, {0}),
                                 file_of(3, End::kLost, {1})}))
                .substr(0, 73),
            "no rank was behind: rank 0 on host-0 does not hear rank 1 on host-1, at s");
}

TEST(Blame, OfTheNewestAttempt) {
  const TempDir directory;
  std::filesystem::create_directories(directory / "logs");
  EXPECT_USER_ERROR(blame_run(directory.path()), "no rank of a run there has left its last instructions");
  EXPECT_USER_ERROR(blame_run(directory / "nowhere"), "nowhere: not a directory");
  const auto leave = [&](FlightFile file, int64_t began) {
    file.attempt = {began, str("{} x", began)};
    std::ofstream(flight_path(directory.path(), file.rank)) << to_json(file);
  };
  for (const int64_t rank : {0, 1, 2, 3}) leave(file_of(rank, End::kFailed), 1000);
  for (const int64_t rank : {0, 2}) leave(file_of(rank, End::kLost, {1}), 2000);
  std::ofstream(directory / "logs" / "rank-0.log") << "what it said";
  EXPECT_EQ(blame_run(directory.path()).substr(0, 20), "rank 1 left nothing:");
  std::ofstream(flight_path(directory.path(), 3)) << "{";
  EXPECT_USER_ERROR(blame_run(directory.path()), "rank-3.flight.json: ");
}

TEST(FlightFile, ComesBack) {
  FlightFile file = file_of(2, End::kLost, {0, 3});
  file.why = "quotes \" and \x01\xff";
  const FlightFile read = parse_flight(to_json(file), "it");
  EXPECT_EQ(read.attempt, file.attempt);
  EXPECT_EQ(read.last, file.last);
  EXPECT_EQ(read.end, file.end);
  EXPECT_EQ(read.lost.missing, file.lost.missing);
  EXPECT_EQ(read.lost.members, file.lost.members);
  EXPECT_EQ(read.noted, file.noted);
  EXPECT_TRUE(read.lost.is_late);
}

// Each of its bytes cut off, and each replaced: a file of it or one line.
TEST(FlightFile, WhatIsNoneIsRefusedInOneLine) {
  const std::string good = to_json(file_of(2, End::kLost, {0, 3}));
  size_t refused = 0;
  const auto look = [&](const std::string& text) {
    try {
      const FlightFile file = parse_flight(text, "it");
      EXPECT_LT(file.rank, file.ranks);
    } catch (const UserError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  };
  for (size_t at = 0; at < good.size(); ++at) {
    look(good.substr(0, at));
    for (const char with : {'"', '9', '-', '}', '\0'}) {
      std::string bad = good;
      bad[at] = with;
      look(bad);
    }
  }
  EXPECT_GT(refused, good.size());
  EXPECT_USER_ERROR(parse_flight("[]", "it"), "it: no object");
}

}  // namespace
}  // namespace stepc::train
