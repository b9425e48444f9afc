// A program run as a child of this process, which it cannot outlive, and whose output is read here.
#pragma once

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace stepc::train {

// A file descriptor, closed with its owner and by exec().
class Descriptor {
 public:
  Descriptor() = default;
  // `opened`: what open() and its like returned, with O_CLOEXEC; below 0 it is a UserError: `what`, and errno in words.
  Descriptor(int opened, const std::string& what);
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  void close();
  [[nodiscard]] int get() const { return number_; }  // -1: closed, which poll() passes over

 private:
  int number_ = -1;
};

// Writes all of it, or drops what cannot be written: a full disk or a closed terminal.
void write_all(int descriptor, std::string_view text);

// Signals that come while it lives wait for its end.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  [[nodiscard]] const sigset_t& before() const { return before_; }

 private:
  sigset_t before_ = {};
};

struct ProcessEnd {
  bool is_exit = true;  // else a signal ended it
  int value = 0;        // exit status or signal
};

class ChildProcess {
 public:
  // `command`: path of the program, and its arguments. `variables` are set beside this process's own. It leads a
  // process group of its own, has nothing to read and is killed when the calling thread ends. Signals are blocked, for
  // no handler of this process to take them in the child; there they are as before. UserError where there can be no
  // more processes; a program that cannot be started says so on its standard error and ends with 127.
  ChildProcess(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables,
               const BlockedSignals& signals);
  // Kills it where it runs still.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) = delete;

  // To the process alone: what it has started is for itself to end.
  void send(int signal) const;
  // How it ended, once; nullopt: it runs, or that was said. What it left in its process group is killed.
  std::optional<ProcessEnd> note_end();
  [[nodiscard]] bool is_running() const { return pid_ > 0; }

  // Read ends of pipes, which do not wait. Closed by whoever reads their ends.
  Descriptor output, errors;

 private:
  pid_t pid_ = 0;  // and its process group
};

}  // namespace stepc::train
