#include "train/signals.h"

#include <csignal>

#include <unistd.h>

namespace stepc::train {
namespace {

volatile std::sig_atomic_t received_signal = 0;

void on_signal(int signal) {
  if (received_signal != 0) _exit(StopSignals::exit_code(signal));
  received_signal = signal;
}

void install(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // a write in progress goes on
  sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  received_signal = 0;
  install(SIGINT, on_signal);
  install(SIGTERM, on_signal);
}

StopSignals::~StopSignals() {
  install(SIGINT, SIG_DFL);
  install(SIGTERM, SIG_DFL);
}

const char* signal_name(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

int StopSignals::received() { return received_signal; }

}  // namespace stepc::train
