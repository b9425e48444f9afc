#include "plan/stream_times.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace stepc {

namespace {

// A task that has begun: `left` seconds of it alone, since `at`, each of which takes `slowdown`.
struct Running {
  size_t task = 0;
  double left = 0, at = 0, slowdown = 1;
  [[nodiscard]] double end() const { return at + left * slowdown; }
};

class Streams {
 public:
  Streams(std::span<const StreamTask> tasks, double begin) : tasks_(tasks), begin_(begin), times_(tasks.size()) {
    has_ended_.resize(tasks.size(), false);
    for (size_t t = 0; t < tasks.size(); ++t) {
      if (tasks[t].after) INTERNAL_CHECK(*tasks[t].after < t, "task {} after {}", t, *tasks[t].after);
      queues_[tasks[t].stream].tasks.push_back(t);
    }
  }

  std::vector<StreamTime> run() {
    while (true) {
      begin_what_can();
      const auto first = std::ranges::min_element(running_, {}, &Running::end);
      if (first == running_.end()) return std::move(times_);
      end(first);
    }
  }

 private:
  struct Queue {
    std::vector<size_t> tasks;
    size_t next = 0;
  };

  void begin_what_can() {
    for (auto& [stream, queue] : queues_) {
      if (queue.next == queue.tasks.size()) continue;
      const size_t t = queue.tasks[queue.next];
      const StreamTask& task = tasks_[t];
      const bool is_first = queue.next == 0;
      if (!is_first && !has_ended_[queue.tasks[queue.next - 1]]) continue;
      if (task.after && !has_ended_[*task.after]) continue;
      double& begin = times_[t].begin_seconds;
      begin = is_first ? begin_ : times_[queue.tasks[queue.next - 1]].end_seconds;
      if (task.after) begin = std::max(begin, times_[*task.after].end_seconds);
      running_.push_back({t, task.seconds, begin});
      ++queue.next;
      if (task.link) share(*task.link, begin);
    }
  }

  void end(std::vector<Running>::iterator ended) {
    const size_t t = ended->task;
    const double now = times_[t].end_seconds = ended->end();
    has_ended_[t] = true;
    running_.erase(ended);
    if (tasks_[t].link) share(*tasks_[t].link, now);
  }

  // What is on the link changes.
  void share(size_t link, double now) {
    const auto share_of = [&](const Running& one) {
      return tasks_[one.task].link == link ? tasks_[one.task].link_share : 0;
    };
    double load = 0;
    for (const Running& one : running_) load += share_of(one);
    for (Running& one : running_) {
      const double share = share_of(one), slowdown = 1 + share * (load - share);
      if (tasks_[one.task].link != link || one.slowdown == slowdown) continue;
      one.left -= (now - one.at) / one.slowdown;
      one.at = now;
      one.slowdown = slowdown;
    }
  }

  std::span<const StreamTask> tasks_;
  double begin_;
  std::vector<StreamTime> times_;
  std::vector<bool> has_ended_;
  std::map<uint32_t, Queue> queues_;
  std::vector<Running> running_;  // one a stream at most
};

}  // namespace

std::vector<StreamTime> stream_times(std::span<const StreamTask> tasks, double begin_seconds) {
  return Streams(tasks, begin_seconds).run();
}

}  // namespace stepc
