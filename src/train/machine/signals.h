// Ctrl-C, SIGTERM, a lost terminal (SIGHUP) and a reader of the output that went away (SIGPIPE): the first asks the run
// to stop at the next step boundary. A second Ctrl-C or SIGTERM ends the process at once; the others come several times
// for one cause, and nobody waits for the process then.
#pragma once

#include <array>
#include <csignal>

#include <sys/types.h>

namespace stepc::train {

// From now on; process-wide, as signals are. What was there before comes back with the destructor. A SIGHUP that is
// ignored stays so: nohup means it.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Who may ask several times for one cause: the agent that started this process, whose death the system tells once for
  // each thread that it had. 0: nobody.
  static void set_agent(pid_t agent);

  // The signal that asked to stop, or 0.
  [[nodiscard]] static int received();
  // 130 for SIGINT, 143 for SIGTERM: what a shell reports.
  [[nodiscard]] static int exit_code(int signal) { return 128 + signal; }

 private:
  static constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

// "SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE".
const char* signal_name(int signal);

}  // namespace stepc::train
