#include "train/command/local_ranks.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "comm/secret.h"
#include "train/machine/child_process.h"
#include "train/machine/signals.h"
#include "train/report/progress.h"

namespace stepc::train {
namespace {

struct LocalRank {
  int rank = 0;
  ChildProcess process;
  Descriptor log;
  std::string last_errors;  // of its standard error
};

// Binds a port without listening: the system gives the port to no other process, and rank 0 can still listen on it.
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

class Launch {
 public:
  explicit Launch(const LocalRanks& plan) : plan_(plan) {}
  void start(const BlockedSignals& signals);
  int run();

 private:
  struct Failure {
    int rank, status;
    std::string how;
  };

  [[nodiscard]] bool is_any_running() const;
  void send(int signal) const;
  void end_within(double seconds);
  void note_end(LocalRank& rank, const ProcessEnd& end);
  void note_agreed_stop(int status);
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
  std::string shown_errors_;     // of rank 0
};

void Launch::start(const BlockedSignals& signals) {
  show(STDOUT_FILENO, str("{} ranks on this machine, whose output is in {}\n", plan_.ranks, plan_.logs.string()));
  int port = 0;
  port_ = reserve_port(port);
  const std::string ranks = str("{}", plan_.ranks);
  std::map<std::string, std::string> variables = {{"WORLD_SIZE", ranks},
                                                  {"LOCAL_WORLD_SIZE", ranks},
                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                  {"MASTER_PORT", str("{}", port)},
                                                  {kLauncherVariable, "1"}};
  if (!has_secret()) variables["STEPC_SECRET"] = draw_nonce();
  if (const int columns = terminal_columns(stdout)) variables[kColumnsVariable] = str("{}", columns);
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    variables["RANK"] = variables["LOCAL_RANK"] = str("{}", rank);
    const std::filesystem::path log = plan_.logs / str("rank-{}.log", rank);
    ranks_.push_back({.rank = rank,
                      .process = ChildProcess(plan_.command, variables, signals),
                      .log = Descriptor(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666),
                                        str("{}: cannot be written", log.string())),
                      .last_errors = {}});
    variables.erase(kColumnsVariable);  // rank 0 alone is shown
  }
}

int Launch::run() {
  while (is_any_running()) {
    read_output();
    for (LocalRank& rank : ranks_)
      if (const auto end = rank.process.note_end()) note_end(rank, *end);
    const int signal = StopSignals::received();
    if (signal != 0 && signal_ == 0 && !failure_) {
      signal_ = signal;
      send(signal);
      end_within(plan_.stop_grace_seconds);
    }
    if (deadline_ && Clock::now() > *deadline_) {
      is_past_deadline_ = true;
      send(SIGKILL);
    }
  }
  return result();
}

bool Launch::is_any_running() const {
  return std::ranges::any_of(ranks_, [](const LocalRank& rank) { return rank.process.is_running(); });
}

void Launch::send(int signal) const {
  for (const LocalRank& rank : ranks_) rank.process.send(signal);
}

void Launch::end_within(double seconds) {
  const auto at = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  deadline_ = std::min(deadline_.value_or(at), at);
}

void Launch::note_end(LocalRank& rank, const ProcessEnd& end) {
  for (Descriptor* from : {&rank.process.output, &rank.process.errors})
    while (read_some(rank, *from)) {
    }
  const int status = end.is_exit ? end.value : StopSignals::exit_code(end.value);
  if (signal_ == 0 && !failure_ && end.is_exit) note_agreed_stop(status);
  const bool is_stopped = signal_ != 0 && status == StopSignals::exit_code(signal_);
  is_stopped_ |= is_stopped;
  // The rank that the others lost may end after them.
  const bool is_cause = failure_ && failure_->status == kLostRankStatus && status != kLostRankStatus &&
                        status != StopSignals::exit_code(SIGTERM) && !is_past_deadline_;
  // The other ranks gave this one up, and it does not react to SIGTERM.
  const bool is_hanging = failure_ && failure_->status == kLostRankStatus && is_past_deadline_ && !end.is_exit;
  if (is_hanging) failure_ = {rank.rank, 1, "did not answer the others and was killed"};
  if (status == 0 || is_stopped || (failure_ && !is_cause)) return;
  const bool is_late = is_past_deadline_ && !end.is_exit && end.value == SIGKILL;
  const std::string how =
      is_late ? str("did not stop within {:g} s of {} and was killed", plan_.stop_grace_seconds, signal_name(signal_))
      : end.is_exit ? str("failed with status {}", status == kLostRankStatus ? 1 : status)
                    : str("was ended by signal {} ({})", end.value, strsignal(end.value));
  failure_ = {rank.rank, status, how};
  // Ranks that are stopping already would take a second SIGTERM as a request to hurry.
  if (signal_ == 0) send(SIGTERM);
  end_within(plan_.failure_grace_seconds);
}

// A signal to one rank stops all of them at the same step, and rank 0 may still be saving.
void Launch::note_agreed_stop(int status) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    if (status != StopSignals::exit_code(signal)) continue;
    signal_ = signal;
    end_within(plan_.stop_grace_seconds);
  }
}

// Waits for output, for a signal or for a moment.
void Launch::read_output() {
  constexpr int kMomentMilliseconds = 50;
  std::vector<pollfd> all;
  for (const LocalRank& rank : ranks_)
    for (const Descriptor* from : {&rank.process.output, &rank.process.errors}) all.push_back({from->get(), POLLIN, 0});
  if (::poll(all.data(), all.size(), kMomentMilliseconds) <= 0) return;
  for (size_t i = 0; i < all.size(); ++i) {
    LocalRank& rank = ranks_[i / 2];
    if (all[i].revents != 0) read_some(rank, i % 2 == 0 ? rank.process.output : rank.process.errors);
  }
}

// Returns false if nothing can be read now, or ever again.
bool Launch::read_some(LocalRank& rank, Descriptor& from) {
  constexpr size_t kBytes = 65536, kKeptBytes = 8192;
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
  const bool is_error = &from == &rank.process.errors;
  // Rank 0's message about connections that another rank's failure cut would hide that failure.
  const bool is_aftermath = is_error && failure_ && failure_->rank != rank.rank;
  const bool is_shown = rank.rank == 0 && !is_aftermath;
  if (is_shown) show(is_error ? STDERR_FILENO : STDOUT_FILENO, text);
  if (is_error) {
    if (is_shown) shown_errors_ += text;
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
  const std::vector<std::string> shown = split(shown_errors_, '\n');
  std::erase_if(lines, [&](const std::string& line) { return std::ranges::count(shown, line) > 0; });
  for (size_t i = lines.size() - std::min(lines.size(), kLines); i < lines.size(); ++i)
    show(STDERR_FILENO, str("rank {}: {}\n", rank, lines[i]));
  show(STDERR_FILENO, str("stepc: rank {} of {} {}\n", rank, plan_.ranks, how));
  return status == kLostRankStatus ? 1 : status;
}

}  // namespace

bool has_secret() { return std::getenv("STEPC_SECRET") != nullptr || std::getenv("STEPC_SECRET_FILE") != nullptr; }

int run_local_ranks(const LocalRanks& plan) {
  Launch launch(plan);
  std::optional<StopSignals> signals;
  {
    // Ranks begin with the system's handlers, and a signal that comes before all are there is passed on to all.
    const BlockedSignals blocked;
    launch.start(blocked);
    signals.emplace();
  }
  return launch.run();
}

}  // namespace stepc::train
