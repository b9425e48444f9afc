// Watchdog: watches one rank from a thread of its own. It reports the place of a rank that stays there too long, and
// writes the rank's flight file if the run fails. A rank that does not run at all, because its process is stopped, is
// ended shortly after the others have given it up, because a launcher that starts ranks again would wait for it.
// Borrows the ranks' Flight; owns its thread. Ranks::watch() makes it.
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

// All ranks call it together and get the same attempt.
Attempt begin_attempt(Ranks& ranks);
// The name of this machine.
std::string host_name();

// The system sends a stopped process SIGKILL this many seconds after its last postpone(). (A launcher that gives up
// such a rank sends its own SIGKILL earlier, 10 s after the others.)
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
  // `run`: the directory of the run, empty for none. A rank is stuck after `stall_seconds` in one brief place.
  Watchdog(Ranks& ranks, std::filesystem::path run, Attempt attempt, double stall_seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The rank ends with this error: writes its flight file, and its own line with what is known of the place. Leaves out
  // what cannot be written; throws nothing. Without a directory of the run, writes nothing.
  void leave(FlightFile::End end, const std::string& why, const LostIn& lost = {});
  // Sets the directory of a run that had none.
  void leave_in(const std::filesystem::path& run);
  // Runs `work`. If the rank loses others in it, writes its flight file and adds the place to the error.
  template <class Work>
  auto noting_lost_ranks(const Work& work) {
    try {
      return work();
    } catch (const LostRank& error) {
      if (std::exchange(has_lost_, true)) throw;  // already reported
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
  std::mutex mutex_;  // guards the directory, the two flags below, and the file
  bool ends_ = false;
  bool has_left_ = false;
  bool has_lost_ = false;  // has lost others; used only by the thread that takes part in the run
  std::condition_variable wakes_;
  std::thread thread_;
};

}  // namespace stepc
