#include "train/run/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "checkpoint/tensors.h"
#include "data/corpus.h"
#include "runtime/arena.h"
#include "train/config/parallel.h"
#include "train/config/resume.h"
#include "train/config/run_config_keys.h"
#include "train/machine/machine.h"
#include "train/machine/matmul_rate.h"
#include "train/machine/signals.h"
#include "train/model/adapter_choice.h"
#include "train/model/sample.h"
#include "train/report/log_lines.h"
#include "train/report/metrics.h"
#include "train/report/pace.h"
#include "train/report/progress.h"
#include "train/report/rank_rows.h"
#include "train/report/report.h"
#include "train/report/run_tables.h"
#include "train/run/memory_need.h"
#include "train/run/run_data.h"
#include "train/run/run_directory.h"
#include "train/run/run_saver.h"
#include "train/run/same_on_all.h"
#include "train/step/batches.h"
#include "train/step/evaluate.h"
#include "train/step/local_learner.h"
#include "train/step/rank_learner.h"

namespace stepc::train {
namespace {

// A rank that has not answered for that long is given up: a minute later all the others have ended.
constexpr std::chrono::seconds kToMeet{60}, kToAnswer{45};
constexpr const char* kHeldOut = "held_out_nats_per_byte";

// On one terminal rank 0 alone speaks. A launcher of ours gives the others files of their own; elsewhere they take
// them.
using Output = std::unique_ptr<std::FILE, void (*)(std::FILE*)>;
Output output_of(const Launch& launch, const std::string& run) {
  const auto nothing = [](std::FILE* /*file*/) {};
  if (launch.rank == 0 || std::getenv(kLauncherVariable) != nullptr) return {stdout, nothing};
  const std::filesystem::path path = make_log_directory(run) / str("rank-{}.log", launch.rank);
  std::FILE* const file = std::fopen(path.c_str(), "a");
  USER_CHECK(file != nullptr, "{}: cannot be written", path.string());
  return {file, [](std::FILE* opened) { std::fclose(opened); }};
}

// Runs it and adds its time.
template <class Work>
auto timed(double& seconds, const Work& work) {
  const auto began = Clock::now();
  auto result = work();
  seconds += seconds_since(began);
  return result;
}

class Run {
 public:
  // `ranks`: this process and those that it trains with; none: it trains alone. `output`: where it says what happens.
  Run(RunConfig config, const Strategy& strategy, std::shared_ptr<Ranks> ranks, Output output, bool resume,
      FileSystem& files, std::filesystem::path profile);
  int run();

 private:
  void resume_from(const Checkpoint& checkpoint);
  void read_batch();
  void take_step();
  void show_step(const StepResult& result, double lr, double seconds);
  void plan_step();
  void compile();
  // In words, of all that are planned before the run.
  [[nodiscard]] std::string step_of(int64_t seq) const;
  void keep_profile();
  std::string first_nonfinite();
  // nullopt where nothing is held out.
  std::optional<double> evaluate_held_out();
  bool is_best();
  TrainerState state() const;
  void save_beside_training(bool is_best);
  void save_now();
  void wait_for_save();
  void note(const std::optional<std::string>& saved);
  // Does what one rank alone does. What goes wrong there ends all ranks at agree().
  template <class Work>
  void alone(const Work& work);
  // The largest that a rank gives, where all are well.
  int64_t agree(int64_t mine);
  // The signal that came to any rank.
  int received_signal();
  std::vector<RankRow> rank_rows();
  // Empty where none is wanted.
  std::string sample_text();
  int stop(int signal);
  void finish();
  Report report_of(const EndOfRun& end, const std::vector<RankRow>& rows) const;

  Clock::time_point began_ = Clock::now();
  FileSystem& files_;
  RunConfig config_;
  std::shared_ptr<Ranks> ranks_;
  bool is_first_;  // of the ranks: it shows what happens, and writes files
  Output output_;
  Progress progress_;
  LogLines log_lines_;
  RunDirectory directory_;
  std::unique_ptr<Learner> learner_;
  Corpus corpus_;
  TrainBatches batches_;
  const Batch* batch_ = nullptr;  // of the next step
  RunNumbers numbers_;
  std::optional<Metrics> metrics_;
  Pace pace_;
  int64_t step_ = 0;                // steps done
  std::optional<double> held_out_;  // nats per byte after this step
  TimeSpent spent_;
  Traffic step_traffic_;  // of all steps of this process
  int64_t steps_taken_ = 0;
  std::string failure_;                   // what this rank could not do, until the others are told
  PlannedNeed planned_;                   // of fast mode
  std::optional<Prediction> prediction_;  // once there is a plan
  uint64_t loaded_bytes_ = 0;             // resident before the first step
  std::filesystem::path profile_;         // still to be written; empty: none, or not any more
  std::optional<RunSaver> saver_;         // reads the learner
};

// A checkpoint is whole without the directory that the run began from; one that is there is of the same model. What it
// was saved in is for stepc to choose (saved_dtype()).
void check_same_model(const std::string& path, const ModelDirectory& resumed) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  for (const auto& [field, here, there] : read_model_config(path).differences(resumed.config))
    USER_CHECK(field == "dtype",
               "model.path = {}: another model than that of the checkpoint to resume from, {}: its {} is {}, the "
               "checkpoint's {}; give that model, or choose another output.dir",
               path, resumed.path.string(), field, here, there);
}

// Training goes on from the checkpoint's own model files.
ModelDirectory start_directory(const RunConfig& config, const RunDirectory& directory, bool trains_alone) {
  const auto& checkpoint = directory.checkpoint();
  ModelDirectory model =
      open_model_directory(checkpoint ? checkpoint->directory : std::filesystem::path(config.model.path));
  if (checkpoint) check_same_model(config.model.path, model);
  choose_adapter(config, model);
  check_row_length(config, model);
  const uint64_t file_bytes = check_weight_shapes(model);
  if (trains_alone) check_memory_need(model, memory_need(config, model, file_bytes));
  return model;
}

// A run goes on with the plan that it had.
std::optional<Target> resumed_target(const RunConfig& config, const RunDirectory& directory) {
  const auto& checkpoint = directory.checkpoint();
  if (!checkpoint || parse_memory_budget(config.memory.budget).kind != MemoryBudget::Kind::kAuto) return std::nullopt;
  std::optional<Target> target = saved_target(checkpoint->directory);
  if (!target || target->threads == config.train.threads) return target;
  log().warn("{}: its step was planned for {} threads, this one is weighed anew for {}", checkpoint->directory.string(),
             target->threads, config.train.threads);
  return std::nullopt;
}

std::unique_ptr<Learner> make_learner(const RunConfig& config, const RunDirectory& directory, const Strategy& strategy,
                                      const std::shared_ptr<Ranks>& ranks) {
  ModelDirectory model = start_directory(config, directory, ranks == nullptr);
  if (ranks != nullptr) return std::make_unique<RankLearner>(std::move(model), config, strategy, ranks);
  return std::make_unique<LocalLearner>(std::move(model), config, resumed_target(config, directory));
}

// Of several ranks the first makes it and looks whether its checkpoints are whole; they have the one that it found.
RunDirectory open_run_directory(const std::filesystem::path& path, bool resume, Ranks* ranks) {
  if (ranks == nullptr) return {path, resume};
  if (ranks->rank() > 0) {
    check_shared_directory(*ranks, path);
    const std::string found = ranks->exchange("")[0];
    return {path, found};
  }
  RunDirectory directory(path, resume);
  check_shared_directory(*ranks, path);
  ranks->exchange(directory.checkpoint() ? directory.checkpoint()->directory.filename().string() : "");
  return directory;
}

// How far the run that is there has come.
std::string progress_text(const RunDirectory& directory) {
  const auto& checkpoint = directory.checkpoint();
  return str("{}{}", checkpoint ? str("the checkpoint of step {}", checkpoint->state.step) : "no checkpoint",
             directory.finished() ? " and a finished model" : "");
}

// Chats in which no assistant answers, say: every step would be one over nothing.
void check_labels(const RunConfig& config, const Corpus& corpus) {
  for (size_t i = 0; i < corpus.sources(); ++i) {
    const std::string source = config.data.weights.empty() ? "data.train" : config.data.train.at(i);
    USER_CHECK(corpus.has_labels(i),
               "{}: there is nothing to learn in it: of chats, the turns of the assistant are learned, and there are "
               "none",
               source);
  }
  USER_CHECK(corpus.held_out_windows() == 0 || has_held_out_labels(corpus, config.data.eval_windows),
             "the {} held-out windows have no label that training would learn: hold out more, or other text",
             config.data.eval_windows);
}

// Without a plan there are no instructions, and a missing directory would be found only when there are some.
void check_profile(const std::filesystem::path& profile, const RunConfig& config) {
  if (profile.empty()) return;
  USER_CHECK(config.train.mode != "eager",
             "--profile {}: train.mode is \"eager\", which has no instructions; choose \"exact\" or \"fast\"",
             profile.string());
  const std::filesystem::path directory = profile.has_parent_path() ? profile.parent_path() : ".";
  std::error_code ignored;
  USER_CHECK(std::filesystem::is_directory(directory, ignored), "--profile {}: there is no directory {}",
             profile.string(), directory.string());
}

Run::Run(RunConfig config, const Strategy& strategy, std::shared_ptr<Ranks> ranks, Output output, bool resume,
         FileSystem& files, std::filesystem::path profile)
    : files_(files),
      config_(std::move(config)),
      ranks_(std::move(ranks)),
      is_first_(ranks_ == nullptr || ranks_->rank() == 0),
      output_(std::move(output)),
      progress_(output_.get(), terminal_columns(stdout), config_.output.log_every),
      log_lines_(progress_),
      directory_(progress_.during("looking whether the checkpoints are whole",
                                  [&] { return open_run_directory(config_.output.dir, resume, ranks_.get()); })),
      learner_(
          progress_.during("reading the model", [&] { return make_learner(config_, directory_, strategy, ranks_); })),
      corpus_(read_corpus(config_, learner_->directory(), progress_, /*is_alone=*/ranks_ == nullptr)),
      batches_(corpus_, config_.train.grad_accum, config_.train.batch_size),
      numbers_(derive_numbers(
          config_, learner_->directory().config, corpus_,
          progress_.during("measuring this machine's matmuls", [&] { return measure_run_rate(config_); }),
          ranks_ == nullptr ? 1 : ranks_->ranks())),
      profile_(is_first_ ? std::move(profile) : std::filesystem::path()) {
  check_labels(config_, corpus_);
  if (ranks_ != nullptr) {
    check_same(*ranks_, "the data", hash_text(corpus_.mixture().hash()));
    check_same(*ranks_, "in output.dir", progress_text(directory_));
  }
  at::manual_seed(static_cast<uint64_t>(config_.train.seed));
  for (const std::string& line : without_effect(config_)) log().warn(line);
  if (const auto line = slow_float16_here(config_)) log().warn(*line);
  progress_.note(start_table(config_, learner_->directory().config, corpus_, numbers_));
  plan_step();
  progress_.note(step_time_text(numbers_, prediction_));
  progress_.during("loading the model", [&] { learner_->load(config_); });
  const auto& checkpoint = directory_.checkpoint();
  if (checkpoint) progress_.during("loading the checkpoint", [&] { resume_from(*checkpoint); });
  if (resume && !checkpoint) progress_.note("no checkpoint to resume from: starting at step 0");
  if (is_first_) metrics_.emplace(directory_.metrics().string(), checkpoint ? step_ : -1);
  saver_.emplace(config_, directory_.path(), *learner_, checkpoint, files_, ranks_, to_text(strategy.mesh));
  if (const uint64_t bytes = saver_->made().staging_bytes)
    progress_.note(str("saves are written beside the training, from a copy of the state: {}", human_bytes(bytes)));
  agree(0);  // all of them have come so far
  spent_.set_up = seconds_since(began_);
}

void Run::resume_from(const Checkpoint& checkpoint) {
  for (const std::string& change : check_resumed_config(checkpoint.directory, config_)) progress_.note(change);
  USER_CHECK(
      checkpoint.state.data_hash == corpus_.mixture().hash(),
      "{} was made with other data, or with another part of it held out; give that, or choose another output.dir",
      checkpoint.directory.string());
  step_ = checkpoint.state.step;
  USER_CHECK(step_ <= config_.train.steps,
             "train.steps = {}: {} has {} steps done already; give at least that, or choose another output.dir",
             config_.train.steps, checkpoint.directory.string(), step_);
  learner_->load_optimizer(checkpoint.directory);
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
    if (const auto loss = evaluate_held_out())
      progress_.note(str("held-out loss before training: {:.4f} nats per byte", *loss));
  }
  // Exact mode needs none of this where all steps are alike: its recorded steps count, for they have the bits of the
  // replayed ones.
  const Mode mode = parse_mode(config_.train.mode);
  if (mode == Mode::kFast || (mode == Mode::kExact && !config_.data.buckets.empty())) compile();
  while (step_ < config_.train.steps) {
    alone([&] { read_batch(); });
    if (const int signal = received_signal()) return stop(signal);
    take_step();
    const bool last = step_ == config_.train.steps;
    if (!last && config_.output.eval_every > 0 && step_ % config_.output.eval_every == 0) {
      if (const auto loss = evaluate_held_out())
        progress_.note(str("held-out loss at step {}: {:.4f} nats per byte", step_, *loss));
    }
    const bool due = config_.output.save_every > 0 && step_ % config_.output.save_every == 0;
    const bool best = !last && is_best();
    if (!last && (due || best)) save_beside_training(best);
  }
  if (const int signal = received_signal()) return stop(signal);
  finish();
  return 0;
}

// Before there is memory for it.
void Run::plan_step() {
  if (config_.train.mode != name_of(Mode::kFast)) return;
  uint64_t largest = 0;
  for (const int64_t seq : corpus_.mixture().lengths()) {
    const Progress::Phase phase(progress_, "planning " + step_of(seq));
    if (!learner_->plan(batches_.of_length(seq, step_))) return;
    largest = std::max(largest, learner_->stats().planned_peak_bytes);
  }
  planned_.process = resident_process_bytes();
  planned_.state = learner_->stats().state_bytes;
  planned_.step = largest;
  if (saves_while_training(config_)) planned_.staging = learner_->staged_bytes();
  progress_.note(to_text(planned_));
  prediction_ = learner_->prediction();
  check_memory("training " + learner_->directory().path.string(), planned_.total());
}

void Run::compile() {
  release_free_memory();
  loaded_bytes_ = resident_process_bytes();
  for (const int64_t seq : corpus_.mixture().lengths()) {
    const auto began = Clock::now();
    const double compared = learner_->stats().verify_seconds;
    progress_.during(str("compiling {}, and comparing its plan with the step as it is written", step_of(seq)),
                     [&] { learner_->prepare(batches_.of_length(seq, step_), learning_rate_at(config_, step_)); });
    const double seconds = seconds_since(began);
    spent_.steps += seconds;
    progress_.note(str("compiled {} in {}, {} of it to compare it", step_of(seq), human_seconds(seconds),
                       human_seconds(learner_->stats().verify_seconds - compared)));
  }
  learner_->end_warm_up();
}

std::string Run::step_of(int64_t seq) const {
  return config_.data.buckets.empty() ? "the step" : str("the step for rows of {} tokens", seq);
}

void Run::read_batch() {
  const auto began = Clock::now();
  batch_ = &batches_.of_step(step_);
  // A kernel would find it in the middle of a step, on the rank alone whose row it is in.
  if (ranks_ != nullptr) check_indices(*batch_, learner_->directory().config.vocab_size);
  spent_.batches += seconds_since(began);
}

void Run::take_step() {
  const Batch& batch = *batch_;
  const double lr = learning_rate_at(config_, step_);
  const Stats before = learner_->stats();
  // The first replays still bring memory and caches up.
  constexpr uint64_t kSettled = 3;
  const bool is_profiled = !profile_.empty() && before.replays >= kSettled;
  if (is_profiled) learner_->start_profile();
  const Traffic sent = ranks_ == nullptr ? Traffic() : ranks_->traffic();
  const auto began = Clock::now();
  const StepResult result = learner_->step(batch, lr);
  const double seconds = seconds_since(began);
  spent_.steps += seconds;
  if (ranks_ != nullptr) {
    step_traffic_.seconds += ranks_->traffic().seconds - sent.seconds;
    step_traffic_.sent_bytes += ranks_->traffic().sent_bytes - sent.sent_bytes;
  }
  ++step_;
  ++steps_taken_;
  held_out_.reset();
  if (!std::isfinite(result.loss) || (!std::isfinite(result.grad_norm) && !result.skipped)) {
    wait_for_save();
    const std::string advice = saver_->saved_step() > 0 ? str("the checkpoint of step {} is good", saver_->saved_step())
                                                        : std::string("a lower optim.lr may help");
    // Neither is ever negative: abs() takes the sign from a NaN.
    throw RunFailure(str("step {}: loss {:.4g}, gradient norm {:.4g}: stopped before saving; {}; {}", step_,
                         std::abs(result.loss), std::abs(result.grad_norm), first_nonfinite(), advice));
  }
  const Stats& after = learner_->stats();
  if (after.verify_seconds != before.verify_seconds && after.plans > 0) {
    progress_.note(str("a replay compared before it counts in {:.2f} s", after.verify_seconds - before.verify_seconds));
  }
  const bool recorded = after.recordings != before.recordings || after.verify_seconds != before.verify_seconds;
  if (!recorded) {
    pace_.add(seconds);
    numbers_.note_step(seconds);
  }
  alone([&] { show_step(result, lr, seconds); });
  if (is_profiled) keep_profile();
}

// A file that cannot be written is no reason to end the run.
void Run::keep_profile() {
  const std::optional<Profile> profile = learner_->finish_profile();
  if (!profile) return;  // recorded again: the next step may be replayed
  progress_.note(str("\n{}", to_text(*profile)));
  try {
    write_file_synced(profile_, to_trace_events(*profile), files_);
    progress_.note(str("profile of step {}: {} (open it at ui.perfetto.dev)\n", step_, profile_.string()));
  } catch (const UserError& error) {
    progress_.note(str("profile of step {}: {}\n", step_, error.what()));
  }
  profile_.clear();
}

void Run::show_step(const StepResult& result, double lr, double seconds) {
  const double typical = pace_.recent() > 0 ? pace_.recent() : seconds;
  if (!prediction_) prediction_ = learner_->prediction();
  const Stats stats = learner_->stats();
  const StepLine line{.step = step_,
                      .steps = config_.train.steps,
                      .loss = result.loss,
                      .grad_norm = result.grad_norm,
                      .lr = lr,
                      .tokens_per_second = static_cast<double>(numbers_.tokens_per_step) / typical,
                      .mfu = numbers_.mfu(typical),
                      .seconds_left = typical * static_cast<double>(config_.train.steps - step_),
                      .step_seconds = typical,
                      .predicted_seconds = prediction_ ? numbers_.told(*prediction_).seconds : 0,
                      .step_bytes = stats.measured_peak_bytes,
                      .planned_bytes = stats.planned_peak_bytes};
  progress_.step(line);
  if (!is_logged(line, config_.output.log_every)) return;
  if (!metrics_) return;
  metrics_->write({{"step", step_},
                   {"loss", result.loss},
                   {"grad_norm", result.grad_norm},
                   {"lr", lr},
                   {"tokens", step_ * numbers_.tokens_per_step},
                   {"step_seconds", seconds},
                   {"tokens_per_second", line.tokens_per_second},
                   {"mfu", line.mfu}});
}

// The step changed the weights: they are made again, from the newest checkpoint or the start, and the batch is looked
// at op by op.
std::string Run::first_nonfinite() {
  constexpr double kPatienceSeconds = 120;
  const Progress::Phase phase(progress_, "looking for the first value that is not finite");
  const auto began = Clock::now();
  const int64_t bad_step = step_ - 1;
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

std::optional<double> Run::evaluate_held_out() {
  if (corpus_.held_out_windows() == 0) return std::nullopt;
  const Progress::Phase phase(progress_, "evaluating");
  release_idle_arenas();  // what evaluation takes is taken instead of the step's memory, not beside it
  const HeldOutLoss loss = timed(spent_.evaluation, [&] {
    return evaluate([&](const Batch& rows) { return learner_->summed_loss(rows); }, learner_->directory().tokenizer,
                    corpus_, config_.data.eval_windows, config_.train.batch_size);
  });
  held_out_ = loss.nats_per_byte;
  if (!metrics_) return held_out_;
  metrics_->write({{"step", step_}, {"held_out_loss", loss.nats_per_token}, {kHeldOut, loss.nats_per_byte}});
  return held_out_;
}

// Asked to keep the best, and this one was just evaluated as such.
bool Run::is_best() {
  if (!config_.output.keep_best || !held_out_) return false;
  const bool is_least = metrics_ && *held_out_ <= metrics_->least(kHeldOut);
  return ranks_ == nullptr ? is_least : ranks_->largest(is_least ? 1 : 0) != 0;
}

TrainerState Run::state() const {
  return {.step = step_,
          .next_sample = step_ * numbers_.samples_per_step,
          .seed = static_cast<uint64_t>(config_.train.seed),
          .data_hash = corpus_.mixture().hash(),
          .held_out = held_out_};
}

void Run::note(const std::optional<std::string>& saved) {
  if (saved) progress_.note(*saved);
}

void Run::wait_for_save() { note(saver_->wait()); }

void Run::save_beside_training(bool is_best) {
  const auto began = Clock::now();
  wait_for_save();
  saver_->begin(state(), is_best);
  spent_.saving += seconds_since(began);
}

void Run::save_now() {
  const auto began = Clock::now();
  wait_for_save();
  if (step_ > saver_->saved_step()) {
    const Progress::Phase phase(progress_, "saving");
    saver_->begin_in_place(state(), is_best());
    wait_for_save();
  }
  spent_.saving += seconds_since(began);
}

template <class Work>
void Run::alone(const Work& work) {
  try {
    work();
  } catch (const UserError& error) {
    if (ranks_ == nullptr) throw;
    failure_ = error.what();
  }
}

int64_t Run::agree(int64_t mine) {
  if (ranks_ == nullptr) return mine;
  if (!failure_.empty()) ranks_->fail(failure_);
  return ranks_->largest(mine);
}

// The one word of all ranks before a step writes anything: a save that failed on one (poll()), or a batch that cannot
// be read or has a bad index, ends all; a signal stops all.
int Run::received_signal() {
  note(saver_->poll());
  return static_cast<int>(agree(StopSignals::received()));
}

std::vector<RankRow> Run::rank_rows() {
  if (ranks_ == nullptr) return {};
  const auto steps = static_cast<double>(std::max<int64_t>(1, steps_taken_));
  const Stats stats = learner_->stats();
  return gather_rows(*ranks_,
                     {.step_seconds = pace_.overall(),
                      .comm_seconds = step_traffic_.seconds / steps,
                      .batch_seconds = spent_.batches / steps,
                      .sent_bytes = static_cast<uint64_t>(static_cast<double>(step_traffic_.sent_bytes) / steps),
                      .planned_bytes = stats.planned_peak_bytes,
                      .measured_bytes = stats.measured_peak_bytes,
                      .process_bytes = peak_process_bytes()});
}

int Run::stop(int signal) {
  save_now();
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
  end.step_seconds = pace_.overall();
  end.held_out_before = metrics_->find(0, kHeldOut);
  end.held_out_after = after;
  write_file_synced(directory_.report(), report_html(report_of(end, rows), directory_.metrics()), files_);
  progress_.note(str("\n{}{}{}", learner_->report(), end_table(end, numbers_), to_text(rows)));
  if (planned_.step > 0 && loaded_bytes_ > 0)
    progress_.note(str("  resident memory     {} before the first step, and the plan's {}: {}; at most {}",
                       human_bytes(loaded_bytes_), human_bytes(planned_.step),
                       human_bytes(loaded_bytes_ + planned_.step), human_bytes(peak_process_bytes())));
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
  report.config = to_toml(config_);
  return report;
}

}  // namespace

namespace {

// Of the file that runs: equal plans of unlike programs may still compute otherwise.
std::string program_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return hash_text(hash_bytes(std::as_bytes(std::span(bytes))));
}

// One plan is of one number of threads: the least that a machine gives its ranks.
void use_common_threads(RunConfig& config, Ranks& ranks) {
  int64_t least = config.train.threads;
  for (const std::string& given : ranks.exchange(str("{}", least))) least = std::min(least, int64_t{std::stoll(given)});
  if (least < config.train.threads)
    log().warn("this machine has {} threads for each of its ranks, another one {}: all compute with so many",
               config.train.threads, least);
  config.train.threads = least;
  config = use_threads(std::move(config));
}

}  // namespace

int train(RunConfig config, bool resume, FileSystem& files, const std::filesystem::path& profile) {
  const Launch launch = launch_of([](const char* name) { return std::getenv(name); });
  resume = resume || launch.restart > 0;  // what the attempt before has saved is this run's own
  check_profile(profile, config);
  const Strategy strategy = strategy_of(config, launch);
  USER_CHECK(launch.ranks == 1 || config.train.mode == name_of(Mode::kFast),
             "train.mode = \"{}\": on {} ranks a step runs as a Graph or not at all: choose \"fast\"",
             config.train.mode, launch.ranks);
  const std::shared_ptr<Ranks> ranks = launch.ranks > 1 ? Ranks::join(launch, kToMeet, kToAnswer) : nullptr;
  std::optional<Run> run;
  or_fail_together(ranks.get(), [&] {
    if (ranks != nullptr) {
      check_same(*ranks, "the program", program_hash());
      check_same_config(*ranks, config);
      check_same(*ranks, "--resume", resume ? "set" : "not set");
    }
    config = use_threads(std::move(config), launch.local_ranks);
    if (ranks != nullptr) use_common_threads(config, *ranks);
    Output output = output_of(launch, config.output.dir);
    run.emplace(std::move(config), strategy, ranks, std::move(output), resume, files, profile);
  });
  try {
    return run->run();
  } catch (const LostRank&) {
    throw;
  } catch (const UserError& error) {
    throw RunFailure(error.what());
  }
}

}  // namespace stepc::train
