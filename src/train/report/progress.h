// What a person sees of a run, on standard output: one line rewritten in place on a terminal, plain lines every
// `log_every` steps elsewhere, and notes between them. Work that takes long is said while it goes on. Owns what is on
// the screen now, and the thread that looks at the clock. Its calls may come from several threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

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

bool is_terminal(std::FILE* out);
// Width of the terminal behind `out`, or of a launcher's; 0 where it is not a terminal.
int terminal_columns(std::FILE* out);

class Progress {
 public:
  // `out`: nullptr shows nothing. `columns`: width of the line to rewrite in place, 0 for plain lines. `patience`: how
  // long work may go on unmentioned.
  Progress(std::FILE* out, int columns, int64_t log_every,
           std::chrono::milliseconds patience = std::chrono::seconds(2));
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepLine& line);
  // A whole line that stays, above the line that is rewritten.
  void note(const std::string& text);

  // Work that may take long, while this lives; one at a time. Where it outlasts the patience, a person is told what it
  // is: on a terminal by a line with the time so far, rewritten in place, elsewhere by one line, and another every
  // minute while update() says more.
  class Phase {
   public:
    Phase(Progress& progress, std::string what);
    ~Phase();
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;
    // How far it is: "1.2 GiB of 3.0 GiB". From any thread.
    void update(std::string how_far);

   private:
    Progress& progress_;
  };
  // What `work` gives, as a phase.
  template <class Fn>
  auto during(std::string what, const Fn& work) {
    const Phase phase(*this, std::move(what));
    return work();
  }

 private:
  struct Work {
    std::string what, how_far;
    std::chrono::steady_clock::time_point began, said;  // the last line of it, where there is no terminal
    bool is_said = false;
    bool is_new = true;  // how far it is, since that line
  };

  void watch(const std::stop_token& stop);
  void tell();
  void put(const std::string& text);
  void clear();
  void show(const std::string& text);

  std::FILE* out_;
  int columns_;
  int64_t log_every_;
  std::chrono::milliseconds patience_;
  std::mutex mutex_;  // guards what follows, and the output
  std::condition_variable_any changed_;
  std::string step_line_;     // that is rewritten by the next step
  std::string shown_;         // the line at the bottom: that one, or the work's
  std::optional<Work> work_;  // of the phase that lives
  std::jthread watcher_;      // once there was a phase
};

// Of a command whose output is its result: on the terminal behind `out` alone.
Progress progress_on_terminal(std::FILE* out);

}  // namespace stepc::train
