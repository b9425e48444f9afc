#include "train/report/progress.h"

#include <cstdio>
#include <string>

#include <gtest/gtest.h>

namespace stepc::train {
namespace {

// What Progress wrote to a file that stands for the terminal.
template <class Fn>
std::string written(int columns, int64_t log_every, const Fn& show) {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(file, columns, log_every);
    show(progress);
  }
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

StepLine line_of(int64_t step) {
  return {.step = step,
          .steps = 300,
          .loss = 1.83416,
          .grad_norm = 0.944,
          .lr = 1.5e-3,
          .tokens_per_second = 5312.2,
          .mfu = 0.412,
          .seconds_left = 70};
}

TEST(Progress, OneLineHoldsWhatMatters) {
  EXPECT_EQ(step_text(line_of(120)),
            "step 120/300  loss 1.8342  grad 0.94  lr 1.50e-03  5.3 k tok/s  MFU 41 %  ETA 1m10s");
  EXPECT_EQ(step_text(line_of(300)).find("ETA"), std::string::npos);
  StepLine planned = line_of(300);
  planned.step_seconds = 0.386;
  planned.predicted_seconds = 0.4;
  planned.step_bytes = 3 << 20;
  planned.planned_bytes = 2 << 20;
  EXPECT_EQ(step_text(planned),
            "step 300/300  loss 1.8342  grad 0.94  lr 1.50e-03  5.3 k tok/s  MFU 41 %  386.00 ms (predicted 400.00 ms)"
            "  3.0 MiB (planned 2.0 MiB)");
}

TEST(Progress, PlainLinesComeEveryLogEverySteps) {
  const std::string text = written(0, 10, [](Progress& progress) {
    progress.status("not for files");
    for (int64_t step = 1; step <= 25; ++step) progress.step(line_of(step));
  });
  EXPECT_EQ(text, step_text(line_of(1)) + "\n" + step_text(line_of(10)) + "\n" + step_text(line_of(20)) + "\n");
}

TEST(Progress, ATerminalLineIsRewrittenAndCutToItsWidth) {
  const std::string text = written(20, 10, [](Progress& progress) {
    progress.step(line_of(2));
    progress.note("saved");
    progress.step(line_of(3));
  });
  const std::string second = "step 2/300  loss 1.";
  const std::string third = "step 3/300  loss 1.";
  EXPECT_EQ(text, second + "\r\033[Ksaved\n" + second + "\r\033[K" + third + "\n");
}

TEST(Progress, AStatusGoesWithTheNextNoteAndTheLastStepStays) {
  const std::string text = written(200, 10, [](Progress& progress) {
    progress.status("evaluating");
    progress.note("loss 5");
    progress.step(line_of(300));
    progress.note("done");
  });
  EXPECT_EQ(text, "evaluating\r\033[Kloss 5\n" + step_text(line_of(300)) + "\ndone\n");
}

TEST(Progress, AFileIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  EXPECT_EQ(terminal_columns(file), 0);
  std::fclose(file);
}

TEST(Progress, OfARankThatNobodyWatches) {
  Progress progress(nullptr, 80, 1);
  progress.status("planning");
  progress.note("a line");
  progress.step(line_of(1));
  progress.step(line_of(300));
}

}  // namespace
}  // namespace stepc::train
