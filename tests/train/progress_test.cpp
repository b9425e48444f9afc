#include "train/report/progress.h"

#include <chrono>
#include <cstdio>
#include <regex>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace stepc::train {
namespace {

// Of what another thread may be writing.
int64_t size_of(std::FILE* file) {
  struct stat now = {};
  EXPECT_EQ(fstat(fileno(file), &now), 0);
  return now.st_size;
}

// Closes it.
std::string text_of(std::FILE* file) {
  std::string text(static_cast<size_t>(size_of(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

// What Progress wrote to a file that stands for the terminal.
template <class Fn>
std::string written(int columns, int64_t log_every, const Fn& show) {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(file, columns, log_every);
    show(progress);
  }
  return text_of(file);
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
    const Progress::Phase phase(progress, "not for files");
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

TEST(Progress, TheLastStepStays) {
  const std::string text = written(200, 10, [](Progress& progress) {
    progress.step(line_of(299));
    progress.step(line_of(300));
    progress.note("done");
  });
  EXPECT_EQ(text, step_text(line_of(299)) + "\r\033[K" + step_text(line_of(300)) + "\ndone\n");
}

TEST(Progress, ShortWorkIsQuiet) {
  for (const int columns : {0, 80}) {
    const std::string text = written(columns, 10, [](Progress& progress) {
      Progress::Phase phase(progress, "loading");
      phase.update("1 of 2");
    });
    EXPECT_EQ(text, "");
  }
}

// Once it has outlasted the patience, whenever that is noticed.
TEST(Progress, LongWorkIsSaidWhileItGoesOn) {
  for (const int columns : {0, 60}) {
    std::FILE* file = std::tmpfile();
    {
      Progress progress(file, columns, 10, std::chrono::milliseconds(1));
      progress.step(line_of(1));
      Progress::Phase phase(progress, "comparing");
      phase.update("1 of 2");
      const int64_t before = size_of(file);
      while (size_of(file) == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      progress.note("a note");
    }
    const std::string text = std::regex_replace(text_of(file), std::regex(R"(\d\.\ds)"), "0s");  // whatever it took
    const std::string step = step_text(line_of(1));
    if (columns == 0) {
      EXPECT_EQ(text, step + "\ncomparing: 1 of 2 ...\na note\n");
      continue;
    }
    const std::string shown = "\r\033[Kcomparing: 1 of 2 ... 0s";
    EXPECT_TRUE(text.starts_with(step.substr(0, 59) + shown)) << text;
    EXPECT_NE(text.find("\r\033[Ka note\ncomparing: 1 of 2 ... 0s"), std::string::npos) << text;
    EXPECT_TRUE(text.ends_with("comparing: 1 of 2 ... 0s\r\033[K" + step.substr(0, 59) + "\n")) << text;
  }
}

TEST(Progress, AFileIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  EXPECT_EQ(terminal_columns(file), 0);
  std::fclose(file);
}

TEST(Progress, OfARankThatNobodyWatches) {
  Progress progress(nullptr, 80, 1);
  Progress::Phase(progress, "planning").update("1 of 2");
  progress.note("a line");
  progress.step(line_of(1));
  progress.step(line_of(300));
}

}  // namespace
}  // namespace stepc::train
