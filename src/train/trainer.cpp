#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "base/check.h"
#include "data/corpus.h"
#include "train/batches.h"
#include "train/evaluate.h"
#include "train/learner.h"
#include "train/log_lines.h"
#include "train/machine.h"
#include "train/metrics.h"
#include "train/pace.h"
#include "train/progress.h"
#include "train/resume.h"
#include "train/run_data.h"
#include "train/run_directory.h"
#include "train/run_tables.h"
#include "train/sample.h"
#include "train/signals.h"

namespace stepc::train {
namespace {

constexpr const char* kHeldOut = "held_out_nats_per_byte";

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Run {
 public:
  Run(RunConfig config, bool resume);
  int run();

 private:
  Corpus read_data();
  void resume_from(const Checkpoint& checkpoint);
  void take_step();
  void show_step(const StepResult& result, double lr, double seconds);
  double evaluate_held_out();
  void save();
  int stop(int signal);
  void finish();

  RunConfig config_;
  Progress progress_;
  LogLines log_lines_;
  RunDirectory directory_;
  Learner learner_;
  Corpus corpus_;
  TrainBatches batches_;
  RunNumbers numbers_;
  std::optional<Metrics> metrics_;
  Pace pace_;
  Clock::time_point began_ = Clock::now();
  int64_t step_ = 0;        // steps done
  int64_t saved_step_ = 0;  // steps of the newest checkpoint
};

RunConfig resolved(RunConfig config) {
  if (config.train.threads == 0) config.train.threads = at::get_num_threads();
  at::set_num_threads(static_cast<int>(config.train.threads));
  return config;
}

// Training goes on from the checkpoint's own model files.
ModelDirectory start_directory(const RunConfig& config, const RunDirectory& directory) {
  const auto& checkpoint = directory.checkpoint();
  ModelDirectory model =
      open_model_directory(checkpoint ? checkpoint->directory : std::filesystem::path(config.model.path));
  USER_CHECK(config.data.seq_len <= model.config.max_position_embeddings,
             "data.seq_len = {}: must be at most {}, max_position_embeddings of {}", config.data.seq_len,
             model.config.max_position_embeddings, model.path.string());
  return model;
}

RunNumbers measured_numbers(const RunConfig& config, const models::DecoderConfig& model, const Corpus& corpus) {
  constexpr int64_t kSide = 1024;
  const double rate = measure_matmul_rate(models::scalar_type(config.model.compute),
                                          {{kSide, kSide, kSide}, {2 * kSide, kSide, kSide}});
  return derive_numbers(config, model, corpus, rate);
}

Run::Run(RunConfig config, bool resume)
    : config_(resolved(std::move(config))),
      progress_(stdout, terminal_columns(stdout), config_.output.log_every),
      log_lines_(progress_),
      directory_(config_.output.dir, resume),
      learner_(start_directory(config_, directory_), config_),
      corpus_(read_data()),
      batches_(corpus_, config_.train.grad_accum, config_.train.batch_size),
      numbers_(measured_numbers(config_, learner_.directory().config, corpus_)) {
  torch::manual_seed(static_cast<uint64_t>(config_.train.seed));
  progress_.note(start_table(config_, learner_.directory().config, corpus_, numbers_));
  const auto& checkpoint = directory_.checkpoint();
  if (checkpoint) resume_from(*checkpoint);
  if (resume && !checkpoint) progress_.note("no checkpoint to resume from: starting at step 0");
  metrics_.emplace(directory_.metrics().string(), checkpoint ? step_ : -1);
}

Corpus Run::read_data() {
  DataEvents events;
  events.tokenizing = [this](uint64_t done, uint64_t total) {
    progress_.status(str("tokenising: {} of {}", human_bytes(done), human_bytes(total)));
  };
  events.waiting = [this] { progress_.note("another process is tokenising for the same cache: waiting for it"); };
  return read_corpus(config_, learner_.directory(), std::move(events));
}

void Run::resume_from(const Checkpoint& checkpoint) {
  for (const std::string& change : check_resumed_config(checkpoint.directory, config_)) progress_.note(change);
  USER_CHECK(
      checkpoint.state.data_hash == corpus_.mixture().hash(),
      "{} was made with other data, or with another part of it held out; give that, or choose another output.dir",
      checkpoint.directory.string());
  learner_.load_optimizer(checkpoint.directory);
  step_ = saved_step_ = checkpoint.state.step;
  progress_.note(str("resumed from {} at step {}", checkpoint.directory.string(), step_));
}

int Run::run() {
  const StopSignals signals;
  if (directory_.finished() && step_ >= config_.train.steps) {
    progress_.note(
        str("finished already: {} has step {} of {}", directory_.model().string(), step_, config_.train.steps));
    return 0;
  }
  if (step_ == 0) {
    progress_.note(str("held-out loss before training: {:.4f} nats per byte", evaluate_held_out()));
  }
  while (step_ < config_.train.steps) {
    if (const int signal = StopSignals::received()) return stop(signal);
    take_step();
    const bool last = step_ == config_.train.steps;
    if (!last && config_.output.eval_every > 0 && step_ % config_.output.eval_every == 0) {
      progress_.note(str("held-out loss at step {}: {:.4f} nats per byte", step_, evaluate_held_out()));
    }
    if (!last && config_.output.save_every > 0 && step_ % config_.output.save_every == 0) save();
  }
  if (const int signal = StopSignals::received()) return stop(signal);
  finish();
  return 0;
}

void Run::take_step() {
  const Batch& batch = batches_.of_step(step_);
  const double lr = learning_rate_at(config_, step_);
  const Stats before = learner_.stats();
  const auto began = Clock::now();
  const StepResult result = learner_.step(batch, lr);
  const double seconds = seconds_since(began);
  ++step_;
  if (!std::isfinite(result.loss) || (!std::isfinite(result.grad_norm) && !result.skipped)) {
    const std::string advice = saved_step_ > 0 ? str("the checkpoint of step {} is good", saved_step_)
                                               : std::string("a lower optim.lr may help");
    // Neither is ever negative: abs() takes the sign from a NaN.
    throw RunFailure(str("step {}: loss {:.4g}, gradient norm {:.4g}: stopped before saving; {}", step_,
                         std::abs(result.loss), std::abs(result.grad_norm), advice));
  }
  const Stats& after = learner_.stats();
  if (after.verify_seconds != before.verify_seconds && after.plans > 0) {
    progress_.note(str("first replay compared with eager in {:.2f} s", after.verify_seconds - before.verify_seconds));
  }
  const bool recorded = after.recordings != before.recordings || after.verify_seconds != before.verify_seconds;
  if (!recorded) pace_.add(seconds);
  show_step(result, lr, seconds);
}

void Run::show_step(const StepResult& result, double lr, double seconds) {
  const double typical = pace_.recent() > 0 ? pace_.recent() : seconds;
  const StepLine line{.step = step_,
                      .steps = config_.train.steps,
                      .loss = result.loss,
                      .grad_norm = result.grad_norm,
                      .lr = lr,
                      .tokens_per_second = static_cast<double>(numbers_.tokens_per_step) / typical,
                      .mfu = numbers_.least_step_seconds / typical,
                      .seconds_left = typical * static_cast<double>(config_.train.steps - step_)};
  progress_.step(line);
  if (!is_logged(line, config_.output.log_every)) return;
  metrics_->write({{"step", step_},
                   {"loss", result.loss},
                   {"grad_norm", result.grad_norm},
                   {"lr", lr},
                   {"tokens", step_ * numbers_.tokens_per_step},
                   {"step_seconds", seconds},
                   {"tokens_per_second", line.tokens_per_second},
                   {"mfu", line.mfu}});
}

double Run::evaluate_held_out() {
  progress_.status("evaluating");
  const HeldOutLoss loss = evaluate(learner_.model(), learner_.directory().tokenizer, corpus_,
                                    config_.data.eval_windows, config_.train.batch_size);
  metrics_->write({{"step", step_}, {"held_out_loss", loss.nats_per_token}, {kHeldOut, loss.nats_per_byte}});
  return loss.nats_per_byte;
}

void Run::save() {
  CheckpointWriter writer(directory_.path(), {.step = step_,
                                              .next_sample = step_ * numbers_.samples_per_step,
                                              .seed = static_cast<uint64_t>(config_.train.seed),
                                              .data_hash = corpus_.mixture().hash()});
  learner_.save(writer.path());
  save_run_config(writer.path(), config_);
  writer.commit();
  saved_step_ = step_;
  prune_checkpoints(directory_.path(), {.last = config_.output.keep_last});
}

int Run::stop(int signal) {
  if (step_ > saved_step_) save();
  const std::string where = saved_step_ > 0 ? str("step {} is saved, continue with --resume", saved_step_)
                                            : std::string("before the first step, nothing to save");
  progress_.note(str("stopped by {}: {}", signal_name(signal), where));
  return StopSignals::exit_code(signal);
}

void Run::finish() {
  const double after = evaluate_held_out();
  if (step_ > saved_step_) save();
  DirectoryTransaction model(directory_.model(), DirectoryTransaction::Existing::kReplace);
  learner_.save_model(model.path());
  model.commit();

  EndOfRun end;
  end.steps = step_;
  end.seconds = seconds_since(began_);
  end.step_seconds = pace_.overall();
  end.held_out_before = metrics_->find(0, kHeldOut);
  end.held_out_after = after;
  progress_.note(str("\n{}{}", learner_.report(), end_table(end, numbers_)));
  if (config_.output.sample_tokens > 0) {
    const Tokenizer& tokenizer = learner_.directory().tokenizer;
    const std::string prompt = held_out_prompt(tokenizer, corpus_);
    const SampleOptions options{.tokens = config_.output.sample_tokens,
                                .seed = static_cast<uint64_t>(config_.train.seed)};
    const std::string continuation = sample_text(learner_.model(), tokenizer, prompt, options);
    progress_.note(
        str("sample, held-out text continued after \"|\":\n{}|{}\n", printable(prompt), printable(continuation)));
  }
  progress_.note(str("model: {}", directory_.model().string()));
}

}  // namespace

int train(RunConfig config, bool resume) {
  Run run(std::move(config), resume);
  try {
    return run.run();
  } catch (const UserError& error) {
    throw RunFailure(error.what());
  }
}

}  // namespace stepc::train
