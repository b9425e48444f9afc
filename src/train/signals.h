// Ctrl-C and SIGTERM: the first asks the run to stop at the next step boundary, the second ends the process at once.
#pragma once

namespace stepc::train {

// From now on; process-wide, as signals are. The default handlers come back with the destructor.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal that asked to stop, or 0.
  [[nodiscard]] static int received();
  // 130 for SIGINT, 143 for SIGTERM: what a shell reports.
  [[nodiscard]] static int exit_code(int signal) { return 128 + signal; }
};

// "SIGINT", "SIGTERM".
const char* signal_name(int signal);

}  // namespace stepc::train
