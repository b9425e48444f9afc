#include "train/report/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <sys/ioctl.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "cost/profile.h"

namespace stepc::train {

bool is_logged(const StepLine& line, int64_t log_every) {
  return line.step == 1 || line.step % log_every == 0 || line.step == line.steps;
}

std::string step_text(const StepLine& line) {
  const std::string left = line.step < line.steps ? str("  ETA {}", human_seconds(line.seconds_left)) : std::string();
  std::string beside;
  if (line.predicted_seconds > 0)
    beside += str("  {} (predicted {})", time_text(line.step_seconds), time_text(line.predicted_seconds));
  if (line.planned_bytes > 0 && line.step_bytes > 0)
    beside += str("  {} (planned {})", human_bytes(line.step_bytes), human_bytes(line.planned_bytes));
  return str("step {}/{}  loss {:.4f}  grad {:.2f}  lr {:.2e}  {} tok/s  MFU {:.0f} %{}{}", line.step, line.steps,
             line.loss, line.grad_norm, line.lr, human_count(std::round(line.tokens_per_second)), 100 * line.mfu, left,
             beside);
}

bool is_terminal(std::FILE* out) { return isatty(fileno(out)) != 0; }

int terminal_columns(std::FILE* out) {
  if (!is_terminal(out)) {
    const char* columns = std::getenv(kColumnsVariable);
    return columns == nullptr ? 0 : std::atoi(columns);
  }
  winsize size = {};
  constexpr int kUsual = 80;
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : kUsual;
}

Progress::Progress(std::FILE* out, int columns, int64_t log_every, std::chrono::milliseconds patience)
    : out_(out), columns_(out == nullptr ? 0 : columns), log_every_(log_every), patience_(patience) {}

Progress progress_on_terminal(std::FILE* out) {
  return {is_terminal(out) ? out : nullptr, terminal_columns(out), /*log_every=*/1};
}

Progress::~Progress() {
  watcher_ = {};
  if (out_ == nullptr) return;
  if (!shown_.empty()) std::fputc('\n', out_);
  std::fflush(out_);
}

void Progress::step(const StepLine& line) {
  const std::lock_guard lock(mutex_);
  if (columns_ > 0 && line.step < line.steps) {
    step_line_ = step_text(line);
    if (!work_) show(step_line_);
  } else if (columns_ > 0 || is_logged(line, log_every_)) {
    if (!work_) show({});
    step_line_.clear();
    put(step_text(line));
  }
}

void Progress::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  put(text);
}

void Progress::put(const std::string& text) {
  if (out_ == nullptr) return;
  clear();
  std::fputs((text + "\n").c_str(), out_);
  std::fputs(shown_.c_str(), out_);
  std::fflush(out_);
}

Progress::Phase::Phase(Progress& progress, std::string what) : progress_(progress) {
  if (progress_.out_ == nullptr) return;
  const std::lock_guard lock(progress_.mutex_);
  INTERNAL_CHECK(!progress_.work_, "\"{}\" inside of \"{}\"", what, progress_.work_->what);
  progress_.work_ = Work{.what = std::move(what), .how_far = {}, .began = Clock::now(), .said = {}};
  if (!progress_.watcher_.joinable())
    progress_.watcher_ = std::jthread([&watched = progress_](const std::stop_token& stop) { watched.watch(stop); });
  progress_.changed_.notify_all();
}

Progress::Phase::~Phase() {
  if (progress_.out_ == nullptr) return;
  const std::lock_guard lock(progress_.mutex_);
  const bool is_shown = progress_.columns_ > 0 && progress_.work_->is_said;
  progress_.work_.reset();
  if (is_shown) progress_.show(progress_.step_line_);
}

void Progress::Phase::update(std::string how_far) {
  if (progress_.out_ == nullptr) return;
  const std::lock_guard lock(progress_.mutex_);
  progress_.work_->is_new = progress_.work_->is_new || how_far != progress_.work_->how_far;
  progress_.work_->how_far = std::move(how_far);
}

void Progress::watch(const std::stop_token& stop) {
  const auto interval =
      std::clamp<std::chrono::milliseconds>(patience_, std::chrono::milliseconds(1), std::chrono::seconds(1));
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (!changed_.wait(lock, stop, [&] { return work_.has_value(); })) return;
    changed_.wait_for(lock, stop, interval, [] { return false; });
    if (work_ && Clock::now() - work_->began >= patience_) tell();
  }
}

void Progress::tell() {
  constexpr std::chrono::minutes kBetweenLines{1};
  const auto now = Clock::now();
  std::string text = work_->what;
  if (!work_->how_far.empty()) text += ": " + work_->how_far;
  const bool is_due = !work_->is_said || (work_->is_new && now - work_->said >= kBetweenLines);
  work_->is_said = true;
  if (columns_ > 0) return show(str("{} ... {}", text, human_seconds(seconds_since(work_->began))));
  if (!is_due) return;
  work_->is_new = false;
  work_->said = now;
  std::fputs((text + " ...\n").c_str(), out_);
  std::fflush(out_);
}

// A line that wraps cannot be rewritten: it is cut.
void Progress::show(const std::string& text) {
  if (out_ == nullptr) return;
  clear();
  shown_ = text.substr(0, static_cast<size_t>(std::max(columns_ - 1, 0)));
  std::fputs(shown_.c_str(), out_);
  std::fflush(out_);
}

void Progress::clear() {
  if (!shown_.empty()) std::fputs("\r\033[K", out_);
}

}  // namespace stepc::train
