#include "train/machine/signals.h"

#include <cstddef>

#include <unistd.h>

namespace stepc::train {
namespace {

volatile std::sig_atomic_t received_signal = 0;
volatile std::sig_atomic_t was_asked = 0;  // by somebody who may ask again
volatile std::sig_atomic_t agent_process = 0;

void on_signal(int signal, siginfo_t* info, void* /*context*/) {
  const bool is_agent = agent_process != 0 && info->si_pid == agent_process;
  const bool asks = (signal == SIGINT || signal == SIGTERM) && !is_agent;
  if (asks && was_asked != 0) _exit(StopSignals::exit_code(signal));
  if (asks) was_asked = 1;
  if (received_signal == 0) received_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
  received_signal = 0;
  was_asked = 0;
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;  // a write in progress goes on
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    const bool stays_ignored = kSignals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN;
    if (!stays_ignored) sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    case SIGPIPE:
      return "SIGPIPE";
    default:
      return "SIGTERM";
  }
}

void StopSignals::set_agent(pid_t agent) { agent_process = agent; }

int StopSignals::received() { return received_signal; }

}  // namespace stepc::train
