// Watchdog: looks after one rank from a thread of its own. It notes where a rank is that stays in one place for too
// long, and leaves what the rank did last where its run fails. A rank that does not run at all, because its process is
// stopped, ends a moment after the others have given it up: whoever starts ranks again would wait for it. Borrows the
// ranks' Flight; owns its thread. Ranks::watch() makes it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/ranks.h"
#include "comm/watch/flight_file.h"

namespace stepc {

// The same on all ranks, which call it together.
Attempt begin_attempt(Ranks& ranks);
// Of this machine.
std::string host_name();

// A process that is stopped gets SIGKILL from the system so long after it last called postpone(). (That of a launcher
// who gives up such a rank himself comes before, 10 s after the others.)
class EndOfTheStopped {
 public:
  explicit EndOfTheStopped(double seconds);
  ~EndOfTheStopped();
  EndOfTheStopped(const EndOfTheStopped&) = delete;
  EndOfTheStopped& operator=(const EndOfTheStopped&) = delete;
  void postpone() const;

 private:
  double seconds_;
  timer_t timer_ = {};
  bool has_timer_ = false;
};

class Watchdog {
 public:
  // `run`: the directory of the run, empty for none. A rank is stuck that has been in one brief place for
  // `stall_seconds`.
  Watchdog(Ranks& ranks, std::filesystem::path run, Attempt attempt, double stall_seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The rank ends with this error: leaves its flight, and its own line with what is known of the place. What cannot be
  // written is left out; nothing is thrown. Where there is no directory of the run yet, nothing is left.
  void leave(FlightFile::End end, const std::string& why, const LostIn& lost = {});
  // From now on the directory of a run that had none.
  void leave_in(const std::filesystem::path& run);
  // Does it. A rank that loses others there leaves its flight, and its line says where it was.
  template <class Work>
  auto noting_lost_ranks(const Work& work) {
    try {
      return work();
    } catch (const LostRank& error) {
      if (std::exchange(has_lost_, true)) throw;  // it has said so
      leave(FlightFile::End::kLost, error.what(), error.lost);
      throw LostRank(error.what() + place_text(), error.lost);
    }
  }

 private:
  // "; step 12 on host-a, `stepc blame out` says more"
  [[nodiscard]] std::string place_text();
  void watch();
  void write(FlightFile::End end, const std::string& why, const LostIn& lost, double stuck_seconds);

  Ranks& ranks_;
  std::filesystem::path run_;
  Attempt attempt_;
  double stall_seconds_;
  EndOfTheStopped end_of_the_stopped_;
  std::mutex mutex_;  // of the directory, of the two below, and of the file
  bool ends_ = false;
  bool has_left_ = false;
  bool has_lost_ = false;  // others; of the thread that takes part in the run
  std::condition_variable wakes_;
  std::thread thread_;
};

}  // namespace stepc
