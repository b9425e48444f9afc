// What a person sees of a run, on standard output: one line rewritten in place on a terminal, plain lines every
// `log_every` steps elsewhere, and notes between them. Owns nothing but what is on the screen now.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace stepc::train {

struct StepLine {
  int64_t step = 0;
  int64_t steps = 0;
  double loss = 0;  // nats per token
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_second = 0;
  double mfu = 0;  // part of the best rate that was measured on this machine, alone or in a step
  double seconds_left = 0;
  double step_seconds = 0;       // of late
  double predicted_seconds = 0;  // 0: there is no plan
  uint64_t step_bytes = 0;       // that the last replay took at its peak
  uint64_t planned_bytes = 0;
};

// The first step, every `log_every`th and the last.
bool is_logged(const StepLine& line, int64_t log_every);

// "step 120/300  loss 1.8342  grad 0.94  lr 1.50e-03  5.3 k tok/s  MFU 41 %  ETA 1m10s
//  386.00 ms (predicted 400.00 ms)  1.2 GiB (planned 1.2 GiB)"; the latter two once the step is planned
std::string step_text(const StepLine& line);

// Set by a launcher that shows a rank's output on its own terminal: how wide that is.
inline constexpr const char* kColumnsVariable = "STEPC_LAUNCHER_COLUMNS";

// Set by a launcher that gives each rank's output a file of its own.
inline constexpr const char* kLauncherVariable = "STEPC_LAUNCHER";

// Width of the terminal behind `out`, or of a launcher's; 0 where it is not a terminal.
int terminal_columns(std::FILE* out);

class Progress {
 public:
  // `out`: nullptr shows nothing. `columns`: width of the line to rewrite in place, 0 for plain lines.
  Progress(std::FILE* out, int columns, int64_t log_every);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepLine& line);
  // Shown until the next line, on a terminal only: "tokenising 45 %".
  void status(const std::string& text);
  // A whole line that stays, above the line that is rewritten.
  void note(const std::string& text);

 private:
  void clear();
  void show(const std::string& text);

  std::FILE* out_;
  int columns_;
  int64_t log_every_;
  std::string shown_;   // the line that is rewritten
  bool stays_ = false;  // below the next note
};

}  // namespace stepc::train
