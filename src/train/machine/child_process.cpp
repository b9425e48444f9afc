#include "train/machine/child_process.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

namespace stepc::train {

Descriptor::Descriptor(int opened, const std::string& what) : number_(opened) {
  USER_CHECK(opened >= 0, "{}: {}", what, std::strerror(errno));
}

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

void Descriptor::close() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

BlockedSignals::BlockedSignals() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before_);
}

BlockedSignals::~BlockedSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

namespace {

struct Pipe {
  Descriptor read, write;
};

// A pipe whose reader does not block.
Pipe make_pipe() {
  int ends[2] = {-1, -1};
  const bool made = ::pipe2(ends, O_CLOEXEC) == 0;
  Pipe pipe{Descriptor(made ? ends[0] : -1, "cannot make a pipe"),
            Descriptor(made ? ends[1] : -1, "cannot make a pipe")};
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

// This process's environment with the variables of `ours`, as "NAME=value".
std::vector<std::string> environment_with(const std::map<std::string, std::string>& ours) {
  std::vector<std::string> all;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view text = *each;
    if (!ours.contains(std::string(text.substr(0, text.find('='))))) all.emplace_back(text);
  }
  for (const auto& [name, value] : ours) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

struct ChildStart {
  char** command;
  char** environment;
  int input, output, errors;
  const sigset_t& signals;
  pid_t parent;
};

// Runs in the child after fork(), where only async-signal-safe calls are allowed.
[[noreturn]] void become_program(const ChildStart& start) {
  constexpr int kCannotStart = 127;  // as a shell has it
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != start.parent) _exit(kCannotStart);  // it ended before that
  dup2(start.input, STDIN_FILENO);
  dup2(start.output, STDOUT_FILENO);
  dup2(start.errors, STDERR_FILENO);
  sigprocmask(SIG_SETMASK, &start.signals, nullptr);
  execve(start.command[0], start.command, start.environment);
  const char* why = strerrordesc_np(errno);
  for (const char* part : {"stepc: cannot start ", static_cast<const char*>(start.command[0]), ": ", why, "\n"})
    write_all(STDERR_FILENO, part);
  _exit(kCannotStart);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables,
                           const BlockedSignals& signals) {
  std::vector<std::string> words = command;
  std::vector<std::string> settings = environment_with(variables);
  std::vector<char*> arguments = pointers(words), environment = pointers(settings);
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null");
  Pipe output_pipe = make_pipe(), errors_pipe = make_pipe();
  const ChildStart start{.command = arguments.data(),
                         .environment = environment.data(),
                         .input = nothing.get(),
                         .output = output_pipe.write.get(),
                         .errors = errors_pipe.write.get(),
                         .signals = signals.before(),
                         .parent = ::getpid()};
  const pid_t pid = ::fork();
  if (pid == 0) become_program(start);
  USER_CHECK(pid > 0, "cannot start a process: {}", std::strerror(errno));
  ::setpgid(pid, pid);  // here as in the child: whoever is first
  pid_ = pid;
  output = std::move(output_pipe.read);
  errors = std::move(errors_pipe.read);
}

ChildProcess::~ChildProcess() {
  if (!is_running()) return;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : output(std::move(other.output)), errors(std::move(other.errors)), pid_(std::exchange(other.pid_, 0)) {}

void ChildProcess::send(int signal) const {
  if (is_running()) ::kill(pid_, signal);
}

std::optional<ProcessEnd> ChildProcess::note_end() {
  siginfo_t end = {};
  if (!is_running() || ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      end.si_pid == 0)
    return std::nullopt;
  // Until it is waited for it is a zombie, and no other group has its number.
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
  return ProcessEnd{.is_exit = end.si_code == CLD_EXITED, .value = end.si_status};
}

}  // namespace stepc::train
