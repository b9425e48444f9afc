// Every number that follows from a run's config, its model, its data and this machine; the table that shows them before
// the first step, and the one that shows what came of them after the last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/corpus.h"
#include "engine/prediction.h"
#include "models/decoder_config.h"
#include "train/config/run_config.h"
#include "train/machine/matmul_rate.h"

namespace stepc::train {

struct RunNumbers {
  int64_t parameters = 0;
  int64_t samples_per_step = 0;    // sequences
  int64_t tokens_per_step = 0;     // with buckets the mean, padding left out
  int64_t tokens = 0;              // of the whole run
  double epochs = 0;               // of the data source that is seen most often
  double flops_per_step = 0;       // 6 a matmul weight and token, and causal attention
  double matmul_flops_rate = 0;    // of all ranks, measured, operations a second
  double default_flops_rate = 0;   // what default rates take for that; 0: nothing of the run's dtype
  double least_step_seconds = 0;   // at that rate
  bool rate_is_of_a_step = false;  // a step was faster than that: its rate is the measure now

  // A step that was run as planned. What a machine does on large matrices alone, measured once while it may have been
  // busy, can be less than what it does in a step.
  void note_step(double seconds);
  // Of the best rate that was seen, in (0, 1]; a step without a measured time is the first.
  [[nodiscard]] double mfu(double step_seconds) const;
  // As it is told: default rates are scaled by how fast matmuls were measured to be, and no step takes less than the
  // least.
  [[nodiscard]] Prediction told(Prediction prediction) const;
};

// `ranks`: how many compute a step together, each at this rate.
RunNumbers derive_numbers(const RunConfig& config, const models::DecoderConfig& model, const Corpus& corpus,
                          const RunRate& rate, int64_t ranks = 1);

// The one statement about the time of a step before the first: "predicted: 41.20 ms a step, at least 30.10 ms; ...".
std::string step_time_text(const RunNumbers& numbers, const std::optional<Prediction>& prediction);

// `config.train.threads` is resolved.
std::string start_table(const RunConfig& config, const models::DecoderConfig& model, const Corpus& corpus,
                        const RunNumbers& numbers);

struct EndOfRun {
  int64_t steps = 0;
  double seconds = 0;       // of this process
  double step_seconds = 0;  // median, recordings left out; 0 where no step was measured
  std::optional<double> held_out_before = {};
  std::optional<double> held_out_after = {};  // nats per byte; neither where nothing is held out
};
std::string end_table(const EndOfRun& end, const RunNumbers& numbers);

}  // namespace stepc::train
