#include "train/step/rank_learner.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "aten/device_hook.h"
#include "aten/generator_snapshot.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "capture/virtual/virtual_region.h"
#include "engine/plan/plan_profile.h"
#include "engine/ranks/consensus.h"
#include "engine/virtual_door.h"
#include "models/lora.h"
#include "runtime/micro_kernels.h"
#include "train/config/parallel.h"
#include "train/machine/kernel_directory.h"
#include "train/model/adapter_choice.h"
#include "train/step/capture_run.h"
#include "train/step/find_nonfinite.h"
#include "train/step/local_learner.h"
#include "train/step/same_tensors.h"

namespace stepc::train {

namespace {

// The optimizer's state for all parameters together, before the first step.
NamedTensors shared_state(const RunConfig& config, at::ScalarType compute) {
  const std::string name = "any";
  const at::Tensor parameter = at::zeros({1}, compute).requires_grad_();
  NamedTensors state = choose_optimizer(config, {{name, parameter}}).optimizer->named_state();
  std::erase_if(state, [&](const auto& item) { return item.first.starts_with(name + "."); });
  return state;
}

SavesFn saves_of(const StageSteps* stages) {
  if (stages == nullptr) return {};
  return [stages](Owner owner, const std::string& key) { return stages->saves(owner, key); };
}

// A rank's step runs as a Graph, or not at all.
void check_device(const RunConfig& config, const at::Device& device) {
  if (device.is_cpu()) return;
  USER_CHECK(!device.is_cuda() || config.train.device_kernels,
             "train.device = \"{}\": on ranks a step runs as a Graph, which has run on no GPU yet: "
             "train.device_kernels = true tries it",
             config.train.device);
  const std::string why = install_device_hook(device.type());
  USER_CHECK(why.empty(), "train.device = \"{}\": a rank's memory is planned, and {}", config.train.device, why);
}

CommonMachine machine_of_all(int threads, const std::optional<Target>& target, Ranks& ranks) {
  const blocked::MicroKernels kernels = probe_micro_kernels();
  Config config;
  config.kernel_directory = kernel_directory();
  config.target = target;
  return common_machine(host_cpu(), kernels, known_target(config, features_of(kernels), threads), ranks);
}

}  // namespace

RankLearner::RankLearner(ModelDirectory directory, const RunConfig& config, Strategy strategy,
                         std::shared_ptr<Ranks> ranks, const std::optional<Target>& target, const at::Device& device)
    : config_(config),
      device_(device),
      to_device_(device),
      mesh_(strategy.mesh),
      strategy_(std::move(strategy)),
      ranks_(std::move(ranks)),
      stage_ranks_(stage_ranks(mesh_, ranks_)),
      directory_(std::move(directory)),
      machine_(machine_of_all(static_cast<int>(config.train.threads), target, *ranks_)),
      kernels_(kernel_directory(), machine_.cpu, machine_.micro_kernels),
      state_(stage_ranks_.stage_mesh, stage_ranks_.stage) {
  if (!machine_.told.empty()) log().warn(machine_.told);
  check_tensor_parallel(strategy_, directory_.config.num_attention_heads, directory_.config.vocab_size);
  check_context_parallel(strategy_, config.data.longest_row());
  strategy_.mesh = stage_ranks_.stage_mesh;
  config_.parallel.pp = stage_ranks_.count;
  check_pipeline(config_, directory_.config.num_hidden_layers);
  check_stages(config_);
  check_device(config_, device_);
  if (!device_.is_cpu()) {
    CommonCard card = common_card(device_, target, *ranks_);
    const std::string_view weighed = weighed_by_rates(strategy_, parse_memory_budget(config_.memory.budget));
    USER_CHECK(weighed.empty() || card.why_unknown.empty(), "train.device = \"{}\": {} weighs by rates, and {}",
               config_.train.device, weighed, card.why_unknown);
    machine_.known = std::move(card.known);
  }
  const VirtualRegion shapes_alone;
  model_ =
      models::Decoder(directory_.config, at::TensorOptions(device_).dtype(models::scalar_type(config.model.compute)));
  if (directory_.adapter) models::add_adapters(model_, *directory_.adapter, 0);
  optimizer_ = choose_optimizer(config, models::trainable_parameters(model_));
  if (!is_cut(config_)) return;
  stages_ = std::make_unique<StageSteps>(pipeline_of(config_), parse_verify(config_.train.verify), stage_ranks_,
                                         kernels_, state_);
}

CompileOptions RankLearner::compile_options() const {
  CompileOptions options;
  options.target = machine_.known.target;
  options.budget = parse_memory_budget(config_.memory.budget);
  options.strategy = strategy_;
  options.fp8 = config_.train.fp8();
  options.device_graphs = true;
  return options;
}

// Later programs find the parameters as the first one has split them.
std::unique_ptr<RankProgram> RankLearner::program_of(VirtualPlan captured, Context context) {
  CompileOptions options = compile_options();
  options.strategy.context = context;
  auto program = std::make_unique<RankProgram>(std::move(captured), kernels_, options,
                                               parse_verify(config_.train.verify), ranks_, state_);
  keep_parameters(strategy_, program->graph());
  return program;
}

at::Tensor RankLearner::run_other(const std::string& name, Context context, const std::function<VirtualPlan()>& capture,
                                  const std::vector<at::Tensor>& batch) {
  Other& other = others_[name];
  if (other.own == nullptr && other.stages == nullptr) {
    const models::EvaluationScope no_dropout(model_);
    if (stages_ != nullptr) {
      CompileOptions options = compile_options();
      options.strategy.context = context;
      options.budget = {};  // there is no backward pass to recompute in
      const Graph graph = rank_graph_of(capture(), kernels_, options);
      other.stages = stages_->run_of(stages_->cuts().forward(graph, 1), options);
    } else {
      other.own = program_of(capture(), context);
    }
  }
  if (other.own != nullptr) return other.own->step(batch).outputs[0];
  return other.stages->run([&](int64_t) { return batch; })[0][0];
}

std::vector<at::Tensor> RankLearner::rows_of(const Batch& batch) const {
  return step_rows(config_, mesh_, to_device_(batch));
}

RankLearner::Programs& RankLearner::programs_for(const Batch& batch) {
  Programs& programs = programs_[batch.tokens.size(2)];
  if (programs.whole != nullptr || programs.staged != nullptr) return programs;
  VirtualPlan captured = capture_step(model_, optimizer_, config_, rows_of(batch));
  if (stages_ == nullptr) {
    programs.whole = program_of(std::move(captured), strategy_.context);
    return programs;
  }
  CompileOptions options = compile_options();
  programs.staged = std::make_unique<StagedStep>(std::move(captured), *stages_, config_.train.micro_batches, kernels_,
                                                 options, parse_verify(config_.train.verify), state_);
  strategy_.known = options.strategy.known;
  programs.staged->predict(machine_.known);
  return programs;
}

std::vector<const RankProgram*> RankLearner::Programs::all() const {
  if (staged != nullptr) return staged->programs();
  return whole != nullptr ? std::vector<const RankProgram*>{whole.get()} : std::vector<const RankProgram*>();
}

std::vector<const RankProgram*> RankLearner::step_programs() const {
  std::vector<const RankProgram*> all;
  for (const auto& [seq, programs] : programs_)
    for (const RankProgram* program : programs.all()) all.push_back(program);
  return all;
}

bool RankLearner::plan(const Batch& batch) {
  programs_for(batch);
  return true;
}

void RankLearner::load(const RunConfig& config) {
  state_.load();
  std::map<std::string, std::string> hashes;
  const auto put_weight = [&](const std::string& name, const auto&... tensor) {
    state_.put(Owner::kParameter, name, tensor...);
    state_.put(Owner::kOptimizerState, name + std::string(kMasterSuffix), tensor...);
  };
  visit_weights(directory_, [&](const std::string& name, const TensorFiles& files, const TensorFiles::Tensor& tensor) {
    hashes[name] = sample_hash(files, tensor);
    put_weight(name, files, tensor);
  });
  if (directory_.adapter) {
    const models::Decoder drawn = [&] {  // the adapters alone have values
      const VirtualRegion shapes_alone;
      return models::Decoder(directory_.config);
    }();
    load_adapter_weights(directory_, drawn);
    const NamedTensors adapter = models::adapter_state(drawn);
    const auto names = saved_names(directory_, model_);
    for (size_t i = 0; i < adapter.size(); ++i) put_weight(names[i].second, adapter[i].second);
  }
  check_same_tensors(*ranks_, "the weights", hashes);
  for (const auto& [name, tensor] : shared_state(config, models::scalar_type(config.model.compute)))
    state_.put(Owner::kOptimizerState, name, tensor);
  for (const auto& item : model_->named_buffers()) state_.put(Owner::kBuffer, item.key(), item.value());
  directory_.config.dtype = saved_dtype(directory_.config.dtype, config.model.compute);
  doing_ = Doing::kNothing;
}

void RankLearner::prepare(const Batch& batch, double /*lr*/) { programs_for(batch); }

void RankLearner::note_run_of(const RankProgram& program) {
  doing_ = program.must_verify() ? Doing::kUnknown : Doing::kProgram;
  running_ = &program;
}

std::optional<Profile> RankLearner::finish_profile() {
  is_timed_ = false;
  std::optional<Profile> profile;
  for (const RankProgram* program : step_programs()) {
    const auto times = timed_.find(program);
    if (times == timed_.end()) continue;
    Profile one = profile_of(program->schedule(), Mode::kFast, times->second, machine_.known);
    if (profile)
      profile->append(one);
    else
      profile = std::move(one);
  }
  return profile;
}

TrainedStep RankLearner::step(const Batch& batch, double lr) {
  Programs& programs = programs_for(batch);
  before_step_ = read_generator(draws());
  state_.put(Owner::kOptimizerState, "lr", at::scalar_tensor(lr, at::kDouble));  // which each step is given
  const std::vector<at::Tensor> rows = rows_of(batch);
  std::vector<at::Tensor> made;
  if (programs.staged != nullptr) {
    made = run_staged(*programs.staged, rows);
  } else {
    note_run_of(*programs.whole);
    made = programs.whole->step(rows, is_timed_ ? &timed_[programs.whole.get()] : nullptr).outputs;
  }
  doing_ = Doing::kNothing;
  return {made[0].item<double>(), made[1].item<double>(), made[2].item<double>() != 0};
}

std::vector<at::Tensor> RankLearner::run_staged(StagedStep& step, const std::vector<at::Tensor>& rows) {
  StagedStep::Probes probes;
  if (is_timed_) probes.times = &timed_;
  probes.on_update = [&](const StageRun& update) {
    doing_ = Doing::kUnknown;
    if (update.programs().size() == 1) note_run_of(*update.programs()[0]);  // of the only stage
  };
  const bool is_compared =
      std::ranges::any_of(step.programs(), [](const RankProgram* program) { return program->must_verify(); });
  doing_ = is_compared ? Doing::kUnknown : Doing::kGradients;
  return step.begin(rows, probes).outputs;
}

double RankLearner::summed_loss(const Batch& rows) {
  // The batch always has this number of rows, so one program is enough.
  const Batch batch = to_device_(with_rows(rows, config_.train.batch_size));
  const auto loss = [&](const std::vector<at::Tensor>& tensors) {
    const at::NoGradGuard no_grad;
    const Batch given = Batch::from_tensors(tensors);
    return model_->loss(given.tokens, given.labels, at::ones({}), given.documents);
  };
  const std::vector<ModuleRef> modules = {model_};
  return run_other(
             str("loss {}", fmt::join(batch.tokens.sizes(), "x")), strategy_.context,
             [&] { return stepc::plan(loss, modules, {}, batch.tensors()); }, batch.tensors())
      .item<double>();
}

// Rows are padded to the next of a few lengths, each twice the one before, so few programs are needed. Padding behind
// the text does not influence the text before it.
at::Tensor RankLearner::next_logits(const std::vector<int64_t>& ids) {
  constexpr int64_t kShortest = 64;
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t longest = config_.data.longest_row();
  INTERNAL_CHECK(0 < count && count <= longest, "{} tokens of a text", count);
  int64_t seq = std::min(kShortest, longest);
  while (seq < count) seq = std::min(2 * seq, longest);
  const at::Tensor row = at::zeros({1, seq}, at::kLong), place = at::zeros({1, seq});
  std::ranges::copy(ids, row.data_ptr<int64_t>());
  place[0][count - 1] = 1;
  const std::vector<at::Tensor> tensors = {row.to(device_), place.to(device_)};
  const auto at_place = [&](const std::vector<at::Tensor>& given) {
    const at::NoGradGuard no_grad;
    return model_->logits_at(given.at(0), given.at(1));
  };
  const std::vector<ModuleRef> modules = {model_};
  // The lengths are not those of training, and only a ring accepts all of them.
  const bool are_rates_known = device_.is_cpu() || machine_.known.target.gpu;
  const at::Tensor logits = run_other(
                                str("logits {}", seq), are_rates_known ? Context::kByPrice : Context::kRing,
                                [&] { return stepc::plan(at_place, modules, {}, tensors); }, tensors)
                                .select(0, 0)
                                .contiguous()
                                .to(at::kCPU);
  ranks_->all().broadcast(logits);  // a sum of its own rounding on each rank may tip a draw
  return logits;
}

Sample RankLearner::sample(const std::string& prompt, const SampleOptions& options) {
  return sample_text(
      directory_.config, [this](const std::vector<int64_t>& ids) { return next_logits(ids); },
      config_.data.longest_row(), directory_.tokenizer, prompt, options);
}

SavedSlices RankLearner::weight_slices() const {
  return train::weight_slices(directory_, model_, state_, saves_of(stages_.get()));
}
SavedSlices RankLearner::state_slices() const {
  return train::state_slices(optimizer_, state_, saves_of(stages_.get()));
}

NamedTensors RankLearner::weights() { return windows(state_, weight_slices()); }

NamedTensors RankLearner::state() {
  NamedTensors state = windows(state_, state_slices());
  if (ranks_->rank() != 0) return state;
  state.emplace_back(kGeneratorState, default_generator_of(at::kCPU).get_state());
  if (device_.is_cuda()) state.emplace_back(kDeviceGeneratorState, draws().get_state());
  return state;
}

at::Generator RankLearner::draws() const { return default_generator_of(device_); }

uint64_t RankLearner::staged_bytes() const { return train::staged_bytes(weight_slices(), state_slices(), state_); }
uint64_t RankLearner::saved_bytes() const { return train::saved_bytes(weight_slices(), state_slices(), state_); }

void RankLearner::write_checkpoint(const std::filesystem::path& checkpoint, const NamedTensors& weights,
                                   const NamedTensors& state, FileSystem& files) const {
  write_slices(checkpoint, directory_.adapter ? kAdapterFiles : kModelFiles, *ranks_, mesh_, weight_slices(), weights,
               directory_.adapter ? std::nullopt : std::optional(models::scalar_type(directory_.config.dtype)), files);
  SavedSlices slices = state_slices();
  for (size_t whole = slices.size(); whole < state.size(); ++whole)
    slices.push_back(slice_of_whole(state[whole].first, state[whole].second.sizes().vec()));
  write_slices(checkpoint, kOptimizerFiles, *ranks_, mesh_, slices, state, std::nullopt, files);
  if (ranks_->rank() == 0) write_companions(checkpoint, directory_, files);
}

void RankLearner::load_optimizer(const std::filesystem::path& checkpoint) {
  const TensorFiles files(checkpoint, kOptimizerFiles);
  std::set<std::string> missing;
  std::map<std::string, std::string> hashes;
  for (const auto& [name, tensor] : optimizer_.optimizer->named_state()) missing.insert(name);
  for (const TensorFiles::Tensor& tensor : files.tensors()) {
    const std::string& name = tensor.name;
    hashes[name] = sample_hash(files, tensor);
    if (name == kGeneratorState || name == kDeviceGeneratorState) {
      const bool is_devices = name == kDeviceGeneratorState;  // a run that goes on on the CPU has none
      if (!is_devices) default_generator_of(at::kCPU).set_state(read_tensor(files, tensor));
      if (is_devices && device_.is_cuda()) draws().set_state(read_tensor(files, tensor));
      continue;
    }
    USER_CHECK(missing.erase(name) == 1, "{}: the optimizer has no state {}", checkpoint.string(), name);
    state_.put(Owner::kOptimizerState, name, files, tensor);
    // The parameters are the rounded master weights, as the update leaves them.
    if (name.ends_with(kMasterSuffix))
      state_.put(Owner::kParameter, name.substr(0, name.size() - kMasterSuffix.size()), files, tensor);
  }
  USER_CHECK(missing.empty(), "{}: the optimizer's state {} is missing", checkpoint.string(), *missing.begin());
  check_same_tensors(*ranks_, "the optimizer's state", hashes);
}

void RankLearner::restore(const std::filesystem::path& checkpoint) {
  restore_from(open_model_directory(checkpoint));
  load_optimizer(checkpoint);
}

void RankLearner::restore_fresh(const std::filesystem::path& model, const RunConfig& config) {
  ModelDirectory fresh = open_model_directory(model);
  choose_adapter(config, fresh);
  restore_from(std::move(fresh));
}

void RankLearner::restore_from(ModelDirectory directory) {
  directory_ = std::move(directory);
  state_.clear(Owner::kOptimizerState);
  state_.clear(Owner::kGradient);
  load(config_);
}

// All ranks run the same Schedule, and collectives spread a value, so the earliest instruction that any rank finds is
// the cause.
std::optional<std::string> RankLearner::find_nonfinite_in(const Batch& batch) {
  std::string bad_weight;
  for (const auto& [own, tensor] : model_->named_parameters().pairs())
    if (bad_weight.empty() && state_.has(Owner::kParameter, own) && has_nonfinite(state_.part(Owner::kParameter, own)))
      bad_weight = str("the weight {}", own);
  if (auto weight = first_of_all(*ranks_, {}, bad_weight)) return weight;
  std::vector<size_t> place;
  std::string what;
  const auto look_at = [&](const RankProgram& program, std::vector<size_t> round) {
    return [&, round](size_t instruction, const at::Tensor& written) {
      if (!what.empty() || !has_nonfinite(written)) return;
      const Instruction& made = program.schedule().instructions[instruction];
      const std::string module = made.source.module.empty() ? "the loss" : made.source.module;
      place = round;
      place.push_back(instruction);
      what = str("{}{} ({})", made.source.phase == Phase::kForward ? "" : str("the {} of ", name_of(made.source.phase)),
                 module, made.op.empty() ? name_of(made.kind) : made.op);
    };
  };
  Programs& programs = programs_for(batch);
  if (programs.staged != nullptr) {
    const auto look_at_function = [&](const RankProgram& program, int64_t micro_batch, uint32_t function) {
      return RankProgram::OnWritten(look_at(program, {static_cast<size_t>(micro_batch), function}));
    };
    programs.staged->run_passes(rows_of(batch), {nullptr, look_at_function});
  } else {
    programs.whole->step(rows_of(batch), nullptr, look_at(*programs.whole, {0}));
  }
  return first_of_all(*ranks_, place, what);
}

const RankProgram& RankLearner::largest() const {
  const RankProgram* found = nullptr;
  for (const RankProgram* program : step_programs())
    if (found == nullptr || program->memory().peak_bytes > found->memory().peak_bytes) found = program;
  INTERNAL_CHECK(found != nullptr, "no step is planned");
  return *found;
}

Stats RankLearner::stats() const {
  Stats stats;
  stats.is_warm = true;
  stats.state_bytes = state_.bytes();
  for (const RankProgram* program : step_programs()) {
    const MemoryCounts& measured = program->measured();
    stats.measured_peak_bytes =
        std::max(stats.measured_peak_bytes, measured.arena_peak_bytes + measured.kept_bytes + measured.unplanned_bytes);
    stats.planned_peak_bytes = std::max(stats.planned_peak_bytes, program->schedule().peak_bytes());
    stats.unplanned_allocations += measured.unplanned;
    stats.device_graphs = std::max(stats.device_graphs, measured.device_graphs);
    stats.planning_seconds += program->planning_seconds();
    ++stats.plans;
    count_verified(stats, program->verified());
  }
  for (const auto& [name, other] : others_) {
    if (other.own != nullptr) count_verified(stats, other.own->verified());
    if (other.stages == nullptr) continue;
    for (const auto& program : other.stages->programs())
      if (program != nullptr) count_verified(stats, program->verified());
  }
  if (programs_.empty()) return stats;
  uint64_t planned = 0, measured = 0;  // of what lies between a stage's functions
  for (const auto& [seq, programs] : programs_) {
    if (programs.staged == nullptr) continue;
    planned = std::max(planned, programs.staged->planned_between());
    measured = std::max(measured, programs.staged->measured_between());
    stats.device_graphs = std::max(stats.device_graphs, programs.staged->graphs_launched());
  }
  stats.planned_peak_bytes += planned;
  stats.measured_peak_bytes += measured;
  const RankProgram& program = largest();
  stats.instructions = program.schedule().instructions.size();
  stats.graph_nodes = program.graph().nodes.size();
  stats.arena_bytes = program.schedule().arena_bytes;
  stats.replays = program.replays();
  return stats;
}

std::string RankLearner::report(const std::optional<Prediction>& /*told*/) const {
  const RankProgram& program = largest();
  const std::string& with = program.verified().with;
  Strategy strategy = strategy_;
  strategy.mesh = mesh_;
  std::string text =
      str("rank {} of {}: {} instructions, {} of them collectives; model and optimizer {}, step {}\n{}", ranks_->rank(),
          to_text(strategy), program.schedule().instructions.size(),
          program.schedule().count(Instruction::Kind::kCollective), human_bytes(state_.bytes()),
          human_bytes(stats().planned_peak_bytes), with.empty() ? std::string() : str("compared {}\n", with));
  if (stage_ranks_.count == 1) return text;
  const StagedStep& staged = *programs_.rbegin()->second.staged;
  const StageRun& run = staged.micro_batches();
  const double waited = run.run_seconds() > 0 ? run.waited_seconds() / run.run_seconds() : 0;
  text += str("stages begin with {}; of the micro-batches' time this rank waits for others {:.0f} %{}\n",
              fmt::join(stages_->cuts().begins(), ", "), 100 * waited, staged.predicted_wait(stage_ranks_.own));
  return text;
}

std::optional<Prediction> RankLearner::prediction() const {
  if (programs_.empty() || !is_priced(largest().schedule(), machine_.known)) return std::nullopt;
  const Programs& programs = programs_.rbegin()->second;
  if (programs.staged != nullptr) return programs.staged->prediction(machine_.known);
  return predict(programs.whole->schedule(), machine_.known);
}

std::optional<Target> RankLearner::weighed_with() const {
  const bool weighs = parse_memory_budget(config_.memory.budget).kind == MemoryBudget::Kind::kAuto;
  return weighs ? std::optional(machine_.known.target) : std::nullopt;
}

std::string RankLearner::memory_table() const { return to_text(largest().memory()); }
std::string RankLearner::memory_picture() const {
  return timeline_svg(largest().memory(), "live bytes of a training step on one rank");
}

}  // namespace stepc::train
