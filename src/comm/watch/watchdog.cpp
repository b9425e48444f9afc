#include "comm/watch/watchdog.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <utility>

#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

namespace stepc {

namespace {

constexpr double kTick = 0.5;           // seconds between two looks
constexpr double kAfterWaiting = 1;     // a rank that waited for others has left what it did by then
constexpr double kAfterTheOthers = 12;  // seconds after these have given a stopped rank up

int64_t now() { return static_cast<int64_t>(std::time(nullptr)); }

std::string instruction_text(const FlightFile& file) {
  if (file.last.empty() || file.last.back().step >= 0) return {};
  const FlightFile::Entry& entry = file.last.back();
  return str(", instruction {} ({}), {} of '{}'", entry.instruction, entry.place.op, entry.place.phase,
             entry.place.module);
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

Attempt begin_attempt(Ranks& ranks) {
  const std::vector<std::string> all = ranks.exchange(str("{} {} {}", now(), host_name(), getpid()));
  return {static_cast<int64_t>(std::strtoll(all[0].c_str(), nullptr, 10)), all[0]};
}

EndOfTheStopped::EndOfTheStopped(double seconds) : seconds_(seconds) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  has_timer_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;  // else somebody else has to end it
  postpone();
}

EndOfTheStopped::~EndOfTheStopped() {
  if (has_timer_) timer_delete(timer_);
}

void EndOfTheStopped::postpone() const {
  if (!has_timer_) return;
  itimerspec at = {};
  at.it_value.tv_sec = static_cast<time_t>(std::ceil(seconds_));
  timer_settime(timer_, 0, &at, nullptr);
}

Watchdog::Watchdog(Ranks& ranks, std::filesystem::path run, Attempt attempt, double stall_seconds)
    : ranks_(ranks),
      run_(std::move(run)),
      attempt_(std::move(attempt)),
      stall_seconds_(stall_seconds),
      end_of_the_stopped_(stall_seconds + kAfterTheOthers),
      thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  const Flight& flight = ranks_.flight();
  uint64_t progress = flight.progress();
  auto since = Clock::now();
  bool is_noted = false;
  const auto tick = std::chrono::duration<double>(std::min(kTick, stall_seconds_ / 4));
  std::unique_lock lock(mutex_);
  while (!wakes_.wait_for(lock, tick, [&] { return ends_; })) {
    end_of_the_stopped_.postpone();
    if (const uint64_t reached = flight.progress(); reached != progress || !flight.is_brief()) {
      progress = reached;
      since = Clock::now();
      is_noted = false;
      continue;
    }
    const double seconds = seconds_since(since);
    if (is_noted || has_left_ || seconds < stall_seconds_ + kAfterWaiting) continue;
    is_noted = true;
    write(FlightFile::End::kStuck, {}, {}, seconds);
  }
}

void Watchdog::leave(FlightFile::End end, const std::string& why, const LostIn& lost) {
  const std::scoped_lock lock(mutex_);
  has_left_ = true;
  write(end, why, lost, 0);
}

void Watchdog::leave_in(const std::filesystem::path& run) {
  const std::scoped_lock lock(mutex_);
  if (run_.empty()) run_ = run;
}

void Watchdog::write(FlightFile::End end, const std::string& why, const LostIn& lost, double stuck_seconds) {
  FlightFile file{.rank = ranks_.rank(),
                  .ranks = ranks_.ranks(),
                  .host = host_name(),
                  .attempt = attempt_,
                  .left_at = now(),
                  .end = end,
                  .why = why,
                  .stuck_seconds = stuck_seconds,
                  .lost = lost};
  take_last(file, ranks_.flight());
  if (end == FlightFile::End::kStuck)
    log().warn("rank {} on {} has been in {} for {}{}", file.rank, file.host, file.at, human_seconds(stuck_seconds),
               file.at == kInStep ? instruction_text(file) : std::string());
  try {
    std::error_code ignored;
    if (!std::filesystem::is_directory(run_, ignored)) return;
    std::filesystem::create_directories(run_ / "logs");
    // Whole or not at all, and not synced: others wait for this rank to end.
    const std::filesystem::path path = flight_path(run_, file.rank);
    std::filesystem::path temporary = path;
    temporary += ".tmp";
    std::ofstream stream(temporary);
    stream << to_json(file);
    stream.close();
    USER_CHECK(stream.good(), "{}: cannot be written", temporary.string());
    std::filesystem::rename(temporary, path);
  } catch (const std::exception& error) {
    log().warn("what rank {} did last could not be left: {}", file.rank, first_line(error.what()));
  }
}

std::string Watchdog::place_text() {
  const Flight& flight = ranks_.flight();
  std::string at = flight.at();
  if (at == kInStep) {
    FlightFile file;
    take_last(file, flight);
    at = str("step {}", file.step);
  }
  const std::scoped_lock lock(mutex_);
  return str("; rank {} on {}, in {}{}", ranks_.rank(), host_name(), at,
             run_.empty() ? std::string() : str(": `stepc blame {}` says more", run_.string()));
}

}  // namespace stepc
