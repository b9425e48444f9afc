// report.html: what became of a run, in one file that needs no network. Curves, where the time and the memory went,
// planned beside measured, and the config that it was run with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/stats.h"
#include "train/report/rank_rows.h"

namespace stepc::train {

// Seconds of this process, each second in one place.
struct TimeSpent {
  double set_up = 0;  // model, data, recordings of earlier steps in metrics.jsonl
  double batches = 0;
  double steps = 0;
  double evaluation = 0;
  double saving = 0;  // what training waited for
  double total = 0;
};

struct SavesMade {
  int64_t count = 0;
  uint64_t bytes = 0;          // of the last one
  uint64_t staging_bytes = 0;  // the copy that is written while training goes on
  double staging_seconds = 0;  // the last stall for it
  double writing_seconds = 0;  // of the last one, in the background
};

struct Report {
  std::string title;  // the run's directory
  std::string model;  // "llama, 10.2 M parameters, ..."
  std::string data;
  std::string mode;
  int64_t steps = 0, tokens_per_step = 0;
  double least_step_seconds = 0;                          // every FLOP at the machine's matmul rate
  bool rate_is_of_a_step = false;                         // or the fastest step, where that was above it
  double step_seconds = 0;                                // median; 0: none was measured
  std::optional<Prediction> prediction;                   // of a step, where there is a plan
  std::optional<double> held_out_before, held_out_after;  // nats per byte
  TimeSpent time;
  SavesMade saves;
  Stats stats;
  uint64_t peak_process_bytes = 0;
  std::vector<RankRow> ranks;                // where there are several
  std::string memory_picture, memory_table;  // of fast mode's plan: SVG and text, else empty
  std::string choice;                        // why the ranks are spread so; empty: nobody searched
  std::string config;                        // run.toml
};

// `metrics`: the run's metrics.jsonl.
std::string report_html(const Report& report, const std::filesystem::path& metrics);

}  // namespace stepc::train
