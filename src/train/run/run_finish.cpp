// How a run ends: complete, stopped by a signal, or at a value that is not finite.
#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensors.h"
#include "train/config/run_config_keys.h"
#include "train/machine/signals.h"
#include "train/model/model_directory.h"
#include "train/model/sample.h"
#include "train/report/rank_rows.h"
#include "train/report/run_tables.h"
#include "train/run/run.h"
#include "train/step/local_learner.h"

namespace stepc::train {

// The step has changed the weights. They are computed again, from the newest checkpoint or the start, and the batch is
// checked op by op.
std::string Run::first_nonfinite() {
  constexpr double kPatienceSeconds = 120;
  const Progress::Phase phase(progress_, "looking for the first value that is not finite");
  const auto began = Clock::now();
  const int64_t bad_step = step_ - 1;
  is_undone_ = true;
  const auto checkpoint = find_latest_checkpoint(directory_.path());
  if (checkpoint) {
    learner_->restore(checkpoint->directory);
  } else {
    at::manual_seed(static_cast<uint64_t>(config_.train.seed));
    learner_->restore_fresh(config_.model.path, config_);
  }
  for (int64_t step = checkpoint ? checkpoint->state.step : 0; step < bad_step; ++step) {
    if (agree(seconds_since(began) > kPatienceSeconds ? 1 : 0) != 0)
      return str("the first value that is not finite was not found in {}", human_seconds(kPatienceSeconds));
    learner_->step(batches_.of_step(step), learning_rate_at(config_, step));
  }
  const auto found = learner_->find_nonfinite_in(batches_.of_step(bad_step));
  return found ? "first not finite: " + *found
               : std::string("the gradient's sum is the first value that is not finite");
}

std::vector<RankRow> Run::rank_rows() {
  if (ranks_ == nullptr) return {};
  const auto steps = static_cast<double>(std::max<int64_t>(1, steps_taken_));
  const Stats stats = learner_->stats();
  return gather_rows(*ranks_,
                     {.step_seconds = step_times_.overall(),
                      .comm_seconds = step_traffic_.seconds / steps,
                      .batch_seconds = spent_.batches / steps,
                      .sent_bytes = static_cast<uint64_t>(static_cast<double>(step_traffic_.sent_bytes) / steps),
                      .planned_bytes = stats.planned_peak_bytes,
                      .measured_bytes = stats.measured_peak_bytes,
                      .process_bytes = peak_process_bytes()});
}

int Run::stop(int signal) {
  save_now();
  if (snapshots_) snapshots_->remove();
  const std::string where = saver_->saved_step() > 0
                                ? str("step {} is saved, continue with --resume", saver_->saved_step())
                                : std::string("before the first step, nothing to save");
  progress_.note(str("stopped by {}: {}", signal_name(signal), where));
  return StopSignals::exit_code(signal);
}

std::string Run::sample_text() {
  if (config_.output.sample_tokens == 0) return {};
  const std::string prompt = held_out_prompt(learner_->directory().tokenizer, corpus_);
  const SampleOptions options{.tokens = config_.output.sample_tokens,
                              .seed = static_cast<uint64_t>(config_.train.seed)};
  const std::string continuation = learner_->sample(prompt, options).text;
  return str("sample, held-out text continued after \"|\":\n{}|{}\n", printable(prompt), printable(continuation));
}

void Run::finish() {
  const std::optional<double> after = evaluate_held_out();
  save_now();
  if (snapshots_) snapshots_->remove();
  enter("finishing");
  const std::vector<RankRow> rows = rank_rows();
  const std::string sample =
      after ? progress_.during("writing a sample", [&] { return sample_text(); }) : std::string();
  if (!is_first_) return;
  std::optional<Progress::Phase> phase(std::in_place, progress_, "writing the model");
  DirectoryTransaction model(directory_.model(), DirectoryTransaction::Existing::kReplace, files_);
  const auto max_shard_bytes = static_cast<uint64_t>(config_.output.max_shard_gb * kBytesPerGb);
  if (ranks_ == nullptr)
    write_trained_files(model.path(), learner_->directory(), made_of(learner_->weights()), max_shard_bytes, files_);
  else  // no rank has it all; the checkpoint has, and nothing is asked of the other ranks
    export_model(open_model_directory(saver_->saved_directory()), model.path(), max_shard_bytes, files_);
  model.commit();
  phase.reset();
  remove_abandoned(directory_.path(), files_);

  EndOfRun end;
  end.steps = step_;
  end.seconds = seconds_since(began_);
  end.step_seconds = step_times_.overall();
  end.held_out_before = metrics_->find(0, kHeldOut);
  end.held_out_after = after;
  write_file_synced(directory_.report(), report_html(report_of(end, rows), directory_.metrics()), files_);
  const auto told = prediction_ ? std::optional(numbers_.told(*prediction_)) : std::nullopt;
  progress_.note(str("\n{}{}{}", learner_->report(told), end_table(end, numbers_), to_text(rows)));
  if (planned_.step > 0 && loaded_bytes_ > 0)
    progress_.note(str("  resident memory     {} before the first step, and the plan's {}: {}; at most {}",
                       human_bytes(loaded_bytes_), human_bytes(planned_.step),
                       human_bytes(loaded_bytes_ + planned_.step), human_bytes(peak_process_bytes())));
  if (snapshots_ && snapshots_->made().count > 0) progress_.note(to_text(snapshots_->made()));
  if (!sample.empty()) progress_.note(sample);
  if (!profile_.empty()) progress_.note("profile: none, the run had too few replayed steps");
  progress_.note(str("report: {}", directory_.report().string()));
  progress_.note(str("model: {}", directory_.model().string()));
}

Report Run::report_of(const EndOfRun& end, const std::vector<RankRow>& rows) const {
  const models::DecoderConfig& model = learner_->directory().config;
  Report report;
  report.title = config_.output.dir;
  report.model = str("{}, {} parameters, {} layers, hidden size {}, vocabulary {}; {}", model.model_type,
                     human_count(static_cast<double>(numbers_.parameters)), model.num_hidden_layers, model.hidden_size,
                     model.vocab_size, config_.model.compute);
  report.data =
      str("{} tokens trained on, {:.2f} epochs", human_count(static_cast<double>(numbers_.tokens)), numbers_.epochs);
  report.mode = config_.train.mode;
  report.steps = end.steps;
  report.tokens_per_step = numbers_.tokens_per_step;
  report.least_step_seconds = numbers_.least_step_seconds;
  report.rate_is_of_a_step = numbers_.rate_is_of_a_step;
  report.step_seconds = end.step_seconds;
  if (prediction_) report.prediction = numbers_.told(*prediction_);
  report.held_out_before = end.held_out_before;
  report.held_out_after = end.held_out_after;
  report.time = spent_;
  report.time.total = end.seconds;
  report.saves = saver_->made();
  report.stats = learner_->stats();
  report.peak_process_bytes = peak_process_bytes();
  report.ranks = rows;
  report.memory_picture = learner_->memory_picture();
  report.memory_table = learner_->memory_table();
  report.choice = choice_;
  report.config = to_toml(config_);
  return report;
}

}  // namespace stepc::train
