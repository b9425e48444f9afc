// stream_times(): when tasks on streams begin and end, where exchanges that go on at the same time share a link. A pure
// function of plain numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stepc {

struct StreamTask {
  uint32_t stream = 0;
  double seconds = 0;                // alone
  std::optional<size_t> after = {};  // begins once that earlier task, of another stream, has ended too
  // Of an exchange: the link that it loads most, and the share of its seconds in which it does.
  std::optional<size_t> link = {};
  double link_share = 0;
};

struct StreamTime {
  double begin_seconds = 0, end_seconds = 0;
  bool operator==(const StreamTime&) const = default;
};

// Each task begins at `begin_seconds` at the earliest, and when the task before it on its stream has ended. Exchanges
// that load one link at the same time share its rate (processor sharing; Kleinrock: Time-shared systems, 1967): one
// whose bytes are a share s of its time, beside others with shares that add up to r, takes 1 + s r times as long.
//
//     stream 0   ---- a 2 s ----
//     stream 1        -- b 1 s --      both on one link, b after 1 s: a ends at 3 s, b at 3 s
//
// Times are exact sums of the tasks' seconds where nothing is shared. Results are in the order of `tasks`.
std::vector<StreamTime> stream_times(std::span<const StreamTask> tasks, double begin_seconds);

}  // namespace stepc
