// How a step becomes a plan of a rank: captured at the sizes of the whole batch, and cut for the mesh.
#include <algorithm>

#include <ATen/Parallel.h>

#include "aten/device_hook.h"
#include "aten/virtual_device.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/plan/plan_cache.h"
#include "engine/ranks/choose_mesh.h"
#include "engine/ranks/common_machine.h"
#include "engine/ranks/consensus.h"
#include "engine/ranks/rank_step.h"
#include "runtime/kernel_sources.h"
#include "runtime/micro_kernels.h"

namespace stepc {

namespace {

// A rank's step runs as a Graph, or not at all.
void check_memory_of(const Program& program, const Config& config, std::string_view where, bool is_alone) {
  std::vector<at::Tensor> tensors;
  program.append_tensors(tensors);
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].defined() || tensors[t].is_cpu() || tensors[t].is_meta()) continue;
    const c10::Device device = tensors[t].device();
    if (is_on_virtual_device(device)) continue;
    const std::string place = str("'{}' lies on {}", program.keys()[t].key, device.str());
    USER_CHECK(!device.is_cuda() || config.device_kernels,
               "a step {} runs as a Graph, and {}, where none has run yet: device_kernels=True tries it{}", where,
               place,
               is_alone ? ""
                        : "; without it ranks average the gradients of an unchanged loop, stepc.accelerate(model, "
                          "optimizer, config=config)");
    const std::string why = install_device_hook(device.type());
    USER_CHECK(why.empty(), "a step {} has memory that is planned, and {}: {}", where, place, why);
  }
}

// How often a step is captured again because its program has other parts than were known before.
constexpr int kMostCaptures = 4;

// Why ranks cannot run the captured step; empty: they can.
std::string why_refused(const VirtualPlan& captured, const std::string& python_reason) {
  if (!captured.obstacle.empty()) return captured.obstacle;
  if (!python_reason.empty()) return python_reason;
  for (const HostEvent& event : captured.trace.events) {
    const bool is_read = event.kind == HostEvent::Kind::kRead, is_shadow = event.kind == HostEvent::Kind::kShadow;
    const bool is_known_update = is_shadow && !event.key.empty();
    if (event.own_calls.empty() && !is_read && !is_shadow)
      return str("'{}' computes on the host with values that depend on data", event.key);
    if (!event.own_calls.empty() && !is_known_update)
      return str("{}{} is a call that only the step's own run can make",
                 captured.trace.calls[event.own_calls[0].index()].op,
                 is_read && !event.key.empty() ? str(" (at {})", event.key) : "");
  }
  for (const External& external : captured.trace.externals)
    if (external.owner == Owner::kHost)
      return "it makes a tensor of numbers that it has read, another one at every step: give the number to an operator "
             "as it is";
  for (const External& external : captured.trace.externals)
    if (external.owner == Owner::kGradient)
      return str("it finds a gradient of '{}' that an earlier call has kept: call zero_grad() before the step ends",
                 external.key);
  for (const Rebinding& left : captured.trace.rebindings)
    if (left.value.valid())
      return left.owner == Owner::kGradient
                 ? str("it keeps the gradient of '{}': call zero_grad() before the step ends", left.key)
                 : str("it gives {} '{}' another tensor", name_of(left.owner), left.key);
  if (captured.trace.generators.size() > 1)
    return str("it draws from the generator '{}', and there is the default one alone", captured.trace.generators[1]);
  return {};
}

// The position of the event's read among the calls that read a number, as VirtualKernels counts them.
size_t read_of(const Trace& trace, const HostEvent& event) {
  const auto end = trace.calls.begin() + static_cast<ptrdiff_t>(event.begin.index());
  return static_cast<size_t>(
             std::count_if(trace.calls.begin(), end,
                           [](const stepc::Call& call) { return call.op == "aten::_local_scalar_dense"; })) -
         1;
}

bool uses_generator(const Schedule& schedule) {
  return std::ranges::any_of(schedule.instructions, [](const Instruction& one) {
    return one.kind == Instruction::Kind::kSeed || one.kind == Instruction::Kind::kSaveGenerator;
  });
}

}  // namespace

void RankStep::capture(const StepInput& input, const StepOnFn& step, const Numbers& numbers, bool takes) {
  together(*ranks_, [&] { rows_.check_dims(input); });
  VirtualPlan captured;
  bool made_state = false;
  const auto take_back = [&] {
    if (made_state) program_.drop_state();
    program_.refresh();
  };
  // Captures the step with the whole batch. Returns the error of the step's own code; empty: captured.
  const auto try_capture = [&] {
    std::string no_fit;
    together(*ranks_, [&] {
      try {
        captured = captured_alike(input, step, numbers);
      } catch (const UserError&) {
        throw;
      } catch (const std::exception& error) {
        no_fit = first_line(error.what());
        if (!rows_.are_split()) throw;
      }
    });
    return common_error(*ranks_, no_fit);
  };
  try {
    together(*ranks_, [&] {
      const std::string kind = program_.unfit();
      USER_CHECK(kind.empty(), "this step cannot run {}: it has a {}", where(), kind);
      made_state = program_.make_state();
    });
    if (const std::string why = try_capture(); !why.empty()) find_rows(input, step, why, try_capture);
    together(*ranks_, [&] {
      const std::string why = why_refused(captured, is_traced_ ? std::string() : program_.python_reason());
      USER_CHECK(why.empty(), "this step cannot run {}, where nothing runs eagerly: {}", where(), why);
      const std::string& shared = shared_.among(program_, list_tensors(program_, {}));
      USER_CHECK(shared.empty(), "this step cannot run {}: tensors of its program share memory ({})", where(), shared);
    });
    rows_.check_shared(input);
    if (captured.is_path) check_path(captured.trace);
    ++stats_.recordings;
    stats_.capture_seconds += captured.seconds;
    stats_.eager_peak_bytes = captured.step_bytes_lower_bound;
    add_plan(std::move(captured), input);
    if (takes) take_inputs(plans_.front());
  } catch (...) {
    take_back();
    throw;
  }
}

void RankStep::add_plan(VirtualPlan captured, const StepInput& input) {
  agree_on_machine(captured.trace.device);
  CompileOptions options;
  options.target = target().target;
  options.target.rates = parse_target(ranks_->exchange(to_text(options.target))[0]).rates;  // one price for all
  if (is_open_) choose(captured.trace, input, options.target);
  options.budget = budget_;
  options.strategy = strategy_;
  options.fp8 = config_.fp8;
  options.device_graphs = config_.device_graphs;
  Entry plan;
  plan.is_path = captured.is_path;
  if (pipeline_ != Pipeline()) {
    plan_staged(plan, std::move(captured), options);
    plan.inputs = plan.staged->program_inputs();
  } else {
    plan.program =
        std::make_unique<RankProgram>(std::move(captured), *kernels_, options, config_.verify, ranks_, parts_.state());
    together(*ranks_, [&] { rows_.check_writes(plan.program->graph(), input, copied_); });
    for (const ScheduleInput& one : plan.program->schedule().inputs)
      if (is_of_program(one.kind) && one.kind != InputKind::kBatch) plan.inputs.emplace_back(one.kind, one.key);
    keep_parameters(strategy_, plan.program->graph());
  }
  const std::vector<at::Tensor> tensors = list_tensors(program_, input);
  plan.signature = signature(tensors, input);
  const Trace& trace = plan.trace();
  for (size_t e = 0; e < trace.events.size(); ++e) {
    const HostEvent& event = trace.events[e];
    if (event.kind == HostEvent::Kind::kRead)
      plan.reads[e] = read_of(trace, event);
    else if (!is_made_by_code(event))
      plan.updates.push_back(std::make_unique<EventUpdate>(trace, e, program_.keys()));
  }
  plan.draws = plan.staged ? plan.staged->draws() : uses_generator(plan.program->schedule());
  count(plan);
  plans_.push_front(std::move(plan));
  next_ = &plans_.front();
  if (plans_.size() > static_cast<size_t>(config_.max_plans)) plans_.pop_back();
}

// Plans the step cut into micro-batches and stages.
void RankStep::plan_staged(Entry& plan, VirtualPlan captured, CompileOptions& options) {
  options.strategy.mesh = stage_ranks_.stage_mesh;
  if (stages_ == nullptr)
    stages_ = std::make_unique<StageSteps>(pipeline_, config_.verify, stage_ranks_, *kernels_, parts_.state());
  plan.staged = std::make_unique<StagedStep>(std::move(captured), *stages_, pipeline_.micro_batches, *kernels_, options,
                                             config_.verify, parts_.state());
  strategy_.known = options.strategy.known;
  if (strategy_.context == Context::kByPrice) strategy_.context = options.strategy.context;
  plan.staged->predict(target());
}

void RankStep::choose(const Trace& captured, const StepInput& input, const Target& target) {
  const bool has_rows_of_own = config_.parallel->batch == Parallel::Batch::kLocal;
  int64_t rows = 1;  // of the whole batch
  for (const at::Tensor& one : input.tensors)
    if (rows == 1 && one.defined() && one.dim() > 0) rows = one.size(0);
  if (has_rows_of_own) rows *= ranks_->ranks();
  ChosenMesh chosen = choose_mesh(captured, *config_.parallel, strategy_, rows, target, budget_, config_.fp8, *ranks_);
  strategy_.mesh = std::move(chosen.mesh);
  strategy_.zero = chosen.zero;
  check(strategy_);
  pipeline_ = pipeline_of(*config_.parallel, strategy_);
  pipeline_.micro_batches = chosen.micro_batches;
  budget_ = chosen.budget;
  stage_ranks_ = stage_ranks(strategy_.mesh, ranks_);
  rows_.spread_over(stage_ranks_.stage_mesh, stage_ranks_.stage);
  parts_.spread_over(stage_ranks_);
  choice_ = std::move(chosen.told);
  is_open_ = false;
  if (ranks_->rank() == 0)
    log().info("parallel is \"auto\": over {}{}", to_text(strategy_.mesh),
               chosen.micro_batches > 1 ? str(", {} micro-batches", chosen.micro_batches) : std::string());
}

// For a step that runs on this rank's rows and fails on the whole batch: the rows lie along other dimensions than
// assumed. Looks for those dimensions.
void RankStep::find_rows(const StepInput& input, const StepOnFn& step, const std::string& why,
                         const std::function<std::string()>& try_capture) {
  together(*ranks_, [&] { plan_on(input.tensors, input, step, {}); });
  std::vector<BatchRows::Rows> found;
  for (const BatchRows::Rows& rows : rows_.others(input)) {
    rows_.assume(input, rows);
    if (try_capture().empty()) found.push_back(rows);
  }
  rows_.assume(input, {});
  USER_CHECK(found.size() == 1,
             "the step runs on the rows of one rank and {} ({}): say by batch_dims which dimension of a tensor of the "
             "batch its rows are, or that it has none",
             found.empty() ? "not on those of all" : "in more than one way on those of all", why);
  rows_.assume(input, found.front());
  INTERNAL_CHECK(try_capture().empty(), "a step that was captured is not captured again: {}", why);
}

// Agrees on the kernels and rates that all ranks plan with; on a device, where these count, on those of its card.
void RankStep::agree_on_machine(const std::string& device) {
  const blocked::MicroKernels own = kernels_          ? kernels_->micro_kernels
                                    : config_.kernels ? config_.kernels->micro_kernels
                                                      : probe_micro_kernels();
  CommonMachine common =
      common_machine(host_cpu(), own, known_target(config_, features_of(own), at::get_num_threads()), *ranks_);
  known_ = common.known;
  if (!common.told.empty()) warn_once(common.told);
  if (!device.empty()) {
    CommonCard card = common_card(c10::Device(device), config_.target, *ranks_);
    const std::string_view weighed = is_open_ ? "parallel = \"auto\"" : weighed_by_rates(strategy_, budget_);
    USER_CHECK(weighed.empty() || card.why_unknown.empty(), "{} weighs by rates, and {}", weighed, card.why_unknown);
    known_ = std::move(card.known);
  }
  if (kernels_ != nullptr) return;
  if (config_.kernels && common.told.empty())
    kernels_ = config_.kernels;
  else
    kernels_ = std::make_shared<KernelSources>(config_.kernel_directory, common.cpu, common.micro_kernels);
}

// Captures the step: one trace if its code takes no decision by numbers that it reads, otherwise one path.
VirtualPlan RankStep::plan_on(const std::vector<at::Tensor>& batch, const StepInput& input, const StepOnFn& step,
                              const Numbers& numbers) {
  check_memory_of(program_, config_, where(), ranks_->ranks() == 1);
  const StepInput given{batch, input.names, input.constants};
  const auto on_batch = [&] { return step(batch); };
  if (numbers || is_traced_)
    return plan_path_virtually(program_, given, on_batch, config_.op_rules, numbers.value_or(std::vector<Arg>()),
                               is_traced_);
  VirtualPlan whole;
  std::exception_ptr refused;
  try {
    whole = plan_virtually(program_, given, on_batch, config_.op_rules, VirtualKernels::Reads::kStandIn);
    if (whole.obstacle.empty()) return whole;
  } catch (const LostRank&) {
    throw;
  } catch (...) {
    refused = std::current_exception();
  }
  try {
    VirtualPlan path = plan_path_virtually(program_, given, on_batch, config_.op_rules, {});
    const auto reads = [](const HostEvent& event) { return event.kind == HostEvent::Kind::kRead; };
    if (path.obstacle.empty() && std::ranges::any_of(path.trace.events, reads)) return path;
  } catch (const std::exception& error) {
    log().debug("no path of the step can be captured either: {}", error.what());
  }
  if (refused) std::rethrow_exception(refused);
  return whole;
}

// Captures the step again until the program has all the parts that the step creates.
VirtualPlan RankStep::captured_alike(const StepInput& input, const StepOnFn& step, const Numbers& numbers) {
  const std::vector<at::Tensor> batch = rows_.whole(input);
  for (int attempt = 0; attempt < kMostCaptures; ++attempt) {
    program_.refresh();
    const std::string before = signature(list_tensors(program_, input), input);
    VirtualPlan captured = plan_on(batch, input, step, numbers);
    program_.refresh();
    if (signature(list_tensors(program_, input), input) == before) return captured;
  }
  user_error("this step finds another structure of modules or optimizers at every call, and cannot run {}", where());
}

}  // namespace stepc
