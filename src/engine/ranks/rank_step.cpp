#include "engine/ranks/rank_step.h"

#include <algorithm>
#include <bit>
#include <span>

#include <fmt/ranges.h>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/virtual_memory.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "capture/observer.h"
#include "checkpoint/manifest.h"
#include "engine/compare/tensor_hash.h"
#include "engine/plan/plan_cache.h"
#include "engine/plan/plan_profile.h"
#include "engine/ranks/common_machine.h"
#include "engine/ranks/saved_slices.h"
#include "passes/partition/means_by_rank.h"
#include "runtime/kernel_sources.h"
#include "runtime/micro_kernels.h"

namespace stepc {

namespace {

// Attempts to capture a step whose program turns out to have other parts than were known before.
constexpr int kMaxAttempts = 4;
// Paths of a step that one call finds, one after the other, by numbers that its code reads.
constexpr int kMostPaths = 16;
// Of which dimensions the batch's rows are.
constexpr size_t kMostGuesses = 16;
constexpr const char* kInParts =
    "this tensor's values lie in parts on the ranks of the run: what reads them has to stand inside 'with "
    "stepc.full_parameters(model)'";

std::string hash_of_text(std::string_view text) { return hash_text(hash_bytes(std::as_bytes(std::span(text)))); }

// Exact, for comparison.
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

// What of a captured step the ranks cannot do, in words; empty: they can.
std::string why_refused(const VirtualPlan& captured, const Program& program) {
  if (!captured.obstacle.empty()) return captured.obstacle;
  if (std::string reason = program.python_reason(); !reason.empty()) return reason;
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
    return str("it draws from the generator '{}', and on ranks there is the default one alone",
               captured.trace.generators[1]);
  return {};
}

// Which of the calls that read a number it is, as VirtualKernels counts them.
size_t read_of(const Trace& trace, const HostEvent& event) {
  const auto end = trace.calls.begin() + static_cast<ptrdiff_t>(event.begin.index());
  return static_cast<size_t>(
             std::count_if(trace.calls.begin(), end,
                           [](const stepc::Call& call) { return call.op == "aten::_local_scalar_dense"; })) -
         1;
}

// Of a tensor of the batch.
std::string name_in(const StepInput& input, size_t tensor) {
  return tensor < input.names.size() && !input.names[tensor].empty() ? input.names[tensor] : str("{}", tensor);
}

bool uses_generator(const Schedule& schedule) {
  return std::ranges::any_of(schedule.instructions, [](const Instruction& one) {
    return one.kind == Instruction::Kind::kSeed || one.kind == Instruction::Kind::kSaveGenerator;
  });
}

}  // namespace

RankStep::RankStep(Program& program, const Config& config, Stats& stats)
    : program_(program),
      config_(config),
      stats_(stats),
      ranks_(config.parallel->ranks ? config.parallel->ranks : ranks_of_process(config.parallel->launch)),
      strategy_(strategy_of(*config.parallel, ranks_->ranks())),
      state_(strategy_.mesh, ranks_) {
  data_axes_ = data_axes(strategy_.mesh);
}

// ---- calls

// What a rank computes with are rows in a row: the program may give windows on something larger, other ones on each
// rank, and two of the same memory.
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
  const StepInput input = contiguous(given);
  int paths = 0;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
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
        plans_.remove_if([&](const RankPlan& one) { return &one == call.plan; });
        call.plan = nullptr;
      }
      have_same_values(call.moved);
      for (const auto& [key, tensor] : call.moved) take(key, tensor);
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
    capture(input, step);
  }
  user_error("this step finds another structure of modules or optimizers at every call, and cannot run on ranks");
}

// What a rank finds by itself: its plan for such a call, and the numbers of its optimizers.
RankStep::Call RankStep::begin(const StepInput& input) {
  USER_CHECK(current_observer() == nullptr,
             "an accelerated step is called inside another one that is being recorded: accelerate the outer step only");
  Call call;
  program_.refresh();
  call.tensors = list_tensors(program_, input);
  call.signature = signature(call.tensors, input);
  call.moved = moved_since(call.tensors);
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
  if (difference.empty() && call.plan->program->is_unfit()) difference = "the optimizer passes another integer";
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

StepOutput RankStep::replay(RankPlan& plan, const StepInput& input) {
  if (plan.draws) share_draws();
  const auto begin = Clock::now();
  StepResult result = plan.program->step(batch_of(plan, input), times_ ? &*times_ : nullptr);
  stats_.execute_seconds += seconds_since(begin);
  count_replay(plan, result);
  return {std::move(result.outputs), std::move(result.numbers)};
}

void RankStep::count_replay(RankPlan& plan, const StepResult& result) {
  is_timed_ = times_.has_value();
  ++plan.replays;
  ++stats_.replays;
  stats_.is_warm = true;
  const MemoryCounts& memory = result.memory;
  stats_.served_allocations = memory.served;
  stats_.unplanned_allocations += memory.unplanned;
  stats_.measured_peak_bytes = memory.arena_peak_bytes + memory.kept_bytes + memory.unplanned_bytes;
}

// The optimizers' numbers of this call. Returns why they do not fit the plan, empty if they do.
std::string RankStep::update(RankPlan& plan, const std::vector<at::Tensor>& tensors, Undo& undo, std::string& numbers) {
  for (const auto& update : plan.updates) {
    const int64_t known_before = update->known_updates();
    std::string difference = update->run(
        program_, tensors, /*learns=*/true, [&] { undo.add_host_state(program_); },
        [&](const HostSupply& supplied, bool is_new) {
          if (is_new) plan.program->supply(supplied.call, supplied.arg, supplied.number);
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

// Of several paths the one that was asked for, or else that which was taken most.
RankStep::RankPlan* RankStep::find(const std::string& signature) {
  const RankPlan* const asked_for = std::exchange(next_, nullptr);
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

// Of a call that all ranks make together: what each gives to it. A rank that is interrupted, say, may make another.
std::vector<std::string> RankStep::enter(const std::string& call, const std::string& mine) const {
  std::vector<std::string> all = ranks_->exchange(call + "\n" + mine), calls;
  for (std::string& one : all) {
    const size_t end = std::min(one.find('\n'), one.size());
    calls.push_back(one.substr(0, end));
    one.erase(0, end + 1);
  }
  for (size_t r = 1; r < calls.size(); ++r)
    USER_CHECK(calls[r] == calls[0],
               "rank {} calls {}, and rank 0 {}: all ranks make the same calls, in the same order", r, calls[r],
               calls[0]);
  return all;
}

// The first rank's that has one, in one line; empty: none has.
std::string RankStep::common_error(const std::string& mine) const {
  const std::vector<std::string> all = ranks_->exchange(mine);
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) return mine.empty() ? str("rank {}: {}", r, all[r]) : mine;
  return {};
}

// What one rank cannot do is an error on all, so that none waits for one that has left.
void RankStep::together(const std::function<void()>& part) const {
  std::string problem;
  std::exception_ptr thrown;
  try {
    part();
  } catch (const std::exception& error) {
    problem = first_line(error.what());
    thrown = std::current_exception();
  }
  if (const std::string error = common_error(problem); !error.empty()) {
    if (thrown) std::rethrow_exception(thrown);
    user_error("{}", error);
  }
}

// Whether all have a plan for the call; where one has none, all capture it.
bool RankStep::check_alike(const Call& call, const StepInput& input) {
  const std::string hash = hash_of_text(call.signature);
  const std::vector<std::string> all =
      enter("the step", hash + (call.plan == nullptr ? std::string() : hash_of_text(call.numbers)));
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

// Of a signature's first call: who shares rows, or has the whole batch, has the same.
void RankStep::check_batch(const StepInput& input) {
  std::string hashes;
  for (size_t t = 0; t < input.tensors.size(); ++t) hashes += hash_text(hash_of(input.tensors[t])) + "\n";
  std::vector<std::vector<std::string>> all;
  for (const std::string& one : ranks_->exchange(hashes)) all.push_back(split(one, '\n'));
  for (size_t t = 0; t < input.tensors.size(); ++t) {
    const bool is_row = rows_of(input, t).has_value();
    for (int64_t r = 0; r < ranks_->ranks(); ++r) {
      int64_t first = 0;
      if (is_row) {  // of those at the same place along the data axes
        const auto at = coordinates_of(strategy_.mesh, r);
        while (!std::ranges::all_of(data_axes_,
                                    [&](Axis axis) { return coordinates_of(strategy_.mesh, first)[axis] == at[axis]; }))
          ++first;
      }
      if (all[static_cast<size_t>(r)][t] == all[static_cast<size_t>(first)][t]) continue;
      user_error("batch '{}' differs between ranks {} and {}: {}", name_in(input, t), first, r,
                 is_row ? "ranks along tp and cp want the same rows; give each a sampler by its place along dp"
                 : config_.parallel->batch == Parallel::Batch::kGlobal
                     ? "with batch=\"global\" every rank gives the whole batch; \"local\" are rows of its own"
                     : "it has no rows, as many as the first tensor, so every rank wants the same");
    }
  }
}

// ---- the batch

std::optional<int64_t> RankStep::rows_of(const StepInput& input, size_t tensor) const {
  const Parallel& parallel = *config_.parallel;
  if (parallel.batch == Parallel::Batch::kGlobal || data_axes_.empty()) return std::nullopt;
  const auto given = [&](size_t t) { return parallel.batch_dims.find(name_in(input, t)); };
  if (const auto dim = given(tensor); dim != parallel.batch_dims.end()) return dim->second;
  if (const auto found = rows_.find(shapes_of(input)); found != rows_.end()) return found->second.at(tensor);
  const at::Tensor& one = input.tensors[tensor];
  if (!one.defined() || one.dim() == 0) return std::nullopt;
  const auto first =
      std::ranges::find_if(input.tensors, [](const at::Tensor& t) { return t.defined() && t.dim() > 0; });
  const auto dim = given(static_cast<size_t>(first - input.tensors.begin()));
  const int64_t rows = first->size(dim == parallel.batch_dims.end() ? 0 : dim->second.value_or(0));
  return one.size(0) == rows ? std::optional<int64_t>(0) : std::nullopt;
}

std::string RankStep::shapes_of(const StepInput& input) {
  std::string shapes;
  for (const at::Tensor& one : input.tensors)
    shapes += one.defined() ? str("[{}]", fmt::join(one.sizes(), ",")) : std::string("-");
  return shapes;
}

// Where the likeliest are wrong, but for those of the first tensor that has any: of one tensor they are another
// dimension as long, or it has none; then of two.
std::vector<RankStep::Rows> RankStep::other_rows(const StepInput& input) const {
  Rows likely;
  for (size_t t = 0; t < input.tensors.size(); ++t) likely.push_back(rows_of(input, t));
  const auto first =
      static_cast<size_t>(std::ranges::find_if(likely, &std::optional<int64_t>::has_value) - likely.begin());
  std::vector<Rows> guesses;
  const auto change_one = [&](const Rows& from, size_t begin) {
    for (size_t t = begin; t < from.size(); ++t) {
      if (!input.tensors[t].defined() || config_.parallel->batch_dims.contains(name_in(input, t))) continue;
      Rows guess = from;
      if (guess[t]) {
        guess[t] = std::nullopt;
        guesses.push_back(guess);
      }
      for (int64_t dim = 0; dim < input.tensors[t].dim(); ++dim) {
        if (input.tensors[t].size(dim) != input.tensors[first].size(*likely[first]) || likely[t] == dim) continue;
        guess[t] = dim;
        guesses.push_back(guess);
      }
    }
  };
  if (first == likely.size()) return {};
  change_one(likely, first + 1);
  for (size_t g = 0, ones = guesses.size(); g < ones; ++g) {
    size_t changed = 0;
    while (guesses[g][changed] == likely[changed]) ++changed;
    change_one(Rows(guesses[g]), changed + 1);
  }
  if (guesses.size() > kMostGuesses) guesses.resize(kMostGuesses);
  return guesses;
}

void RankStep::check_batch_dims(const StepInput& input) const {
  for (const auto& [name, dim] : config_.parallel->batch_dims) {
    size_t t = 0;
    while (t < input.tensors.size() && name_in(input, t) != name) ++t;
    if (t == input.tensors.size() || !dim || !input.tensors[t].defined()) continue;
    USER_CHECK(*dim < input.tensors[t].dim(), "batch_dims has {} for '{}', which has the shape [{}]", *dim, name,
               fmt::join(input.tensors[t].sizes(), ", "));
  }
}

std::vector<at::Tensor> RankStep::whole(const StepInput& input) {
  std::vector<at::Tensor> out = input.tensors;
  if (strategy_.means_by_rank) return out;  // a rank's own rows are its batch
  for (size_t t = 0; t < out.size(); ++t)
    if (const auto dim = rows_of(input, t)) out[t] = gathered(out[t], *dim);
  return out;
}

at::Tensor RankStep::gathered(const at::Tensor& rows, int64_t dim) {
  RankGroup& group = ranks_->along(strategy_.mesh, data_axes_);
  const at::Tensor own = rows.detach().movedim(dim, 0).contiguous();
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes[0] *= group.ranks();
  const at::Tensor all = at::empty(sizes, rows.scalar_type());
  group.all_gather(own, all);
  return all.movedim(0, dim).contiguous();
}

// Whether what a plan takes of a tensor of the batch is what this rank gives.
bool RankStep::takes_as_given(const std::optional<PartOf>& part, const StepInput& input, size_t tensor) const {
  const auto dim = strategy_.means_by_rank ? std::nullopt : rows_of(input, tensor);
  if (!dim || !part) return !dim && !part;
  const auto at = static_cast<size_t>(*dim);
  Sharding own_rows = Sharding::whole(part->shape.size());
  own_rows.dims[at] = canonical({{part->shape[at], data_axes_}}, strategy_.mesh);
  return part->sharding == own_rows;
}

// What the plan takes of the batch: rows that are the rank's part of a tensor go nowhere else.
std::vector<at::Tensor> RankStep::batch_of(const RankPlan& plan, const StepInput& input) {
  std::vector<at::Tensor> out = input.tensors;
  if (strategy_.means_by_rank) return out;
  for (const ScheduleInput& one : plan.program->schedule().inputs) {
    if (one.kind != InputKind::kBatch) continue;
    const size_t t = std::stoul(one.key);
    const auto dim = rows_of(input, t);
    if (dim && !takes_as_given(one.part, input, t)) out[t] = gathered(out[t], *dim);
  }
  return out;
}

// What the step writes to its batch is in the memory that the program gave, or it is refused.
void RankStep::check_writes_to_batch(const Graph& local, const StepInput& input) const {
  for (const GraphOutput& output : local.outputs) {
    if (output.kind != GraphOutput::Kind::kUpdate || local.inputs[output.input].kind != InputKind::kBatch) continue;
    const size_t t = std::stoul(local.inputs[output.input].key);
    USER_CHECK(
        !copied_[t] && takes_as_given(local.inputs[output.input].part, input, t),
        "this step cannot run on ranks: it writes to '{}' of its batch, of which each rank computes with a copy; "
        "write to a clone() of it",
        name_in(input, t));
  }
}

// Rank 0's generator is everybody's: what a step draws does not depend on how many ranks run it.
void RankStep::share_draws() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor state = generator.get_state();
  if (!std::exchange(compared_draws_, true)) {
    const std::vector<std::string> all = ranks_->exchange(hash_text(hash_of(state)));
    if (std::ranges::any_of(all, [&](const std::string& one) { return one != all[0]; }))
      warn_once("the ranks' random generators differ: rank 0's draws count");
  }
  ranks_->all().broadcast(state);
  generator.set_state(state);
}

// Of all ranks, on one.
void RankStep::warn_once(const std::string& warning) {
  if (ranks_->rank() != 0 || std::ranges::find(stats_.warnings, warning) != stats_.warnings.end()) return;
  stats_.warnings.push_back(warning);
  log().warn("{}", warning);
}

// ---- a new signature

void RankStep::capture(const StepInput& input, const StepOnFn& step, const Numbers& numbers) {
  together([&] { check_batch_dims(input); });
  VirtualPlan captured;
  bool made_state = false;
  const auto take_back = [&] {
    if (made_state) program_.drop_state();
    program_.refresh();
  };
  // What the step's own code says against the sizes of the whole batch, empty: it is captured.
  const auto try_capture = [&] {
    std::string no_fit;
    together([&] {
      try {
        captured = captured_alike(input, step, numbers);
      } catch (const UserError&) {
        throw;
      } catch (const std::exception& error) {
        no_fit = first_line(error.what());
        if (config_.parallel->batch == Parallel::Batch::kGlobal || data_axes_.empty() || strategy_.means_by_rank) throw;
      }
    });
    return common_error(no_fit);
  };
  try {
    together([&] {
      const std::string kind = program_.unfit();
      USER_CHECK(kind.empty(), "this step cannot run on ranks: it has a {}", kind);
      made_state = program_.make_state();
    });
    if (const std::string why = try_capture(); !why.empty()) find_rows(input, step, why, try_capture);
    together([&] {
      const std::string why = why_refused(captured, program_);
      USER_CHECK(why.empty(), "this step cannot run on ranks, where nothing runs eagerly: {}", why);
      const std::string& shared = shared_.among(program_, list_tensors(program_, {}));
      USER_CHECK(shared.empty(), "this step cannot run on ranks: tensors of its program share memory ({})", shared);
    });
    check_batch(input);
    if (captured.is_path) check_path(captured.trace);
    ++stats_.recordings;
    stats_.capture_seconds += captured.seconds;
    stats_.eager_peak_bytes = captured.step_bytes_lower_bound;
    add_plan(std::move(captured), input);
  } catch (...) {
    take_back();
    throw;
  }
}

void RankStep::add_plan(VirtualPlan captured, const StepInput& input) {
  agree_on_machine();
  CompileOptions options;
  options.target = target().target;
  options.target.rates = parse_target(ranks_->exchange(to_text(options.target))[0]).rates;  // one price for all
  options.budget = config_.memory_budget;
  options.strategy = strategy_;
  RankPlan plan;
  plan.program = std::make_unique<RankProgram>(captured, *kernels_, options, ranks_, state_);
  together([&] { check_writes_to_batch(plan.program->graph(), input); });
  const std::vector<at::Tensor> tensors = list_tensors(program_, input);
  plan.signature = signature(tensors, input);
  plan.is_path = captured.is_path;
  plan.trace = std::make_unique<Trace>(std::move(captured.trace));
  for (size_t e = 0; e < plan.trace->events.size(); ++e) {
    const HostEvent& event = plan.trace->events[e];
    if (event.kind == HostEvent::Kind::kRead)
      plan.reads[e] = read_of(*plan.trace, event);
    else if (!is_made_by_code(event))
      plan.updates.push_back(std::make_unique<EventUpdate>(*plan.trace, e, program_.keys()));
  }
  plan.draws = uses_generator(plan.program->schedule());
  take(plan.program->schedule());
  // What is planned later finds parameters as they lie by now.
  for (const GraphInput& one : plan.program->graph().inputs)
    if (one.kind == InputKind::kParameter)
      strategy_.known[one.key] =
          one.part ? one.part->sharding : Sharding::whole(plan.program->graph().shape(one.tensor).size());
  count(plan);
  plans_.push_front(std::move(plan));
  next_ = &plans_.front();
  if (plans_.size() > static_cast<size_t>(config_.max_plans)) plans_.pop_back();
}

// Of a step that its own rows fit and the whole batch does not: the rows are not what was taken for them.
void RankStep::find_rows(const StepInput& input, const StepOnFn& step, const std::string& why,
                         const std::function<std::string()>& try_capture) {
  together([&] { plan_on(input.tensors, input, step, {}); });
  const std::string shapes = shapes_of(input);
  std::vector<Rows> found;
  for (const Rows& rows : other_rows(input)) {
    rows_[shapes] = rows;
    if (try_capture().empty()) found.push_back(rows);
  }
  rows_.erase(shapes);
  USER_CHECK(found.size() == 1,
             "the step runs on the rows of one rank and {} ({}): say by batch_dims which dimension of a tensor of the "
             "batch its rows are, or that it has none",
             found.empty() ? "not on those of all" : "in more than one way on those of all", why);
  rows_[shapes] = found.front();
  INTERNAL_CHECK(try_capture().empty(), "a step that was captured is not captured again: {}", why);
}

// Kernels and rates that all ranks plan with.
void RankStep::agree_on_machine() {
  const blocked::MicroKernels own = kernels_          ? kernels_->micro_kernels
                                    : config_.kernels ? config_.kernels->micro_kernels
                                                      : probe_micro_kernels();
  CommonMachine common = common_machine(
      host_cpu(), own, known_target(config_.kernel_directory, features_of(own), at::get_num_threads()), *ranks_);
  known_ = common.known;
  if (!common.told.empty()) warn_once(common.told);
  if (kernels_ != nullptr) return;
  if (config_.kernels && common.told.empty())
    kernels_ = config_.kernels;
  else
    kernels_ = std::make_shared<KernelSources>(config_.kernel_directory, common.cpu, common.micro_kernels);
}

// A step whose code decides nothing by what it reads is one trace; else, one path of it.
VirtualPlan RankStep::plan_on(const std::vector<at::Tensor>& batch, const StepInput& input, const StepOnFn& step,
                              const Numbers& numbers) {
  const StepInput given{batch, input.names, input.constants};
  const auto on_batch = [&] { return step(batch); };
  if (numbers) return plan_path_virtually(program_, given, on_batch, config_.op_rules, *numbers);
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

// Once the program has all the parts that the step shows.
VirtualPlan RankStep::captured_alike(const StepInput& input, const StepOnFn& step, const Numbers& numbers) {
  const std::vector<at::Tensor> batch = whole(input);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    program_.refresh();
    const std::string before = signature(list_tensors(program_, input), input);
    VirtualPlan captured = plan_on(batch, input, step, numbers);
    program_.refresh();
    if (signature(list_tensors(program_, input), input) == before) return captured;
  }
  user_error("this step finds another structure of modules or optimizers at every call, and cannot run on ranks");
}

// ---- the program's tensors

void RankStep::take(const Schedule& schedule) {
  std::vector<at::Tensor> tensors;
  program_.append_tensors(tensors);
  std::map<Key, at::Tensor> of_program;
  for (size_t k = 0; k < program_.keys().size(); ++k)
    of_program[{program_.keys()[k].owner, program_.keys()[k].key}] = tensors[k];
  std::vector<std::pair<Key, at::Tensor>> found;
  for (const ScheduleInput& input : schedule.inputs) {
    if (!is_of_program(input.kind) || input.kind == InputKind::kBatch) continue;
    const Key key{*owner_of(input.kind), input.key};
    if (!held_.contains(key)) found.emplace_back(key, of_program.at(key));
  }
  have_same_values(found);
  for (const auto& [key, tensor] : found) take(key, tensor);
}

// Rank 0's count where they differ, and where others have none.
void RankStep::have_same_values(const std::vector<std::pair<Key, at::Tensor>>& tensors) {
  std::string mine;
  const auto is_made = [&](const Key& key) {
    return saved_.contains(key) || program_.initial_value({key.first, key.second}).has_value();
  };
  for (const auto& [key, tensor] : tensors)
    mine += is_made(key) ? "made\n" : is_virtual(tensor) ? "absent\n" : hash_text(hash_of(tensor)) + "\n";
  std::vector<std::vector<std::string>> all;
  for (const std::string& one : ranks_->exchange(mine)) all.push_back(split(one, '\n'));
  bool differs = false;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const auto& [key, tensor] = tensors[t];
    USER_CHECK(all[0][t] != "absent",
               "{} '{}' has no values on rank 0: it was made in virtual(), or another step holds it in parts; "
               "materialise() it, or call the step that has it",
               name_of(key.first), key.second);
    const auto is_same = [&](const auto& one) { return one[t] == all[0][t]; };
    if (std::ranges::all_of(all, is_same)) continue;
    USER_CHECK(all[0][t] != "made" && std::ranges::none_of(all, [&](const auto& one) { return one[t] == "made"; }),
               "{} '{}' is there on some ranks alone: load the optimizer's state on all, or on none",
               name_of(key.first), key.second);
    differs = differs || std::ranges::any_of(all, [&](const auto& one) { return !is_same(one) && one[t] != "absent"; });
    materialise(tensor);
    const at::Tensor value = tensor.detach().contiguous();
    ranks_->all().broadcast(value);
    if (!tensor.is_contiguous()) tensor.detach().copy_(value);
  }
  if (differs) warn_once("the ranks' parameters differ: rank 0's count");
}

// What the program has put in the place of what the ranks hold: a checkpoint's state, say.
std::vector<std::pair<RankStep::Key, at::Tensor>> RankStep::moved_since(const std::vector<at::Tensor>& tensors) const {
  std::vector<std::pair<Key, at::Tensor>> moved;
  for (size_t k = 0; k < program_.keys().size(); ++k) {
    const auto held = held_.find({program_.keys()[k].owner, program_.keys()[k].key});
    if (held == held_.end() || !tensors[k].defined()) continue;
    if (tensors[k].storage().unsafeGetStorageImpl() != held->second) moved.emplace_back(held->first, tensors[k]);
  }
  return moved;
}

void RankStep::take(const Key& key, const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto& [owner, name] = key;
  const std::optional<double> initial = program_.initial_value({owner, name});
  const bool is_made = is_virtual(tensor) && initial.has_value();
  const at::Tensor own = tensor.detach();
  const void*& held = held_[key];
  parts_.erase(held);
  held = own.storage().unsafeGetStorageImpl();
  const auto saved = saved_.find(key);
  const TensorFiles* files = nullptr;
  const TensorFiles::Tensor* in_files =
      saved == saved_.end() ? nullptr
                            : saved->second->find({{owner, name}, program_.is_of_model({owner, name}), own}, files);
  if (state_.is_whole(owner, name, own)) {
    materialise(own);
    if (in_files != nullptr)
      put_into(own, read_tensor(*files, *in_files));
    else if (is_made)
      own.fill_(*initial);
    state_.replace(owner, name, own);
    saved_.erase(key);
    return;
  }
  if (in_files != nullptr)
    state_.put(owner, name, *files, *in_files);
  else if (is_made)
    state_.fill(owner, name, *initial);
  else
    state_.put(owner, name, own);
  saved_.erase(key);
  dematerialise(own, kInParts);
  parts_[held] = key;
}

void RankStep::gather(const std::vector<at::Tensor>& tensors, bool keeps) {
  enter("full_parameters()");  // who has ended meanwhile says so here
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& tensor : tensors) {
    const auto found = parts_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == parts_.end()) continue;
    const at::Tensor whole = state_.whole(found->second.first, found->second.second);
    if (!keeps) continue;
    materialise(tensor);
    tensor.detach().copy_(whole);
  }
}

void RankStep::scatter(const std::vector<at::Tensor>& tensors, bool takes) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& tensor : tensors) {
    const auto found = parts_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == parts_.end() || is_virtual(tensor)) continue;
    if (takes) state_.put(found->second.first, found->second.second, tensor.detach());
    dematerialise(tensor, kInParts);
  }
}

// ---- checkpoints

// Whether the ranks hold it, and not something that the program has put in its place since.
bool RankStep::is_held(const Key& key, const at::Tensor& tensor) const {
  const auto held = held_.find(key);
  return held != held_.end() && tensor.storage().unsafeGetStorageImpl() == held->second;
}

std::filesystem::path RankStep::save(const std::filesystem::path& output, int64_t number,
                                     const Companions& companions) {
  const bool is_first = ranks_->rank() == 0;
  std::string at;
  std::optional<CheckpointWriter> writer;
  enter("step.save()");
  together([&] {
    program_.refresh();
    if (is_first) at = writer.emplace(output, TrainerState{.step = number}).path();
  });
  at = ranks_->exchange(at)[0];
  ManifestFiles own;
  together([&] {
    write_own_slices(at);
    const std::string beginning = beginning_of_slice_files(ranks_->rank());
    if (!is_first)
      for (const auto& [name, text] : companions)
        write_file_synced(std::filesystem::path(at) / (beginning + name), text);
    own = hash_files(at, beginning);
  });
  ManifestFiles written;
  for (const std::string& files : ranks_->exchange(to_text(own))) written.merge(parse_manifest_files(files));
  std::string final;
  together([&] {
    if (!is_first) return;
    for (const auto& [name, text] : companions) write_file_synced(writer->path() / name, text);
    final = writer->commit(written, to_text(strategy_.mesh));
  });
  return ranks_->exchange(final)[0];
}

// What all ranks have whole and no step has taken is the first one's to write.
void RankStep::write_own_slices(const std::filesystem::path& directory) {
  SavedSlices in_parts[2];
  std::vector<std::pair<std::string, at::Tensor>> whole[2];
  for (const SavedTensor& one : saved_tensors(program_)) {
    const size_t which = one.is_of_model ? 0 : 1;
    const Key key{one.key.owner, one.key.key};
    if (is_held(key, one.tensor)) {
      in_parts[which].push_back({one.key.key, one.key.owner, one.key.key, 0, {}});
    } else if (!is_virtual(one.tensor)) {
      whole[which].emplace_back(one.key.key, one.tensor.detach());
    } else {
      USER_CHECK(program_.initial_value(one.key), "{} '{}' has no values to save: call the step before",
                 name_of(one.key.owner), one.key.key);
    }
  }
  whole[1].emplace_back(kGeneratorState, at::globalContext().defaultGenerator(at::kCPU).get_state());
  for (const size_t which : {0, 1}) {
    SavedSlices slices = slices_of(state_, in_parts[which]);
    NamedTensors tensors = windows(state_, slices);
    if (ranks_->rank() == 0)
      for (const auto& [name, tensor] : whole[which]) {
        slices.push_back(slice_of_whole(name, tensor.sizes().vec()));
        tensors.emplace_back(name, tensor);
      }
    write_slices(directory, which == 0 ? kModelFiles : kOptimizerFiles, state_, slices, tensors, std::nullopt,
                 system_files());
  }
}

std::vector<RankStep::HeldTensor> RankStep::held_tensors() {
  std::vector<HeldTensor> held;
  program_.refresh();
  for (const SavedTensor& one : saved_tensors(program_)) {
    HeldTensor& tensor = held.emplace_back(HeldTensor{one.key.key, one.is_of_model, one.tensor.detach()});
    if (is_held({one.key.owner, one.key.key}, one.tensor)) {
      tensor.split = state_.split_dims(one.key.owner, one.key.key);
      if (tensor.split) tensor.stretch = state_.stretch(one.key.owner, one.key.key);
    } else {
      USER_CHECK(!is_virtual(one.tensor), "{} '{}' has no values yet: call the step before", name_of(one.key.owner),
                 one.key.key);
    }
  }
  return held;
}

Checkpoint RankStep::load(const std::filesystem::path& from, const AcceptFn& accept) {
  std::string at;
  Checkpoint checkpoint;
  std::shared_ptr<SavedProgram> saved;
  bool made = false;
  enter("step.load()");
  together([&] {
    if (ranks_->rank() == 0) at = std::filesystem::absolute(find_checkpoint(from).directory);  // every hash is checked
  });
  at = ranks_->exchange(at)[0];
  try {
    together([&] {
      checkpoint = read_checkpoint(at, CheckedBy::kSizes);
      saved = std::make_shared<SavedProgram>(checkpoint.directory);
      program_.refresh();
      if (accept) accept(checkpoint.directory);
      program_.adopt(saved->names_of_state());
      program_.refresh();
      const std::vector<OwnedKey> before = program_.keys();
      made = program_.make_state();
      program_.refresh();
      program_.adopt(saved->names_of_state());  // of what was made
      program_.refresh();
      saved->check(program_, before);
    });
  } catch (...) {
    if (made) program_.drop_state();
    program_.refresh();
    throw;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const SavedTensor& one : saved_tensors(program_)) {
    const Key key{one.key.owner, one.key.key};
    const TensorFiles* files = nullptr;
    const TensorFiles::Tensor* found = saved->find(one, files);
    if (found == nullptr) continue;
    if (is_held(key, one.tensor))
      state_.put(key.first, key.second, *files, *found);
    else if (is_virtual(one.tensor))
      saved_[key] = saved;
    else
      put_into(one.tensor, read_tensor(*files, *found));
  }
  saved->load_generator();
  return checkpoint;
}

// ---- what it did

void RankStep::count(const RankPlan& plan) {
  const Schedule& schedule = plan.program->schedule();
  ++stats_.plans;
  if (stats_.is_warm) ++stats_.late_plans;
  stats_.nodes = plan.trace->calls.size();
  stats_.instructions = schedule.instructions.size();
  stats_.graph_nodes = plan.program->graph().nodes.size();
  stats_.kernels = schedule.count(Instruction::Kind::kGenerated);
  stats_.arena_bytes = schedule.arena_bytes;
  stats_.live_lower_bound_bytes = schedule.live_lower_bound_bytes;
  stats_.planned_peak_bytes = schedule.peak_bytes();
  stats_.layout_algorithm = schedule.layout_algorithm;
  stats_.planning_seconds += plan.program->planning_seconds();
  stats_.state_bytes = state_.bytes();
  log().info("captured {} calls, planned {} for {} instructions, {} of them collectives, on rank {} of {} in {:.2f} s",
             stats_.nodes, human_bytes(stats_.planned_peak_bytes), stats_.instructions,
             schedule.count(Instruction::Kind::kCollective), ranks_->rank(), to_text(strategy_.mesh),
             plan.program->planning_seconds());
}

KnownTarget RankStep::target() const {
  KnownTarget known = known_;
  known.target.threads = at::get_num_threads();
  return known;
}

std::optional<Prediction> RankStep::prediction() const {
  if (latest() == nullptr) return std::nullopt;
  return predict(latest()->schedule(), target());
}

std::optional<Profile> RankStep::finish_profile() {
  const std::optional<RunTimes> times = std::exchange(times_, std::nullopt);
  if (!std::exchange(is_timed_, false) || !times) return std::nullopt;
  return profile_of(latest()->schedule(), Mode::kFast, *times, target());
}

std::string RankStep::report() const {
  std::string out = report_text(stats_, name_of(config_.mode), prediction());
  const size_t collectives = latest() == nullptr ? 0 : latest()->schedule().count(Instruction::Kind::kCollective);
  return out + str("  rank        {} of {} ({}), {} collectives a step\n", ranks_->rank(), ranks_->ranks(),
                   strategy_.mesh.axes.empty() ? "no mesh" : to_text(strategy_.mesh), collectives);
}

std::string RankStep::report_of_all() const {
  const std::string mine =
      str("  rank {:>4}   model and optimizer {:>12}, step peak planned {:>12}, measured {:>12}, {} a step\n",
          ranks_->rank(), human_bytes(stats_.state_bytes), human_bytes(stats_.planned_peak_bytes),
          human_bytes(stats_.measured_peak_bytes),
          stats_.replays == 0 ? "-" : time_text(stats_.execute_seconds / static_cast<double>(stats_.replays)));
  std::string out = report();
  for (const std::string& one : enter("step.report(all_ranks=True)", mine)) out += one;
  return out;
}

}  // namespace stepc
