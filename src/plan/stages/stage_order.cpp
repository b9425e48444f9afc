#include "plan/stages/stage_order.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"

namespace stepc {

namespace {

constexpr int64_t kMostOfEach = int64_t{1} << 20;  // stages, micro-batches

std::string to_text(const StagePass& pass) {
  return str("{}{}{}", pass.stage, pass.is_backward ? 'B' : 'F', pass.micro_batch);
}

StagePass parse_pass(std::string_view cell, size_t row) {
  StagePass pass;
  const char* const end = cell.data() + cell.size();
  const auto stage = std::from_chars(cell.data(), end, pass.stage);
  const bool has_letter = stage.ec == std::errc() && stage.ptr != end && (*stage.ptr == 'F' || *stage.ptr == 'B');
  if (has_letter) {
    pass.is_backward = *stage.ptr == 'B';
    const auto micro_batch = std::from_chars(stage.ptr + 1, end, pass.micro_batch);
    const auto is_number = [](int64_t number) { return 0 <= number && number < kMostOfEach; };
    if (micro_batch.ec == std::errc() && micro_batch.ptr == end && is_number(pass.stage) && is_number(pass.micro_batch))
      return pass;
  }
  user_error("row {} of the order has '{}'; a cell is stage, F or B, micro-batch, as in 0F3", row + 1, cell);
}

}  // namespace

StageOrder gpipe_order(int64_t ranks, int64_t micro_batches, int64_t chunks) {
  StageOrder order{ranks * chunks, micro_batches, {}};
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<StagePass>& row = order.passes.emplace_back();
    for (int64_t c = 0; c < chunks; ++c)
      for (int64_t m = 0; m < micro_batches; ++m) row.push_back({c * ranks + r, false, m});
    for (int64_t c = chunks; c-- > 0;)
      for (int64_t m = 0; m < micro_batches; ++m) row.push_back({c * ranks + r, true, m});
  }
  return order;
}

StageOrder one_forward_one_backward(int64_t ranks, int64_t micro_batches) {
  USER_CHECK(micro_batches >= ranks,
             "{} micro-batch{} for {} stages in the order \"1f1b\", which needs one a stage: train.grad_accum must be "
             "at least {}",
             micro_batches, micro_batches == 1 ? "" : "es", ranks, ranks);
  StageOrder order{ranks, micro_batches, {}};
  for (int64_t s = 0; s < ranks; ++s) {
    std::vector<StagePass>& row = order.passes.emplace_back();
    int64_t forward = 0;
    while (forward < ranks - s - 1) row.push_back({s, false, forward++});
    for (int64_t backward = 0; backward < micro_batches; ++backward) {
      if (forward < micro_batches) row.push_back({s, false, forward++});
      row.push_back({s, true, backward});
    }
  }
  return order;
}

StageOrder interleaved_order(int64_t ranks, int64_t micro_batches, int64_t chunks) {
  USER_CHECK(micro_batches % ranks == 0,
             "{} micro-batches on {} ranks of {} stages each, which take as many as there are ranks in turn: "
             "train.grad_accum can be {}",
             micro_batches, ranks, chunks, (micro_batches / ranks + 1) * ranks);
  StageOrder order{ranks * chunks, micro_batches, {}};
  const int64_t passes = micro_batches * chunks, turn = ranks * chunks;
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<StagePass>& row = order.passes.emplace_back();
    const auto pass = [&](int64_t number, bool is_backward) {
      const int64_t chunk = number % turn / ranks;
      return StagePass{(is_backward ? chunks - 1 - chunk : chunk) * ranks + r, is_backward,
                       number / turn * ranks + number % ranks};
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

StageOrder stage_order(const std::string& name, int64_t ranks, int64_t micro_batches, int64_t chunks) {
  if (name == "gpipe") return gpipe_order(ranks, micro_batches, chunks);
  if (name == "1f1b")
    return chunks == 1 ? one_forward_one_backward(ranks, micro_batches)
                       : interleaved_order(ranks, micro_batches, chunks);
  constexpr uint64_t kMostBytes = uint64_t{64} << 20;
  USER_CHECK(name.ends_with(".csv"), "the order \"{}\" is none; it is \"1f1b\", \"gpipe\" or a file that ends in .csv",
             name);
  StageOrder order = parse_stage_order(read_text(name, kMostBytes));
  USER_CHECK(order.ranks() == ranks, "{} has {} rows, and there are {} ranks: it has a row a rank", name, order.ranks(),
             ranks);
  USER_CHECK(order.stages == ranks * chunks, "{} has {} stages, and parallel.chunks = {} of {} ranks are {}", name,
             order.stages, chunks, ranks, ranks * chunks);
  USER_CHECK(order.micro_batches == micro_batches, "{} has {} micro-batches, and train.grad_accum is {}", name,
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
      USER_CHECK(pass.stage % order.ranks() == rank, "the order has {} in row {}, and stage {} is that of row {}",
                 to_text(pass), rank + 1, pass.stage, pass.stage % order.ranks() + 1);
      USER_CHECK(seen.insert(pass).second, "the order has {} twice", to_text(pass));
      USER_CHECK(!pass.is_backward || seen.contains({pass.stage, false, pass.micro_batch}),
                 "the order has {} before {}F{}", to_text(pass), pass.stage, pass.micro_batch);
    }
  for (int64_t s = 0; s < order.stages; ++s)
    for (const bool is_backward : {false, true})
      for (int64_t m = 0; m < order.micro_batches; ++m) {
        const StagePass pass{s, is_backward, m};
        USER_CHECK(seen.contains(pass), "the order has no {}: {} stages and {} micro-batches are {} passes",
                   to_text(pass), order.stages, order.micro_batches, 2 * order.stages * order.micro_batches);
      }
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
  return order;
}

int64_t live_micro_batches(const StageOrder& order, int64_t stage) {
  int64_t live = 0, most = 0;
  for (const StagePass& pass : order.passes.at(static_cast<size_t>(stage % order.ranks()))) {
    if (pass.stage != stage) continue;
    live += pass.is_backward ? -1 : 1;
    most = std::max(most, live);
  }
  return most;
}

}  // namespace stepc
