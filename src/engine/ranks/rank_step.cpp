#include "engine/ranks/rank_step.h"

#include <algorithm>
#include <bit>
#include <span>

#include <fmt/ranges.h>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "capture/observer.h"
#include "engine/compare/tensor_hash.h"
#include "engine/plan/plan_cache.h"
#include "engine/plan/plan_profile.h"
#include "engine/ranks/common_machine.h"
#include "engine/ranks/consensus.h"
#include "engine/ranks/noted.h"
#include "engine/ranks/replicas.h"
#include "runtime/kernel_sources.h"
#include "runtime/micro_kernels.h"

namespace stepc {

namespace {

// How often a plan is looked for or captured in one call.
constexpr int kMostAttempts = 4;
// How many paths one call may discover, one after the other, by the numbers that its code reads.
constexpr int kMostPaths = 16;

Strategy of_a_stage(Strategy strategy) {
  strategy.mesh = without_stages(strategy.mesh);
  return strategy;
}

std::string hash_of_text(std::string_view text) { return hash_text(hash_bytes(std::as_bytes(std::span(text)))); }

// Appends the number exactly, for comparison.
void append(std::string& out, const c10::IValue& number) {
  if (number.isDouble())
    out += str("{:x} ", std::bit_cast<uint64_t>(number.toDouble()));
  else if (number.isTensor())
    out += hash_text(hash_of(number.toTensor())) + " ";
  else if (number.isList())
    for (const c10::IValue& one : number.toListRef()) append(out, one);
  else if (number.isInt())
    out += str("{} ", number.toInt());
  else if (number.isBool())
    out += number.toBool() ? "true " : "false ";
}

}  // namespace

RankStep::RankStep(Program& program, const Config& config, Stats& stats)
    : program_(program),
      config_(config),
      stats_(stats),
      ranks_(config.parallel->ranks ? config.parallel->ranks
                                    : ranks_of_process(config.parallel->launch, config.parallel->elastic)),
      strategy_(strategy_of(*config.parallel, ranks_->ranks())),
      pipeline_(pipeline_of(*config.parallel, strategy_)),
      budget_(config.memory_budget),
      stage_ranks_(stage_ranks(strategy_.mesh, ranks_)),
      is_open_(config.parallel->is_searched && ranks_->ranks() > 1),
      rows_(*config.parallel, of_a_stage(strategy_), stage_ranks_.stage, ranks_),
      parts_(program, stage_ranks_) {}

// ---- calls

// A rank computes with contiguous rows. The program may give windows of larger tensors that differ between ranks or
// overlap.
StepInput RankStep::contiguous(const StepInput& given) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  StepInput input = given;
  copied_.assign(input.tensors.size(), false);
  for (size_t t = 0; t < input.tensors.size(); ++t) {
    at::Tensor& tensor = input.tensors[t];
    if (!tensor.defined() || tensor.layout() != c10::Layout::Strided || tensor.is_contiguous()) continue;
    tensor = tensor.detach().contiguous().set_requires_grad(tensor.requires_grad());
    copied_[t] = true;
  }
  return input;
}

StepOutput RankStep::run(const StepInput& given, const StepOnFn& step) {
  const bool trains = at::GradMode::is_enabled();
  if (trains) ranks_->flight().note_step(trained_ + 1);
  return noted(*ranks_, trains ? "a call of the step" : "a call without gradients", [&] {
    StepOutput output = take(given, step);
    if (trains) ++trained_;
    const int64_t every = config_.parallel->elastic.check_every;
    if (trains && every > 0 && trained_ % every == 0) check_replicas();
    return output;
  });
}

void RankStep::check_replicas() {
  ranks_->flight().enter("comparing replicas", /*is_brief=*/true);
  const std::string mine = find_unlike_replica(parts_.state()).value_or("");
  for (const std::string& unlike : ranks_->exchange(mine))  // of a pipeline each stage compares its own
    USER_CHECK(unlike.empty(),
               "step {}: {}: a machine has computed or kept something wrong; what was saved before is good", trained_,
               unlike);
}

void RankStep::look_at_python() {
  if (std::exchange(is_begun_, true)) return;
  const std::string why = config_.python == PythonMode::kAuto ? program_.why_unwatched() : std::string();
  if (!why.empty()) program_.trace(why);
  is_traced_ = !why.empty() || config_.python == PythonMode::kTrace;
  if (is_traced_) log().info("the step's Python runs beside every replay, on shapes and on the numbers that it reads");
}

// Takes the plan's inputs over before its first run.
void RankStep::take_inputs(Entry& plan) {
  if (!parts_.take(std::exchange(plan.inputs, {}))) warn_that_parameters_differ();
}

bool RankStep::plan(const StepInput& given, const StepOnFn& step) {
  if (ranks() > 1) return false;
  look_at_python();
  const StepInput input = contiguous(given);
  program_.refresh();
  if (find(signature(list_tensors(program_, input), input)) == nullptr) capture(input, step, {}, /*takes=*/false);
  return true;
}

StepOutput RankStep::take(const StepInput& given, const StepOnFn& step) {
  look_at_python();
  const StepInput input = contiguous(given);
  int paths = 0;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    Call call;
    try {
      call = begin(input);
    } catch (const std::exception& error) {
      ranks_->tell(first_line(error.what()));  // the others wait for this rank
      throw;
    }
    try {
      if (!check_alike(call, input) && call.plan != nullptr) {
        call.undo->restore();
        plans_.remove_if([&](const Entry& one) { return &one == call.plan; });
        call.plan = nullptr;
      }
      if (!parts_.take(call.moved)) warn_that_parameters_differ();
      if (call.plan != nullptr) take_inputs(*call.plan);
      if (call.plan != nullptr && !call.plan->is_path) return replay(*call.plan, input);
      if (call.plan != nullptr) {
        if (std::optional<StepOutput> output = follow(call, input, step)) return std::move(*output);
        --attempt;
        USER_CHECK(++paths < kMostPaths,
                   "this step takes another path at every attempt, by numbers that its code reads: {} were captured in "
                   "one call",
                   paths);
        continue;
      }
    } catch (...) {
      if (call.plan != nullptr) call.undo->restore();
      throw;
    }
    ranks_->flight().enter("capturing the step", /*is_brief=*/false);
    capture(input, step);
  }
  user_error("this step finds another structure of modules or optimizers at every call, and cannot run {}", where());
}

// The part of a call that a rank does alone: it finds its plan and its optimizers' numbers.
RankStep::Call RankStep::begin(const StepInput& input) {
  USER_CHECK(current_observer() == nullptr,
             "an accelerated step is called inside another one that is being recorded: accelerate the outer step only");
  Call call;
  program_.refresh();
  call.tensors = list_tensors(program_, input);
  call.signature = signature(call.tensors, input);
  call.moved = parts_.moved_since(call.tensors);
  call.plan = find(call.signature);
  if (call.plan == nullptr) return call;
  for (const auto& [key, tensor] : call.moved) call.numbers += str("{} {} ", name_of(key.first), key.second);
  const auto begin = Clock::now();
  std::vector<at::Tensor> counters;
  for (const auto& update : call.plan->updates)
    for (size_t place : update->counters())
      if (place < call.tensors.size() && call.tensors[place].defined()) counters.push_back(call.tensors[place]);
  call.undo.emplace(nullptr, std::move(counters), std::vector<at::Generator>());
  std::string difference;
  try {
    difference = update(*call.plan, call.tensors, *call.undo, call.numbers);
  } catch (...) {
    call.undo->restore();
    throw;
  }
  if (difference.empty() && call.plan->is_unfit()) difference = "the optimizer passes another integer";
  if (!difference.empty()) {
    call.undo->restore();
    log().info("recording again: {}", difference);
    plans_.pop_front();
    call.plan = nullptr;
    call.numbers.clear();
  }
  stats_.shadow_seconds += seconds_since(begin);
  return call;
}

std::vector<at::Tensor> RankStep::batch_for(const Entry& plan, const StepInput& input) const {
  return plan.staged ? rows_.for_parts(plan.staged->batch_parts(), input)
                     : rows_.for_plan(plan.program->schedule(), input);
}

StepResult RankStep::begin_plan(const Entry& plan, const std::vector<at::Tensor>& batch) {
  constexpr uint64_t kSettled = 3;  // the first replays are compared, and bring memory and caches up
  ranks_->flight().enter(kInStep, /*is_brief=*/plan.replays >= kSettled);
  if (plan.staged) return plan.staged->begin(batch, {{times_ ? &staged_times_ : nullptr}});
  return plan.program->begin(batch, times_ ? &*times_ : nullptr);
}

StepOutput RankStep::replay(Entry& plan, const StepInput& input) {
  if (plan.draws) share_draws(plan);
  const auto begin = Clock::now();
  const double verified = plan.verified().seconds;
  const std::vector<at::Tensor> batch = batch_for(plan, input);
  if (plan.must_verify()) plan.program->verify(batch);
  StepResult result = begin_plan(plan, batch);
  INTERNAL_CHECK(result.is_whole(), "a rank's step pauses, and nobody asked it to");
  stats_.execute_seconds += seconds_since(begin) - (plan.verified().seconds - verified);
  count_replay(plan, result);
  return {std::move(result.outputs), std::move(result.numbers)};
}

void RankStep::gather(const std::vector<at::Tensor>& tensors, bool keeps) {
  noted(*ranks_, "gathering whole tensors", [&] { parts_.gather(tensors, keeps); });
}

void RankStep::scatter(const std::vector<at::Tensor>& tensors, bool takes) {
  noted(*ranks_, "taking whole tensors back", [&] { parts_.scatter(tensors, takes); });
}

std::filesystem::path RankStep::save(const std::filesystem::path& output, int64_t number,
                                     const Companions& companions) {
  return noted(*ranks_, "saving", [&] {
    if (config_.parallel->elastic.check_every > 0) check_replicas();
    const std::filesystem::path saved = parts_.save(output, number, companions);
    if (Watchdog* const watchdog = ranks_->watchdog()) watchdog->leave_in(output);
    return saved;
  });
}

Checkpoint RankStep::load(const std::filesystem::path& from, const ProgramParts::AcceptFn& accept) {
  return noted(*ranks_, "loading", [&] {
    Checkpoint loaded = parts_.load(from, accept);
    trained_ = loaded.state.step;
    return loaded;
  });
}

std::vector<ProgramParts::HeldTensor> RankStep::held_tensors() {
  return noted(*ranks_, "naming what it holds", [&] { return parts_.held_tensors(); });
}

void RankStep::count_replay(Entry& plan, const StepResult& result) {
  is_timed_ = times_.has_value();
  ++plan.replays;
  count_verified(stats_, plan.verified(), std::exchange(plan.counted, plan.verified()));
  ++stats_.replays;
  stats_.is_warm = true;
  const MemoryCounts& memory = result.memory;
  stats_.served_allocations = memory.served;
  stats_.unplanned_allocations += memory.unplanned;
  stats_.device_graphs = memory.device_graphs;
  const uint64_t measured = memory.arena_peak_bytes + memory.kept_bytes + memory.unplanned_bytes;
  stats_.measured_peak_bytes = memory.device_graphs > 0 ? std::max(stats_.measured_peak_bytes, measured) : measured;
}

// Supplies the optimizers' numbers of this call. Returns why they do not fit the plan, empty if they do.
std::string RankStep::update(Entry& plan, const std::vector<at::Tensor>& tensors, Undo& undo, std::string& numbers) {
  for (const auto& update : plan.updates) {
    const int64_t known_before = update->known_updates();
    std::string difference = update->run(
        program_, tensors, /*learns=*/true, [&] { undo.add_host_state(program_); },
        [&](const HostSupply& supplied, bool is_new) {
          if (is_new) plan.supply(supplied);
          append(numbers, supplied.number);
        });
    stats_.known_updates += static_cast<uint64_t>(update->known_updates() - known_before);
    if (!difference.empty()) return difference;
  }
  return {};
}

std::string RankStep::signature(const std::vector<at::Tensor>& tensors, const StepInput& input) {
  return signature_of(program_, tensors, input) + shared_.among(program_, tensors);
}

// Among several paths, returns the requested one, otherwise the one replayed most often.
RankStep::Entry* RankStep::find(const std::string& signature) {
  const Entry* const asked_for = std::exchange(next_, nullptr);
  auto found = plans_.end();
  for (auto plan = plans_.begin(); plan != plans_.end(); ++plan) {
    if (plan->signature != signature) continue;
    if (found == plans_.end() || &*plan == asked_for || (&*found != asked_for && plan->replays > found->replays))
      found = plan;
  }
  if (found == plans_.end()) return nullptr;
  plans_.splice(plans_.begin(), plans_, found);
  return &plans_.front();
}

// ---- all ranks alike

// Whether all ranks have a plan for the call. If a rank has none, all ranks capture the call.
bool RankStep::check_alike(const Call& call, const StepInput& input) {
  const std::string hash = hash_of_text(call.signature);
  const std::vector<std::string> all =
      enter_together(*ranks_, "the step", hash + (call.plan == nullptr ? std::string() : hash_of_text(call.numbers)));
  const auto is_like_first = [&](const std::string& one) { return one.starts_with(all[0].substr(0, hash.size())); };
  const bool have_plans = std::ranges::all_of(all, [&](const std::string& one) { return one.size() > hash.size(); });
  if (std::ranges::all_of(all, is_like_first) && (!have_plans || std::ranges::count(all, all[0]) == std::ssize(all)))
    return have_plans;
  std::string words;
  for (const auto& [what, value] : describe_signature(program_, call.tensors, input))
    words += str("{}\t{}\n", what, value);
  const std::vector<std::string> described = ranks_->exchange(words);
  const auto map_of = [](const std::string& text) {
    std::map<std::string, std::string> out;
    for (const std::string& line : split(text, '\n'))
      if (const size_t tab = line.find('\t'); tab != std::string::npos) out[line.substr(0, tab)] = line.substr(tab + 1);
    return out;
  };
  for (size_t r = 1; r < all.size(); ++r) {
    if (have_plans ? all[r] == all[0] : is_like_first(all[r])) continue;
    const bool has_same_look = described[r] == described[0];
    user_error("rank {} does another step than rank 0, and all ranks of a step do the same: {}", r,
               has_same_look ? std::string("its optimizer has other numbers, such as a learning rate of its own")
                             : explain_change(map_of(described[0]), map_of(described[r])));
  }
  INTERNAL_CHECK(false, "ranks whose steps differ in nothing");
}

// All ranks draw from rank 0's generator state, so draws do not depend on the number of ranks.
void RankStep::share_draws(const Entry& plan) {
  at::Generator generator = plan.generator();
  const at::Tensor state = generator.get_state();
  if (!std::exchange(compared_draws_, true)) {
    const std::vector<std::string> all = ranks_->exchange(hash_text(hash_of(state)));
    if (std::ranges::any_of(all, [&](const std::string& one) { return one != all[0]; }))
      warn_once("the ranks' random generators differ: rank 0's draws count");
  }
  ranks_->all().broadcast(state);
  generator.set_state(state);
}

void RankStep::warn_that_parameters_differ() { warn_once("the ranks' parameters differ: rank 0's count"); }

// Warns once, on rank 0.
void RankStep::warn_once(const std::string& warning) {
  if (ranks_->rank() != 0 || std::ranges::find(stats_.warnings, warning) != stats_.warnings.end()) return;
  stats_.warnings.push_back(warning);
  log().warn("{}", warning);
}

// ---- what it did

void RankStep::count(const Entry& plan) {
  ++stats_.plans;
  if (stats_.is_warm) ++stats_.late_plans;
  stats_.nodes = plan.trace().calls.size();
  stats_.instructions = stats_.graph_nodes = stats_.kernels = 0;
  size_t collectives = 0;
  double seconds = 0;
  for (const RankProgram* program : programs_of(plan)) {
    const Schedule& schedule = program->schedule();
    stats_.instructions += schedule.instructions.size();
    stats_.graph_nodes += program->graph().nodes.size();
    stats_.kernels += schedule.count(Instruction::Kind::kGenerated);
    collectives += schedule.count(Instruction::Kind::kCollective);
    seconds += program->planning_seconds();
  }
  const Schedule& schedule = largest_of(plan).schedule();
  stats_.arena_bytes = schedule.arena_bytes;
  stats_.live_lower_bound_bytes = schedule.live_lower_bound_bytes;
  stats_.planned_peak_bytes = plan.staged ? plan.staged->planned_bytes() : schedule.peak_bytes();
  stats_.layout_algorithm = schedule.layout_algorithm;
  stats_.planning_seconds += seconds;
  stats_.state_bytes = parts_.state().bytes();
  if (plan.staged && plan.staged->weighed()) stats_.auto_budget = to_text(*plan.staged->weighed(), known_);
  const std::string where = strategy_.mesh.axes.empty() ? std::string()
                                                        : str(", {} of them collectives, on rank {} of {}", collectives,
                                                              ranks_->rank(), to_text(strategy_.mesh));
  log().info("captured {} calls, planned {} for {} instructions{} in {:.2f} s", stats_.nodes,
             human_bytes(stats_.planned_peak_bytes), stats_.instructions, where, seconds);
}

std::vector<const RankProgram*> RankStep::programs_of(const Entry& plan) {
  return plan.staged ? plan.staged->programs() : std::vector<const RankProgram*>{plan.program.get()};
}

const RankProgram& RankStep::largest_of(const Entry& plan) {
  const std::vector<const RankProgram*> programs = programs_of(plan);
  return **std::ranges::max_element(programs, {}, [](const auto* one) { return one->schedule().peak_bytes(); });
}

const RankProgram* RankStep::latest() const { return plans_.empty() ? nullptr : &largest_of(plans_.front()); }

KnownTarget RankStep::target() const {
  KnownTarget known = known_;
  if (!known.target.gpu) known.target.threads = at::get_num_threads();
  return known;
}

std::optional<Prediction> RankStep::prediction() const {
  if (latest() == nullptr || !is_priced(latest()->schedule(), known_)) return std::nullopt;
  if (plans_.front().staged) return plans_.front().staged->prediction(known_);
  return predict(latest()->schedule(), target());
}

std::optional<Target> RankStep::weighed_with() const {
  if (latest() == nullptr || budget_.kind != MemoryBudget::Kind::kAuto) return std::nullopt;
  return target().target;
}

std::optional<Profile> RankStep::finish_profile() {
  const std::optional<RunTimes> times = std::exchange(times_, std::nullopt);
  if (!std::exchange(is_timed_, false) || !times) return std::nullopt;
  if (plans_.front().staged) {
    std::optional<Profile> profile;
    for (const RankProgram* program : programs_of(plans_.front())) {
      const auto timed = staged_times_.find(program);
      if (timed == staged_times_.end()) continue;
      const Profile one = profile_of(program->schedule(), Mode::kFast, timed->second, target());
      if (profile)
        profile->append(one);
      else
        profile = one;
    }
    return profile;
  }
  return profile_of(latest()->schedule(), Mode::kFast, *times, target());
}

std::string RankStep::report() const {
  std::string out = report_text(stats_, name_of(config_.mode), prediction());
  size_t collectives = 0;
  if (latest() != nullptr)
    for (const RankProgram* program : programs_of(plans_.front()))
      collectives += program->schedule().count(Instruction::Kind::kCollective);
  if (stages_ != nullptr && latest() != nullptr) {
    const StageRun& run = plans_.front().staged->micro_batches();
    const double waited = run.run_seconds() > 0 ? run.waited_seconds() / run.run_seconds() : 0;
    if (stage_ranks_.count == 1)
      out += str("  cut into    {} micro-batches, whose gradients are added up\n", run.program().micro_batches);
    else
      out += str("  stages      begin with {}; of the micro-batches' time this rank waits for others {:.0f} %{}\n",
                 fmt::join(stages_->cuts().begins(), ", "), 100 * waited,
                 plans_.front().staged->predicted_wait(stage_ranks_.own));
  }
  if (ranks_->ranks() == 1) return out;
  return out +
         str("  rank        {} of {} ({}), {} collectives a step\n", ranks_->rank(), ranks_->ranks(),
             strategy_.mesh.axes.empty() ? "no mesh" : to_text(strategy_.mesh), collectives) +
         choice_;
}

std::string RankStep::report_of_all() const {
  const std::string mine =
      str("  rank {:>4}   model and optimizer {:>12}, step peak planned {:>12}, measured {:>12}, {} a step\n",
          ranks_->rank(), human_bytes(stats_.state_bytes), human_bytes(stats_.planned_peak_bytes),
          human_bytes(stats_.measured_peak_bytes),
          stats_.replays == 0 ? "-" : time_text(stats_.execute_seconds / static_cast<double>(stats_.replays)));
  std::string out = report();
  for (const std::string& one : enter_together(*ranks_, "step.report(all_ranks=True)", mine)) out += one;
  return out;
}

}  // namespace stepc
