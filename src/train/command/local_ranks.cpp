#include "train/command/local_ranks.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "train/machine/signals.h"
#include "train/report/progress.h"

namespace stepc::train {
namespace {

// A file descriptor, closed with its owner and by exec().
class Descriptor {
 public:
  Descriptor() = default;
  // `opened`: what open() and its like returned; below 0, errno says why it is a UserError.
  Descriptor(int opened, const std::string& what) : number_(opened) {
    USER_CHECK(opened >= 0, "{}: {}", what, std::strerror(errno));
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }
  [[nodiscard]] int get() const { return number_; }  // -1: closed, which poll() passes over

 private:
  int number_ = -1;
};

struct LocalRank {
  int rank = 0;
  pid_t pid = 0;  // and its process group
  bool is_running = false;
  Descriptor log;
  Descriptor output, errors;  // what it writes, to be read here; closed at their ends
  std::string last_errors;    // at most kKeptBytes
};
constexpr size_t kKeptBytes = 8192;

// A pipe that one rank writes into and that is read here without waiting.
std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2] = {-1, -1};
  const bool made = ::pipe2(ends, O_CLOEXEC) == 0;
  Descriptor read(made ? ends[0] : -1, "cannot make a pipe to a rank");
  ::fcntl(read.get(), F_SETFL, O_NONBLOCK);
  return {std::move(read), Descriptor(ends[1], "")};
}

// Bound but not listened on: the system gives the port to nobody else, and rank 0 may still listen there.
Descriptor reserve_port(int& port) {
  const std::string what = "cannot reserve a port on 127.0.0.1";
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), what);
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool bound = ::bind(socket.get(), any, size) == 0 && ::getsockname(socket.get(), any, &size) == 0;
  USER_CHECK(bound, "{}: {}", what, std::strerror(errno));
  port = ntohs(address.sin_port);
  return socket;
}

// This process's own with those of `ours` instead, as "NAME=value".
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

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;  // a full disk or a closed terminal is no reason to end the run
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Signals that come while it lives wait for its end.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  [[nodiscard]] const sigset_t& before() const { return before_; }

 private:
  sigset_t before_ = {};
};

// What becomes a rank after fork(), where only async-signal-safe calls are allowed.
struct Start {
  char** command;
  char** environment;
  int input, output, errors;
  const sigset_t& signals;
  pid_t launcher;
};

[[noreturn]] void become_rank(const Start& start) {
  constexpr int kCannotStart = 127;  // as a shell has it
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != start.launcher) _exit(kCannotStart);  // it ended before it could be told
  dup2(start.input, STDIN_FILENO);
  dup2(start.output, STDOUT_FILENO);
  dup2(start.errors, STDERR_FILENO);
  sigprocmask(SIG_SETMASK, &start.signals, nullptr);
  execve(start.command[0], start.command, start.environment);
  for (const char* part :
       {"stepc: cannot start ", static_cast<const char*>(start.command[0]), ": ", strerrordesc_np(errno), "\n"})
    write_all(STDERR_FILENO, part);
  _exit(kCannotStart);
}

class Launch {
 public:
  explicit Launch(const LocalRanks& plan) : plan_(plan) {}
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  void start(const sigset_t& signals);
  int run();

 private:
  struct Failure {
    int rank, status;
    std::string how;
  };

  void start(int rank, std::map<std::string, std::string> variables, const sigset_t& signals);
  [[nodiscard]] bool is_any_running() const { return std::ranges::any_of(ranks_, &LocalRank::is_running); }
  void pass_on(int signal);
  void end_within(double seconds);
  void note_ends();
  void note_end(const LocalRank& rank, bool exited, int value);
  void read_output();
  bool read_some(LocalRank& rank, Descriptor& from);
  void show(int descriptor, std::string_view text);
  int result();

  const LocalRanks& plan_;
  Descriptor port_;
  std::vector<LocalRank> ranks_;
  int signal_ = 0;                             // that was passed on
  bool is_stopped_ = false;                    // by it, at least one rank
  std::optional<Failure> failure_;             // the first
  std::optional<Clock::time_point> deadline_;  // when what still runs is killed
  bool is_past_deadline_ = false;
  bool is_inside_line_ = false;  // on the terminal
};

// Of those that run still where the launch itself failed.
Launch::~Launch() {
  for (const LocalRank& rank : ranks_) {
    if (!rank.is_running) continue;
    ::kill(-rank.pid, SIGKILL);
    ::waitpid(rank.pid, nullptr, 0);
  }
}

void Launch::start(const sigset_t& signals) {
  int port = 0;
  port_ = reserve_port(port);
  const std::string ranks = str("{}", plan_.ranks);
  show(STDOUT_FILENO, str("{} ranks on this machine, whose output is in {}\n", ranks, plan_.logs.string()));
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    const std::string number = str("{}", rank);
    start(rank,
          {{"RANK", number},
           {"LOCAL_RANK", number},
           {"WORLD_SIZE", ranks},
           {"LOCAL_WORLD_SIZE", ranks},
           {"MASTER_ADDR", "127.0.0.1"},
           {"MASTER_PORT", str("{}", port)},
           {"STEPC_LAUNCHER", "1"}},
          signals);
  }
}

void Launch::start(int rank, std::map<std::string, std::string> variables, const sigset_t& signals) {
  const int columns = rank == 0 ? terminal_columns(stdout) : 0;
  if (columns > 0) variables[kColumnsVariable] = str("{}", columns);
  std::vector<std::string> command = plan_.command;
  std::vector<std::string> environment = environment_with(variables);
  std::vector<char*> arguments = pointers(command), settings = pointers(environment);

  const std::filesystem::path log = plan_.logs / str("rank-{}.log", rank);
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null");
  auto [output, output_end] = make_pipe();
  auto [errors, errors_end] = make_pipe();
  LocalRank started{.rank = rank,
                    .log = Descriptor(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666),
                                      str("{}: cannot be written", log.string())),
                    .output = std::move(output),
                    .errors = std::move(errors),
                    .last_errors = {}};
  const Start start{arguments.data(), settings.data(), nothing.get(), output_end.get(),
                    errors_end.get(), signals,         ::getpid()};
  started.pid = ::fork();
  if (started.pid == 0) become_rank(start);
  USER_CHECK(started.pid > 0, "cannot start rank {} of {}: {}", rank, plan_.ranks, std::strerror(errno));
  ::setpgid(started.pid, started.pid);  // here too: whoever is first
  started.is_running = true;
  ranks_.push_back(std::move(started));
}

int Launch::run() {
  while (is_any_running()) {
    read_output();
    note_ends();
    const int signal = StopSignals::received();
    if (signal != 0 && signal_ == 0 && !failure_) {
      signal_ = signal;
      pass_on(signal);
      end_within(plan_.stop_grace_seconds);
    }
    if (deadline_ && Clock::now() > *deadline_) {
      is_past_deadline_ = true;
      pass_on(SIGKILL);
    }
  }
  return result();
}

// To the ranks alone: what each has started is for itself to end.
void Launch::pass_on(int signal) {
  for (const LocalRank& rank : ranks_)
    if (rank.is_running) ::kill(rank.pid, signal);
}

void Launch::end_within(double seconds) {
  const auto at = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  deadline_ = std::min(deadline_.value_or(at), at);
}

void Launch::note_ends() {
  for (LocalRank& rank : ranks_) {
    siginfo_t end = {};
    // It stays a zombie at first: its group's number is nobody else's while what the rank left in the group is ended.
    if (!rank.is_running || ::waitid(P_PID, static_cast<id_t>(rank.pid), &end, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        end.si_pid == 0)
      continue;
    ::kill(-rank.pid, SIGKILL);
    ::waitpid(rank.pid, nullptr, 0);
    rank.is_running = false;
    while (read_some(rank, rank.output)) {
    }
    while (read_some(rank, rank.errors)) {
    }
    note_end(rank, end.si_code == CLD_EXITED, end.si_status);
  }
}

// `value`: exit status, or the signal that ended it.
void Launch::note_end(const LocalRank& rank, bool exited, int value) {
  const int status = exited ? value : StopSignals::exit_code(value);
  const bool is_stopped = signal_ != 0 && status == StopSignals::exit_code(signal_);
  is_stopped_ |= is_stopped;
  if (status == 0 || is_stopped || failure_) return;
  const bool is_killed = is_past_deadline_ && !exited && value == SIGKILL;
  const std::string how =
      is_killed ? str("did not stop within {:g} s of {} and was killed", plan_.stop_grace_seconds, signal_name(signal_))
      : exited  ? str("failed with status {}", status)
                : str("was ended by signal {} ({})", value, strsignal(value));
  failure_ = {rank.rank, status, how};
  // Those that were told to stop already would take a second SIGTERM as haste.
  if (signal_ == 0) pass_on(SIGTERM);
  end_within(plan_.failure_grace_seconds);
}

// Waits for output, for a signal or for a moment.
void Launch::read_output() {
  constexpr int kMomentMilliseconds = 50;
  std::vector<pollfd> all;
  for (const LocalRank& rank : ranks_)
    for (const Descriptor* from : {&rank.output, &rank.errors}) all.push_back({from->get(), POLLIN, 0});
  if (::poll(all.data(), all.size(), kMomentMilliseconds) <= 0) return;
  for (size_t i = 0; i < all.size(); ++i) {
    LocalRank& rank = ranks_[i / 2];
    if (all[i].revents != 0) read_some(rank, i % 2 == 0 ? rank.output : rank.errors);
  }
}

// False: there is nothing to read now, or will not be any more.
bool Launch::read_some(LocalRank& rank, Descriptor& from) {
  constexpr size_t kBytes = 65536;
  std::string text(kBytes, '\0');
  const ssize_t read = ::read(from.get(), text.data(), text.size());
  if (read < 0 && errno == EINTR) return true;
  if (read < 0 && errno == EAGAIN) return false;
  if (read <= 0) {
    from.close();
    return false;
  }
  text.resize(static_cast<size_t>(read));
  write_all(rank.log.get(), text);
  const bool is_error = &from == &rank.errors;
  // After another rank's failure, what rank 0 has to say of lost connections would hide it.
  const bool is_aftermath = is_error && failure_ && failure_->rank != rank.rank;
  if (rank.rank == 0 && !is_aftermath) show(is_error ? STDERR_FILENO : STDOUT_FILENO, text);
  if (is_error) {
    rank.last_errors += text;
    if (rank.last_errors.size() > kKeptBytes) rank.last_errors.erase(0, rank.last_errors.size() - kKeptBytes);
  }
  return true;
}

void Launch::show(int descriptor, std::string_view text) {
  write_all(descriptor, text);
  is_inside_line_ = !text.ends_with('\n');
}

int Launch::result() {
  if (is_inside_line_) show(STDOUT_FILENO, "\n");
  if (!failure_) return is_stopped_ ? StopSignals::exit_code(signal_) : 0;
  const auto& [rank, status, how] = *failure_;
  constexpr size_t kLines = 10;
  std::vector<std::string> lines = split(ranks_.at(static_cast<size_t>(rank)).last_errors, '\n');
  std::erase(lines, "");
  if (rank == 0) lines.clear();  // they were shown as they came
  for (size_t i = lines.size() - std::min(lines.size(), kLines); i < lines.size(); ++i)
    show(STDERR_FILENO, str("rank {}: {}\n", rank, lines[i]));
  show(STDERR_FILENO, str("stepc: rank {} of {} {}\n", rank, plan_.ranks, how));
  return status;
}

}  // namespace

int run_local_ranks(const LocalRanks& plan) {
  Launch launch(plan);
  std::optional<StopSignals> signals;
  {
    // Ranks begin with the system's handlers, and a signal that comes before all are there is passed on to all.
    const BlockedSignals blocked;
    launch.start(blocked.before());
    signals.emplace();
  }
  return launch.run();
}

}  // namespace stepc::train
