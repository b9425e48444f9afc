#include "data/source/parquet_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "data/source/parquet_script.h"

namespace stepc {

namespace {
constexpr size_t kMaxAnswerBytes = size_t{256} << 20;  // as of a line of a .jsonl
constexpr const char kEnded[] = "{}: not readable as Parquet: the Python that reads it has ended";

// Starts `python` with the script, the socket as what it reads and writes. An errno, or 0.
int start(const std::string& python, int socket, pid_t& pid) {
  std::array<std::string, 3> words = {python, "-c", kParquetScript};
  std::array<char*, 4> arguments = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const int error = posix_spawnp(&pid, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// "3 64 In column 0: ...": rows after the third of the row group, so many.
struct DamagedRows {
  uint64_t before = 0, count = 0;
  std::string_view what;
};
DamagedRows damaged_rows(std::string_view said) {
  DamagedRows rows;
  for (uint64_t* number : {&rows.before, &rows.count}) {
    const char* end = std::from_chars(said.data(), said.data() + said.size(), *number).ptr;
    said.remove_prefix(static_cast<size_t>(end - said.data()));
    said.remove_prefix(std::min<size_t>(1, said.size()));
  }
  rows.what = said;
  return rows;
}
}  // namespace

std::string one_line(std::string_view said) {
  constexpr size_t kMaxShown = 200;
  std::string line(said.substr(0, said.find('\n')).substr(0, kMaxShown));
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return line;
}

ParquetProcess::ParquetProcess(const std::string& python) {
  std::array<int, 2> ends = {-1, -1};
  USER_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, "cannot make a socket: {}",
             std::strerror(errno));
  socket_ = ends[0];
  const int error = start(python, ends[1], pid_);
  ::close(ends[1]);
  if (error != 0) {
    pid_ = 0;
    why_not_ = std::strerror(error);
    return;
  }
  const std::string_view said = read_line();
  if (said == "r") return;
  why_not_ = said.starts_with("m") ? one_line(said.substr(1)) : "is no Python";
}

ParquetProcess::~ParquetProcess() {
  ::close(socket_);
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ParquetProcess::ask(const Json& request) {
  INTERNAL_CHECK(is_idle_);
  is_idle_ = false;
  const std::string line = request.dump() + "\n";
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t sent = ::send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return;  // it has ended, which who waits for the answer finds
    rest.remove_prefix(static_cast<size_t>(sent));
  }
}

bool ParquetProcess::read_more() {
  constexpr size_t kReadBytes = size_t{1} << 16;
  buffer_.erase(0, std::exchange(given_, 0));
  const size_t size = buffer_.size();
  buffer_.resize(size + kReadBytes);
  ssize_t got = -1;
  do got = ::recv(socket_, buffer_.data() + size, kReadBytes, 0);
  while (got < 0 && errno == EINTR);
  buffer_.resize(size + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return got > 0;
}

std::string_view ParquetProcess::read_line() {
  size_t searched = 0;  // behind what was given
  while (true) {
    const size_t end = buffer_.find('\n', given_ + searched);
    if (end != std::string::npos) {
      const std::string_view line = std::string_view(buffer_).substr(given_, end - given_);
      given_ = end + 1;
      return line;
    }
    searched = buffer_.size() - given_;
    if (searched > kMaxAnswerBytes || !read_more()) return {};
  }
}

std::string_view ParquetProcess::read_bytes(size_t count) {
  while (buffer_.size() - given_ < count)
    if (!read_more()) return {};
  const std::string_view bytes = std::string_view(buffer_).substr(given_, count);
  given_ += count;
  return bytes;
}

std::string_view ParquetProcess::answer(const std::string& name) {
  const std::string_view line = read_line();
  USER_CHECK(!line.empty() || buffer_.size() <= kMaxAnswerBytes, "{}: a row of more than {}, at most so much is read",
             name, human_bytes(kMaxAnswerBytes));
  USER_CHECK(!line.empty(), kEnded, name);
  if (line.starts_with('e')) {
    is_idle_ = true;
    user_error("{}: not readable as Parquet: {}", name, one_line(line.substr(1)));
  }
  return line;
}

Json ParquetProcess::layout(const std::string& name) {
  ask({{"path", name}});
  const std::string_view line = answer(name);
  USER_CHECK(line.starts_with('i'), "{}: not readable as Parquet: its reader said {}", name, in_quotes(line));
  is_idle_ = true;
  return parse_json(line.substr(1), name);
}

Json ParquetProcess::read_text(std::string_view size, const std::string& name) {
  size_t bytes = 0;
  const auto read = std::from_chars(size.data(), size.data() + size.size(), bytes);
  USER_CHECK(read.ec == std::errc() && read.ptr == size.data() + size.size(),
             "{}: not readable as Parquet: its reader said {}", name, in_quotes(size));
  USER_CHECK(bytes <= kMaxAnswerBytes, "{}: a row of {}, at most {} are read", name, human_bytes(bytes),
             human_bytes(kMaxAnswerBytes));
  const std::string_view text = read_bytes(bytes);
  USER_CHECK(text.size() == bytes, kEnded, name);
  return std::string(text);
}

void ParquetProcess::for_each_value(const std::string& name, const std::string& column, int group, uint64_t row,
                                    const std::function<void(uint64_t row, const Json& value)>& use) {
  ask({{"path", name}, {"column", column}, {"group", group}});
  for (const uint64_t first = row;; ++row) {
    const std::string_view line = answer(name);
    const std::string_view said = line.substr(1);
    if (line.starts_with('s')) {
      use(row, read_text(said, name));
      continue;
    }
    if (line.starts_with('v')) {
      use(row, parse_json(said, str("{}: row {}", name, row)));
      continue;
    }
    is_idle_ = true;
    if (line == ".") return;
    if (line.starts_with('n')) user_error("{}: row {}: {}", name, row, one_line(said));
    if (line.starts_with('d')) {
      const DamagedRows damaged = damaged_rows(said);
      user_error("{}: a row from {} to {} is damaged: {}", name, first + damaged.before,
                 first + damaged.before + damaged.count - 1, one_line(damaged.what));
    }
    is_idle_ = false;
    user_error("{}: not readable as Parquet: its reader said {}", name, in_quotes(line));
  }
}

std::unique_ptr<ParquetProcess> ParquetReaders::take(const std::string& name) {
  std::vector<std::string> pythons = pythons_;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto process = std::move(idle_.back());
      idle_.pop_back();
      return process;
    }
    if (!chosen_.empty()) pythons = {chosen_};
  }
  std::vector<std::string> tried;
  for (const std::string& python : pythons) {
    auto process = std::make_unique<ParquetProcess>(python);
    if (process->why_not().empty()) {
      const std::lock_guard lock(mutex_);
      chosen_ = python;
      return process;
    }
    tried.push_back(str("{}: {}", python, process->why_not()));
  }
  user_error(
      "{}: Parquet is read by a Python that has pyarrow, and there is none ({}); `pip install pyarrow` for one of "
      "them, "
      "name another in STEPC_PYTHON, or convert the column to .jsonl",
      name, fmt::join(tried, "; "));
}

void ParquetReaders::give_back(std::unique_ptr<ParquetProcess> process) {
  if (!process->is_idle()) return;
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(process));
}

}  // namespace stepc
