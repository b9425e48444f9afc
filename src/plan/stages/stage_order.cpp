#include "plan/stages/stage_order.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"

namespace stepc {

using Kind = StagePass::Kind;

namespace {

constexpr int64_t kMostOfEach = int64_t{1} << 20;  // stages, micro-batches

constexpr std::string_view kLetters = "FBIW";  // of kinds

std::string to_text(const StagePass& pass) {
  return str("{}{}{}", pass.stage, kLetters[static_cast<size_t>(pass.kind)], pass.micro_batch);
}

StagePass parse_pass(std::string_view cell, size_t row) {
  StagePass pass;
  const char* const end = cell.data() + cell.size();
  const auto stage = std::from_chars(cell.data(), end, pass.stage);
  const size_t letter =
      stage.ec == std::errc() && stage.ptr != end ? kLetters.find(*stage.ptr) : std::string_view::npos;
  if (letter != std::string_view::npos) {
    pass.kind = static_cast<StagePass::Kind>(letter);
    const auto micro_batch = std::from_chars(stage.ptr + 1, end, pass.micro_batch);
    const auto is_number = [](int64_t number) { return 0 <= number && number < kMostOfEach; };
    if (micro_batch.ec == std::errc() && micro_batch.ptr == end && is_number(pass.stage) && is_number(pass.micro_batch))
      return pass;
  }
  user_error("row {} of the order has '{}'; a cell is stage, F, B, I or W, micro-batch, as in 0F3", row + 1, cell);
}

void check_one_a_rank(std::string_view name, int64_t ranks, int64_t micro_batches) {
  USER_CHECK(micro_batches >= ranks,
             "{} micro-batch{} for {} stages in the order \"{}\", which needs one a stage: micro_batches must be at "
             "least {}",
             micro_batches, micro_batches == 1 ? "" : "es", ranks, name, ranks);
}

// A row that is written pass by pass, each the next micro-batch of its stage.
class RowWriter {
 public:
  RowWriter(int64_t micro_batches, std::vector<StagePass>& row) : micro_batches_(micro_batches), row_(row) {}
  void add(int64_t stage, Kind kind) {
    const int64_t next = next_[{stage, kind}]++;
    if (kind == Kind::kBackward) ++next_[{stage, Kind::kInputs}], ++next_[{stage, Kind::kWeights}];
    if (kind == Kind::kInputs) ++next_[{stage, Kind::kBackward}];
    if (next < micro_batches_) row_.push_back({stage, kind, next});
  }
  [[nodiscard]] int64_t count(int64_t stage, Kind kind) { return next_[{stage, kind}]; }

 private:
  int64_t micro_batches_;
  std::vector<StagePass>& row_;
  std::map<std::pair<int64_t, Kind>, int64_t> next_;
};

}  // namespace

StageOrder gpipe_order(int64_t ranks, int64_t micro_batches, int64_t chunks) {
  StageOrder order{ranks * chunks, micro_batches, {}};
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<StagePass>& row = order.passes.emplace_back();
    for (int64_t c = 0; c < chunks; ++c)
      for (int64_t m = 0; m < micro_batches; ++m) row.push_back({c * ranks + r, Kind::kForward, m});
    for (int64_t c = chunks; c-- > 0;)
      for (int64_t m = 0; m < micro_batches; ++m) row.push_back({c * ranks + r, Kind::kBackward, m});
  }
  return order;
}

StageOrder one_forward_one_backward(int64_t ranks, int64_t micro_batches) {
  check_one_a_rank("1f1b", ranks, micro_batches);
  StageOrder order{ranks, micro_batches, {}};
  for (int64_t s = 0; s < ranks; ++s) {
    std::vector<StagePass>& row = order.passes.emplace_back();
    int64_t forward = 0;
    while (forward < ranks - s - 1) row.push_back({s, Kind::kForward, forward++});
    for (int64_t backward = 0; backward < micro_batches; ++backward) {
      if (forward < micro_batches) row.push_back({s, Kind::kForward, forward++});
      row.push_back({s, Kind::kBackward, backward});
    }
  }
  return order;
}

StageOrder interleaved_order(int64_t ranks, int64_t micro_batches, int64_t chunks) {
  USER_CHECK(micro_batches % ranks == 0,
             "{} micro-batches on {} ranks of {} stages each, which take as many as there are ranks in turn: "
             "micro_batches can be {}",
             micro_batches, ranks, chunks, (micro_batches / ranks + 1) * ranks);
  StageOrder order{ranks * chunks, micro_batches, {}};
  const int64_t passes = micro_batches * chunks, turn = ranks * chunks;
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<StagePass>& row = order.passes.emplace_back();
    const auto pass = [&](int64_t number, bool is_backward) {
      const int64_t chunk = number % turn / ranks;
      return StagePass{(is_backward ? chunks - 1 - chunk : chunk) * ranks + r,
                       is_backward ? Kind::kBackward : Kind::kForward, number / turn * ranks + number % ranks};
    };
    int64_t forward = 0;
    const int64_t ahead = std::min(passes, 2 * (ranks - r - 1) + (chunks - 1) * ranks);
    while (forward < ahead) row.push_back(pass(forward++, false));
    for (int64_t backward = 0; backward < passes; ++backward) {
      if (forward < passes) row.push_back(pass(forward++, false));
      row.push_back(pass(backward, true));
    }
  }
  return order;
}

StageOrder zero_bubble_h1(int64_t ranks, int64_t micro_batches) {
  check_one_a_rank("zb-h1", ranks, micro_batches);
  StageOrder order{ranks, micro_batches, {}};
  for (int64_t r = 0; r < ranks; ++r) {
    RowWriter row(micro_batches, order.passes.emplace_back());
    for (int64_t ahead = 0; ahead < ranks - r - 1; ++ahead) row.add(r, Kind::kForward);
    for (int64_t backward = 0; backward < micro_batches; ++backward) {
      row.add(r, Kind::kForward);
      row.add(r, Kind::kInputs);
      if (backward >= r) row.add(r, Kind::kWeights);
    }
    while (row.count(r, Kind::kWeights) < micro_batches) row.add(r, Kind::kWeights);
  }
  return order;
}

// As torch.distributed.pipelining's ScheduleZBVZeroBubble: of at least 2 ranks - 1 micro-batches, those that there are.
StageOrder zero_bubble_v(int64_t ranks, int64_t micro_batches) {
  StageOrder order{2 * ranks, micro_batches, {}, /*is_v=*/true};
  const int64_t wanted = std::max(2 * ranks - 1, micro_batches);
  for (int64_t r = 0; r < ranks; ++r) {
    RowWriter row(micro_batches, order.passes.emplace_back());
    const int64_t down = r, up = 2 * ranks - 1 - r;
    for (int64_t i = 0; i < 2 * (ranks - r) - 1; ++i) row.add(down, Kind::kForward);
    for (int64_t i = 0; i < r; ++i) {
      row.add(up, Kind::kForward);
      row.add(down, Kind::kForward);
    }
    const auto whole_backward = [&](int64_t stage) {
      row.add(stage, Kind::kInputs);
      row.add(stage, Kind::kWeights);
    };
    for (int64_t i = 0; i < ranks - r; ++i) {
      row.add(up, Kind::kForward);
      whole_backward(up);
    }
    while (row.count(up, Kind::kForward) < row.count(down, Kind::kForward) ||
           row.count(down, Kind::kForward) < wanted) {
      if (row.count(down, Kind::kForward) < wanted) row.add(down, Kind::kForward);
      whole_backward(down);
      row.add(up, Kind::kForward);
      whole_backward(up);
    }
    for (int64_t i = 0; i < r; ++i) {
      row.add(down, Kind::kInputs);
      row.add(up, Kind::kInputs);
    }
    for (int64_t i = 0; i < ranks - r; ++i) whole_backward(down);
    while (row.count(up, Kind::kWeights) < wanted) row.add(up, Kind::kWeights);
    while (row.count(down, Kind::kWeights) < wanted) row.add(down, Kind::kWeights);
  }
  return order;
}

// As torch.distributed.pipelining's ScheduleDualPipeV; what is side by side there stands one after the other here.
StageOrder dual_pipe_v(int64_t ranks, int64_t micro_batches) {
  USER_CHECK(
      micro_batches >= 2 * ranks,
      "{} micro-batches for {} stages in the order \"dualpipe-v\", which needs one a stage: micro_batches must be "
      "at least {}",
      micro_batches, 2 * ranks, 2 * ranks);
  StageOrder order{2 * ranks, micro_batches, {}, /*is_v=*/true};
  for (int64_t r = 0; r < ranks; ++r) {
    RowWriter row(micro_batches, order.passes.emplace_back());
    const int64_t down = r, up = 2 * ranks - 1 - r;
    std::deque<int64_t> waiting;  // stages whose passes for weights are still to come
    const auto inputs = [&](int64_t stage) {
      row.add(stage, Kind::kInputs);
      waiting.push_back(stage);
    };
    const auto weights = [&] {
      if (waiting.empty()) return;
      row.add(waiting.front(), Kind::kWeights);
      waiting.pop_front();
    };
    for (int64_t i = 0; i < 2 * (ranks - r - 1); ++i) row.add(down, Kind::kForward);
    for (int64_t i = 0; i < r + 1; ++i) {
      row.add(down, Kind::kForward);
      row.add(up, Kind::kForward);
    }
    for (int64_t i = 0; i < ranks - r - 1; ++i) {
      inputs(up);
      weights();
      row.add(up, Kind::kForward);
    }
    for (int64_t i = 0; i < micro_batches - 2 * ranks + r + 1; ++i) {
      row.add(down, Kind::kForward);
      row.add(up, Kind::kBackward);
      row.add(up, Kind::kForward);
      row.add(down, Kind::kBackward);
    }
    for (int64_t i = 0; i < ranks - r - 1; ++i) {
      row.add(up, Kind::kBackward);
      row.add(up, Kind::kForward);
      row.add(down, Kind::kBackward);
    }
    bool waits = false;
    const auto backward = [&](int64_t stage) { waits ? inputs(stage) : row.add(stage, Kind::kBackward); };
    for (int64_t i = 0; i < r + 1; ++i) {
      waits |= i == (r + 1) / 2 && r % 2 == 1;
      backward(up);
      waits |= i == (r + 1) / 2 && r % 2 == 0;
      backward(down);
    }
    for (int64_t i = 0; i < ranks - r - 1; ++i) {
      weights();
      inputs(down);
    }
    while (!waiting.empty()) weights();
  }
  return order;
}

std::optional<int64_t> chunks_of(const std::string& name) {
  if (name == "zb-h1") return 1;
  if (name == "zb-v" || name == "dualpipe-v") return 2;
  return std::nullopt;
}

StageOrder stage_order(const std::string& name, int64_t ranks, int64_t micro_batches, int64_t chunks) {
  if (name == "gpipe") return gpipe_order(ranks, micro_batches, chunks);
  if (name == "1f1b")
    return chunks == 1 ? one_forward_one_backward(ranks, micro_batches)
                       : interleaved_order(ranks, micro_batches, chunks);
  if (const auto own = chunks_of(name)) {
    USER_CHECK(chunks == 1 || chunks == *own,
               "the order \"{}\" has {} stage{} a rank, and parallel.chunks is {}: leave it out", name, *own,
               *own == 1 ? "" : "s", chunks);
    return name == "zb-h1"  ? zero_bubble_h1(ranks, micro_batches)
           : name == "zb-v" ? zero_bubble_v(ranks, micro_batches)
                            : dual_pipe_v(ranks, micro_batches);
  }
  constexpr uint64_t kMostBytes = uint64_t{64} << 20;
  USER_CHECK(name.ends_with(".csv"),
             "the order \"{}\" is none; it is \"1f1b\", \"gpipe\", \"zb-h1\", \"zb-v\", \"dualpipe-v\" or a file "
             "that ends in .csv",
             name);
  StageOrder order = parse_stage_order(read_text(name, kMostBytes));
  USER_CHECK(order.ranks() == ranks, "{} has {} rows, and there are {} ranks: it has a row a rank", name, order.ranks(),
             ranks);
  USER_CHECK(order.stages == ranks * chunks, "{} has {} stages, and parallel.chunks = {} of {} ranks are {}", name,
             order.stages, chunks, ranks, ranks * chunks);
  USER_CHECK(order.micro_batches == micro_batches, "{} has {} micro-batches, and micro_batches is {}", name,
             order.micro_batches, micro_batches);
  verify(order);
  return order;
}

void verify(const StageOrder& order) {
  std::set<StagePass> seen;
  for (int64_t rank = 0; rank < order.ranks(); ++rank)
    for (const StagePass& pass : order.passes[static_cast<size_t>(rank)]) {
      USER_CHECK(pass.stage < order.stages && pass.micro_batch < order.micro_batches, "the order has {}",
                 to_text(pass));
      USER_CHECK(order.rank_of(pass.stage) == rank, "the order has {} in row {}, and stage {} is that of row {}",
                 to_text(pass), rank + 1, pass.stage, order.rank_of(pass.stage) + 1);
      USER_CHECK(seen.insert(pass).second, "the order has {} twice", to_text(pass));
      const auto needs = [&](Kind kind) {
        const StagePass before{pass.stage, kind, pass.micro_batch};
        USER_CHECK(seen.contains(before), "the order has {} before {}", to_text(pass), to_text(before));
      };
      if (pass.kind == Kind::kBackward || pass.kind == Kind::kInputs) needs(Kind::kForward);
      if (pass.kind == Kind::kWeights) needs(Kind::kInputs);
    }
  for (int64_t s = 0; s < order.stages; ++s)
    for (int64_t m = 0; m < order.micro_batches; ++m) {
      const auto has = [&](Kind kind) { return seen.contains({s, kind, m}); };
      const auto misses = [&](Kind kind) {
        user_error(
            "the order has no {}: {} stages and {} micro-batches are {} forward passes and as many backward ones",
            to_text(StagePass{s, kind, m}), order.stages, order.micro_batches, order.stages * order.micro_batches);
      };
      if (!has(Kind::kForward)) misses(Kind::kForward);
      if (!has(Kind::kBackward) && !has(Kind::kInputs)) misses(Kind::kBackward);
      USER_CHECK(!has(Kind::kBackward) || !has(Kind::kInputs), "the order has {} and {}, which are the same pass",
                 to_text(StagePass{s, Kind::kBackward, m}), to_text(StagePass{s, Kind::kInputs, m}));
      if (has(Kind::kInputs) && !has(Kind::kWeights)) misses(Kind::kWeights);
    }
}

bool StageOrder::splits_backward() const {
  for (const std::vector<StagePass>& row : passes)
    for (const StagePass& pass : row)
      if (pass.kind == StagePass::Kind::kWeights) return true;
  return false;
}

std::string to_csv(const StageOrder& order) {
  std::string csv;
  for (const std::vector<StagePass>& row : order.passes) {
    std::vector<std::string> cells;
    for (const StagePass& pass : row) cells.push_back(to_text(pass));
    csv += str("{}\n", fmt::join(cells, ","));
  }
  return csv;
}

StageOrder parse_stage_order(std::string_view csv) {
  StageOrder order{0, 0, {}};
  for (const std::string& line : split(csv, '\n')) {
    if (trim(line).empty()) continue;
    std::vector<StagePass>& row = order.passes.emplace_back();
    for (const std::string& part : split(line, ',')) {
      const std::string_view cell = trim(part);
      if (cell.empty()) continue;  // a rank that waits
      const StagePass pass = parse_pass(cell, order.passes.size() - 1);
      order.stages = std::max(order.stages, pass.stage + 1);
      order.micro_batches = std::max(order.micro_batches, pass.micro_batch + 1);
      row.push_back(pass);
    }
  }
  USER_CHECK(!order.passes.empty(), "the order is empty; it has a row a rank, as in 0F0,0B0");
  // In a V the first rank has the last stage too.
  const auto is_last = [&](const StagePass& pass) { return pass.stage == order.stages - 1; };
  order.is_v = order.ranks() > 1 && order.stages == 2 * order.ranks() && std::ranges::any_of(order.passes[0], is_last);
  return order;
}

int64_t live_micro_batches(const StageOrder& order, int64_t stage) {
  int64_t live = 0, most = 0;
  for (const StagePass& pass : order.passes.at(static_cast<size_t>(order.rank_of(stage)))) {
    if (pass.stage != stage) continue;
    live += pass.kind == Kind::kForward ? 1 : pass.ends() ? -1 : 0;
    most = std::max(most, live);
  }
  return most;
}

}  // namespace stepc
