#include "train/report/progress.h"

#include <cmath>
#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

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

int terminal_columns(std::FILE* out) {
  if (isatty(fileno(out)) == 0) {
    const char* columns = std::getenv(kColumnsVariable);
    return columns == nullptr ? 0 : std::atoi(columns);
  }
  winsize size = {};
  constexpr int kUsual = 80;
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : kUsual;
}

Progress::Progress(std::FILE* out, int columns, int64_t log_every)
    : out_(out), columns_(out == nullptr ? 0 : columns), log_every_(log_every) {}

Progress::~Progress() {
  if (out_ == nullptr) return;
  if (!shown_.empty()) std::fputc('\n', out_);
  std::fflush(out_);
}

void Progress::step(const StepLine& line) {
  if (columns_ > 0 && line.step < line.steps) {
    show(step_text(line));
    stays_ = true;
  } else if (columns_ > 0 || is_logged(line, log_every_)) {
    stays_ = false;
    note(step_text(line));
  }
}

void Progress::status(const std::string& text) {
  if (columns_ == 0) return;
  show(text);
  stays_ = false;
}

void Progress::note(const std::string& text) {
  if (out_ == nullptr) return;
  clear();
  if (!stays_) shown_.clear();
  std::fputs((text + "\n").c_str(), out_);
  std::fputs(shown_.c_str(), out_);
  std::fflush(out_);
}

// A line that wraps cannot be rewritten: it is cut.
void Progress::show(const std::string& text) {
  clear();
  shown_ = text.substr(0, static_cast<size_t>(columns_ - 1));
  std::fputs(shown_.c_str(), out_);
  std::fflush(out_);
}

void Progress::clear() {
  if (!shown_.empty()) std::fputs("\r\033[K", out_);
}

}  // namespace stepc::train
