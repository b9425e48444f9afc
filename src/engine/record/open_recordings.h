// Recording until two recordings agree: the recordings of one kind of step that agreed with no other yet. Owns their
// traces.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "capture/recorder.h"
#include "ir/agree.h"
#include "ir/trace.h"

namespace stepc {

// Why a recording, or two, give no plan. An obstacle: they take the same path, but no trace can hold it.
struct Refusal {
  std::string reason;
  bool is_obstacle = false;
};

// The first obstacle of the recording, if it has one.
Refusal refusal_of(const Recording& recording);

// What the recordings agree on; none: `refusal` says why. `by_calls`: as agree_on_calls().
std::optional<Trace> agreed_trace(const Trace& before, const Trace& now, bool by_calls, Refusal& refusal);

class OpenRecordings {
 public:
  // What `now` and one of the recordings agree on, the latest first; that recording goes. None: `refusal` has the
  // reason of the last comparison, and is unchanged if there is no recording.
  std::optional<Trace> agree_with_one(const Trace& now, bool by_calls, Refusal& refusal);
  // Keeps a recording, and the latest few before it.
  void keep(Trace trace);
  // Whether the last two recordings met the same obstacle: the next one will meet it too, while another branch may not.
  bool meets_again(const Refusal& refusal);
  void clear();

  const std::vector<Trace>& traces() const { return traces_; }
  const std::string& last_obstacle() const { return last_obstacle_; }
  void set_obstacle(std::string obstacle) { last_obstacle_ = std::move(obstacle); }

 private:
  std::vector<Trace> traces_;
  std::string last_obstacle_;
};

}  // namespace stepc
