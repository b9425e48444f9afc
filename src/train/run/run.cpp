#include "train/run/run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "comm/watch/watchdog.h"
#include "cost/profile.h"
#include "engine/config.h"
#include "runtime/arena.h"
#include "train/config/parallel.h"
#include "train/config/resume.h"
#include "train/config/run_config_keys.h"
#include "train/machine/device.h"
#include "train/machine/machine.h"
#include "train/machine/matmul_rate.h"
#include "train/machine/signals.h"
#include "train/model/model_directory.h"
#include "train/run/choose_strategy.h"
#include "train/run/run_data.h"
#include "train/run/same_on_all.h"
#include "train/run/trainer.h"
#include "train/step/batches.h"
#include "train/step/evaluate.h"

namespace stepc::train {

Run::Run(RunConfig config, const Launch& launch, std::shared_ptr<Ranks> ranks, Output output, const Continuation& from,
         FileSystem& files, std::filesystem::path profile, const LeftBehind* left)
    : files_(files),
      config_(std::move(config)),
      device_(use_device("train.device", config_.train.device, launch.ranks > 1 ? launch.local_rank : 0)),
      ranks_(std::move(ranks)),
      is_first_(ranks_ == nullptr || ranks_->rank() == 0),
      is_guarded_(!launch.secret.empty() && launch.local_ranks < launch.ranks),
      output_(std::move(output)),
      progress_(output_.get(), terminal_columns(stdout), config_.output.log_every),
      log_lines_(progress_),
      directory_(progress_.during("looking whether the checkpoints are whole",
                                  [&] { return open_run_directory(config_.output.dir, from, ranks_.get()); })),
      snapshots_(make_snapshots(config_, directory_, ranks_)),
      resumed_from_(look_for_snapshot(from.resumes)),
      strategy_(choose(launch)),
      learner_(progress_.during("reading the model",
                                [&] { return make_learner(config_, directory_, strategy_, ranks_, device_); })),
      corpus_(read_corpus(config_, learner_->directory(), progress_, /*is_alone=*/ranks_ == nullptr)),
      batches_(corpus_, config_.train.micro_batches, config_.train.batch_size),
      numbers_(derive_numbers(
          config_, learner_->directory().config, corpus_,
          progress_.during("measuring this machine's matmuls", [&] { return measure_run_rate(config_, device_); }),
          ranks_ == nullptr ? 1 : ranks_->ranks())),
      profile_(is_first_ ? std::move(profile) : std::filesystem::path()) {
  check_labels(config_, corpus_);
  if (ranks_ != nullptr) {
    check_same(*ranks_, "the data", hash_text(corpus_.mixture().hash()));
    check_same(*ranks_, "in output.dir", progress_text(directory_));
  }
  at::manual_seed(static_cast<uint64_t>(config_.train.seed));
  for (const std::string& line : without_effect(config_)) log().warn(line);
  if (const auto line = device_.is_cpu() ? slow_float16_here(config_) : std::nullopt) log().warn(*line);
  if (config_.train.fp8() && device_.is_cpu())
    progress_.note("float8 is emulated on a CPU: its numbers, at the cost of matmuls in float32");
  if (const std::string line = unused_gpu(device_, first_gpu()); !line.empty()) progress_.note(line);
  progress_.note(start_table(config_, learner_->directory().config, corpus_, numbers_));
  plan_step(left == nullptr ? 0 : left->kept.bytes());
  progress_.note(step_time_text(numbers_, prediction_));
  if (snapshots_) snapshots_->check_room(learner_->saved_bytes(), config_.elastic.snapshot_every);
  const auto& checkpoint = directory_.start();
  is_carried_on_ = carry_on(left);
  if (!is_carried_on_) {
    progress_.during("loading the model", [&] { learner_->load(config_); });
    if (checkpoint) progress_.during("loading the checkpoint", [&] { resume_from(*checkpoint); });
    if (from.resumes && !checkpoint) progress_.note("no checkpoint to resume from: starting at step 0");
  }
  // The lines that a lost rank's last step should have written are written again.
  if (is_first_) metrics_.emplace(directory_.metrics().string(), is_carried_on_ ? step_ - 1 : checkpoint ? step_ : -1);
  if (metrics_ && !last_line_.empty()) metrics_->write(nlohmann::ordered_json::parse(last_line_));
  saver_.emplace(config_, directory_.path(), *learner_, directory_.checkpoint(), files_, ranks_,
                 to_text(strategy_.mesh));
  if (const uint64_t bytes = saver_->made().staging_bytes)
    progress_.note(str("saves are written beside the training, from a copy of the state: {}", human_bytes(bytes)));
  if (ranks_ != nullptr) slow_ranks_.emplace(ranks_->exchange(host_name()));  // all of them have come so far
  spent_.set_up = seconds_since(began_);
}

std::string Run::look_for_snapshot(bool resumes) {
  if (!snapshots_) return {};
  const auto& checkpoint = directory_.checkpoint();
  // A run that begins anew has no snapshots; those of the run before are deleted.
  RunSnapshots::Found found = progress_.during("looking for snapshots in memory", [&] {
    return snapshots_->find(!resumes ? INT64_MAX : checkpoint ? checkpoint->state.step : 0);
  });
  if (!found.checkpoint) {
    if (!found.from.empty()) log().warn(found.from);
    return {};
  }
  directory_.start_from(*std::move(found.checkpoint));
  return found.from;
}

Strategy Run::choose(const Launch& launch) {
  if (ranks_ == nullptr || !is_searched(config_)) return strategy_of(config_, launch);
  // The lengths of the documents in packed rows decide how long attention takes.
  const std::optional<double> documents =
      document_tokens(read_corpus(config_, open_model_directory(config_.model.path), progress_, /*is_alone=*/false));
  Progress::Phase phase(progress_, "choosing how the ranks are spread");
  ChosenStrategy chosen =
      choose_strategy(config_, directory_, launch, *ranks_, device_, documents,
                      [&](size_t done, size_t all) { phase.update(str("{} of {} ways", done, all)); });
  config_.parallel = chosen.parallel;
  config_.train = chosen.train;
  config_.memory.budget = chosen.budget;
  choice_ = std::move(chosen.why);
  const Strategy strategy = strategy_of(config_, launch);
  if (choice_.empty())
    progress_.note(choice_ = str("spread as before, over {}", to_text(strategy)));
  else
    progress_.note(str("parallel.strategy = \"auto\"\n{}", choice_));
  return strategy;
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
  progress_.note(resumed_from_.empty() ? str("resumed from {} at step {}", checkpoint.directory.string(), step_)
                                       : str("resumed from memory at step {}: {}", step_, resumed_from_));
}

bool Run::carry_on(const LeftBehind* left) {
  if (ranks_ == nullptr || config_.elastic.rejoin_seconds == 0) return false;
  const int64_t saved = directory_.start() ? directory_.start()->state.step : 0;
  const bool is_ours = left != nullptr && left->run == directory_.run() && left->step >= saved;
  // The ranks exchange numbers that are not negative: 0 means that a rank has nothing.
  const std::vector<int64_t> have = ranks_->each(is_ours ? left->step + 1 : 0);
  for (const int64_t each : std::set<int64_t, std::greater<>>(have.begin(), have.end())) {
    if (each == 0) break;
    const bool is_mine = is_ours && left->step + 1 == each;
    if (!progress_.during("taking what other ranks have kept",
                          [&] { return learner_->take_over(is_mine ? &left->kept : nullptr); }))
      continue;
    step_ = each - 1;
    for (const std::string& line : ranks_->exchange(is_mine ? left->line : std::string()))
      if (!line.empty()) last_line_ = line;
    progress_.note(
        str("resumed from what ranks have kept at step {}: {} of {} had all of theirs, the others took it from them",
            step_, std::ranges::count(have, each), ranks_->ranks()));
    return true;
  }
  return false;
}

std::optional<LeftBehind> Run::leave() {
  if (is_undone_) return std::nullopt;
  std::optional<KeptState> kept = learner_->leave();
  if (!kept) return std::nullopt;
  return LeftBehind{directory_.run(), step_, last_line_, *std::move(kept)};
}

int Run::run() {
  if (directory_.finished() && step_ >= config_.train.steps) {
    progress_.note(
        str("finished already: {} has step {} of {}", directory_.model().string(), step_, config_.train.steps));
    return 0;
  }
  if (step_ == 0) {
    if (const auto loss = evaluate_held_out())
      progress_.note(str("held-out loss before training: {:.4f} nats per byte", *loss));
  }
  // Exact mode needs none of this if all steps are alike: recorded steps count, because they have the bits of replayed
  // ones.
  const Mode mode = parse_mode(config_.train.mode);
  if (mode == Mode::kFast || (mode == Mode::kExact && !config_.data.buckets.empty())) compile();
  if (ranks_ != nullptr && is_guarded_) ranks_->stop_listening();
  if (is_carried_on_ && step_ > 0) follow_step();
  while (step_ < config_.train.steps) {
    enter("reading the batch", /*is_brief=*/true);
    alone([&] { read_batch(); });
    enter("agreeing on the step", /*is_brief=*/true);
    if (const int signal = received_signal()) return stop(signal);
    take_step();
    follow_step();
  }
  if (const int signal = received_signal()) return stop(signal);
  finish();
  return 0;
}

// Does the work that is due between this step and the next one.
void Run::follow_step() {
  if (config_.elastic.check_every > 0 && step_ % config_.elastic.check_every == 0) check_replicas();
  if (step_ == config_.train.steps) return;
  if (config_.output.eval_every > 0 && step_ % config_.output.eval_every == 0) {
    if (const auto loss = evaluate_held_out())
      progress_.note(str("held-out loss at step {}: {:.4f} nats per byte", step_, *loss));
  }
  const bool due = config_.output.save_every > 0 && step_ % config_.output.save_every == 0;
  const bool best = is_best();
  if ((due || best) && step_ > saver_->saved_step()) save_beside_training(best);
  if (config_.elastic.snapshot_every > 0 && step_ % config_.elastic.snapshot_every == 0) take_snapshot();
}

// Plans the step before its memory is allocated.
void Run::plan_step(uint64_t kept_bytes) {
  if (config_.train.mode != name_of(Mode::kFast)) return;
  uint64_t largest = 0;
  for (const int64_t seq : corpus_.mixture().lengths()) {
    const Progress::Phase phase(progress_, "planning " + step_of(seq));
    const auto began = Clock::now();
    if (!learner_->plan(batches_.of_length(seq, step_))) return;
    planned_in_[seq] = seconds_since(began);
    largest = std::max(largest, learner_->stats().planned_peak_bytes);
  }
  planned_.process = resident_process_bytes();
  planned_.process -= std::min(kept_bytes, planned_.process);
  planned_.state = learner_->stats().state_bytes;
  planned_.step = largest;
  if (saves_while_training(config_)) planned_.copies.staging = learner_->staged_bytes();
  if (snapshots_) planned_.copies.snapshots = snapshots_->bytes_for(learner_->saved_bytes());
  progress_.note(to_text(planned_, device_));
  prediction_ = learner_->prediction();
  check_memory_need(learner_->directory(), planned_, device_);
}

void Run::compile() {
  release_free_memory();
  loaded_bytes_ = resident_process_bytes();
  for (const int64_t seq : corpus_.mixture().lengths()) {
    const auto began = Clock::now();
    const double compared = learner_->stats().verify_seconds;
    progress_.during(str("compiling {}, and comparing its plan with the step as it is written", step_of(seq)),
                     [&] { learner_->prepare(batches_.of_length(seq, step_), learning_rate_at(config_, step_)); });
    const double seconds = seconds_since(began), comparing = learner_->stats().verify_seconds - compared;
    spent_.steps += seconds;
    const bool is_to_be_compared = comparing == 0 && parse_verify(config_.train.verify).kind != Verify::Kind::kOff;
    if (is_to_be_compared && planned_in_.contains(seq)) {  // what is cut runs as a step alone
      uncompared_.insert(seq);
      progress_.note(
          str("compiled {} in {} as it was planned; its first step is compared with the step as it is written",
              step_of(seq), human_seconds(planned_in_.at(seq) + seconds)));
    } else {
      progress_.note(str("compiled {} in {}, {} of it to compare it", step_of(seq), human_seconds(seconds),
                         human_seconds(comparing)));
    }
  }
  learner_->end_warm_up();
}

std::string Run::step_of(int64_t seq) const {
  return config_.data.buckets.empty() ? "the step" : str("the step for rows of {} tokens", seq);
}

void Run::read_batch() {
  const auto began = Clock::now();
  batch_ = &batches_.of_step(step_);
  // Otherwise a kernel would find the bad index in the middle of a step, on the one rank that has the row.
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
  if (ranks_ != nullptr) ranks_->flight().note_step(step_ + 1);
  enter(kInStep, /*is_brief=*/before.replays >= kSettled);  // the first ones are compared, and compile for that
  const auto began = Clock::now();
  std::optional<Progress::Phase> comparing;
  if (uncompared_.erase(batch.tokens.size(2)) > 0)
    comparing.emplace(progress_, "taking the first step, and comparing its plan with the step as it is written");
  const TrainedStep result = learner_->step(batch, lr);
  comparing.reset();
  enter("between two steps");
  const double seconds = seconds_since(began);
  spent_.steps += seconds;
  if (ranks_ != nullptr) {
    const double waited = ranks_->traffic().seconds - sent.seconds;
    computed_ = std::max(0.0, seconds - waited);
    step_traffic_.seconds += waited;
    step_traffic_.sent_bytes += ranks_->traffic().sent_bytes - sent.sent_bytes;
  }
  ++step_;
  ++steps_taken_;
  held_out_.reset();
  if (!std::isfinite(result.loss) || (!std::isfinite(result.grad_norm) && !result.skipped)) {
    wait_for_save();
    const std::string advice = saver_->saved_step() > 0 ? str("the checkpoint of step {} is good", saver_->saved_step())
                                                        : std::string("a lower optim.lr may help");
    // Neither is ever negative. abs() removes the sign of a NaN.
    throw RunFailure(str("step {}: loss {:.4g}, gradient norm {:.4g}: stopped before saving; {}; {}", step_,
                         std::abs(result.loss), std::abs(result.grad_norm), first_nonfinite(), advice));
  }
  const Stats& after = learner_->stats();
  if (after.verify_seconds != before.verify_seconds && after.plans > 0) {
    progress_.note(str("a replay compared before it counts in {:.2f} s", after.verify_seconds - before.verify_seconds));
  }
  const bool recorded = after.recordings != before.recordings || after.verify_seconds != before.verify_seconds;
  if (!recorded) {
    step_times_.add(seconds);
    numbers_.note_step(seconds);
  }
  alone([&] { show_step(result, lr, seconds); });
  if (is_profiled) keep_profile();
}

// A profile that cannot be written does not end the run.
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

void Run::show_step(const TrainedStep& result, double lr, double seconds) {
  last_line_.clear();
  const double typical = step_times_.recent() > 0 ? step_times_.recent() : seconds;
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
  const nlohmann::ordered_json numbers = {{"step", step_},
                                          {"loss", result.loss},
                                          {"grad_norm", result.grad_norm},
                                          {"lr", lr},
                                          {"tokens", step_ * numbers_.tokens_per_step},
                                          {"step_seconds", seconds},
                                          {"tokens_per_second", line.tokens_per_second},
                                          {"mfu", line.mfu}};
  if (config_.elastic.rejoin_seconds > 0) last_line_ = numbers.dump();
  if (metrics_) metrics_->write(numbers);
}

std::optional<double> Run::evaluate_held_out() {
  if (corpus_.held_out_windows() == 0) return std::nullopt;
  const Progress::Phase phase(progress_, "evaluating");
  enter("evaluating");
  release_idle_arenas();  // what evaluation takes is taken instead of the step's memory, not beside it
  const auto began = Clock::now();
  const HeldOutLoss loss =
      evaluate([&](const Batch& rows) { return learner_->summed_loss(rows); }, learner_->directory().tokenizer, corpus_,
               config_.data.eval_windows, config_.train.batch_size);
  spent_.evaluation += seconds_since(began);
  held_out_ = loss.nats_per_byte;
  if (!metrics_) return held_out_;
  metrics_->write({{"step", step_}, {"held_out_loss", loss.nats_per_token}, {kHeldOut, loss.nats_per_byte}});
  return held_out_;
}

// Whether the run keeps the best checkpoint and this step was just evaluated as the best.
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

void Run::enter(const char* what, bool is_brief) {
  if (ranks_ != nullptr) ranks_->flight().enter(what, is_brief);
}

void Run::check_replicas() {
  if (ranks_ == nullptr || config_.elastic.check_every == 0 || checked_step_ == step_) return;
  enter("comparing replicas", /*is_brief=*/true);
  const std::optional<std::string> unlike = learner_->find_unlike_replica();
  checked_step_ = step_;
  if (!unlike) return;
  wait_for_save();  // it was compared before it began
  throw RunFailure(str("step {}: {}: a machine has computed or kept something wrong; stopped before saving; {}", step_,
                       *unlike,
                       saver_->saved_step() > 0 ? str("the checkpoint of step {} is good", saver_->saved_step())
                                                : std::string("nothing is saved yet")));
}

void Run::save_beside_training(bool is_best) {
  check_replicas();
  enter("saving");
  const auto began = Clock::now();
  wait_for_save();
  saver_->begin(state(), is_best);
  spent_.saving += seconds_since(began);
}

void Run::take_snapshot() {
  check_replicas();
  enter("copying the state to memory");
  const auto began = Clock::now();
  const NamedTensors weights = learner_->weights(), optimizer_state = learner_->state();
  // The snapshot is taken beside the next steps, which read none of it.
  snapshots_->take(state(), ranks_ == nullptr ? std::string() : to_text(strategy_.mesh),
                   [&](const auto& directory, FileSystem& files) {
                     learner_->write_checkpoint(directory, weights, optimizer_state, files);
                     if (is_first_) save_origin(directory, config_, learner_->weighed_with(), files);
                   });
  spent_.saving += seconds_since(began);
}

void Run::save_now() {
  check_replicas();
  enter("saving");
  const auto began = Clock::now();
  wait_for_save();
  if (step_ > saver_->saved_step()) {
    const Progress::Phase phase(progress_, "saving");
    saver_->begin_in_place(state(), is_best());
    wait_for_save();
  }
  spent_.saving += seconds_since(began);
}

void Run::alone(const std::function<void()>& work) {
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

// The ranks agree once before a step writes anything: a save that failed on one rank (poll()), or a batch that cannot
// be read or has a bad index, ends all ranks; a signal stops all ranks.
int Run::received_signal() {
  note(saver_->poll());
  if (ranks_ == nullptr) return StopSignals::received();
  if (!failure_.empty()) ranks_->fail(failure_);
  // The message includes the time that the rank computed in the step before, in microseconds.
  constexpr int kBits = 40;
  constexpr int64_t kMost = (int64_t{1} << kBits) - 1;
  const int64_t computed = std::clamp<int64_t>(std::llround(1e6 * computed_), 0, kMost);
  int64_t signal = 0;
  std::vector<double> seconds;
  for (const int64_t word : ranks_->each(int64_t{StopSignals::received()} << kBits | computed)) {
    signal = std::max(signal, word >> kBits);
    seconds.push_back(1e-6 * static_cast<double>(word & kMost));
  }
  if (steps_taken_ > 0 && signal == 0) note(slow_ranks_->add(seconds));
  return static_cast<int>(signal);
}

}  // namespace stepc::train
