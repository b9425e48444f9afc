// Steps whose own code takes decisions by numbers that it reads: a plan is one path, and the step's code runs beside
// it.
#include <algorithm>
#include <bit>
#include <iterator>
#include <span>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/plan/plan.h"
#include "engine/ranks/consensus.h"
#include "engine/ranks/rank_step.h"
#include "ir/agree.h"

namespace stepc {

namespace {

// How many sets of read numbers are remembered with the results that the code returned for them.
constexpr size_t kMostKnown = 16;

// The number's exact text.
std::string text_of(const Arg& number) {
  if (const auto* real = std::get_if<double>(&number)) return str("{:x}", std::bit_cast<uint64_t>(*real));
  if (const auto* integer = std::get_if<int64_t>(&number)) return str("{}", *integer);
  if (const auto* truth = std::get_if<bool>(&number)) return *truth ? "true" : "false";
  return "-";
}
std::vector<std::string> texts_of(const std::vector<Arg>& numbers) {
  std::vector<std::string> texts;
  for (const Arg& one : numbers) texts.push_back(text_of(one));
  return texts;
}

class LightLook {
 public:
  explicit LightLook(Program& program) : program_(program) { program_.look_lightly(true); }
  ~LightLook() { program_.look_lightly(false); }
  LightLook(const LightLook&) = delete;
  LightLook& operator=(const LightLook&) = delete;

 private:
  Program& program_;
};

}  // namespace

std::optional<StepOutput> RankStep::follow(Call& call, const StepInput& input, const StepOnFn& step) {
  Entry& plan = *call.plan;
  const Trace& trace = plan.trace();
  if (plan.draws) share_draws(plan);
  const bool makes_numbers = std::ranges::any_of(trace.events, is_made_by_code);
  std::vector<Arg> numbers(plan.reads.empty() ? 0 : std::prev(plan.reads.end())->second + 1);
  std::vector<Arg> returned;
  std::optional<Look> seen;
  StepResult result;
  const auto run_on = [&](const auto& part) {
    const auto begin = Clock::now();
    result = part();
    stats_.execute_seconds += seconds_since(begin);
  };
  const auto has_left = [&] { return seen && (seen->leaves_at || seen->wider); };
  try {
    const std::vector<at::Tensor> batch = batch_for(plan, input);
    if (plan.reads.empty() || (is_traced_ && makes_numbers)) {  // numbers that the code makes before it reads any
      const size_t end = plan.reads.empty() ? trace.calls.size() : place_of(plan, plan.reads.begin()->first);
      seen = look(plan, {}, end, input, step);
      returned = seen->recording.output.numbers;
      if (!has_left() && makes_numbers) supply_made(plan, seen->recording.trace, end);
      if (!has_left() && plan.reads.empty() && plan.must_verify()) plan.program->verify(batch);
    }
    if (!has_left()) run_on([&] { return begin_plan(plan, batch); });
    for (auto read = plan.reads.begin(); read != plan.reads.end() && !has_left(); ++read) {
      INTERNAL_CHECK(result.paused && result.event == read->first, "a rank's plan comes to another read");
      numbers[read->second] = number_at(result);
      const auto next = std::next(read);
      const bool is_last = next == plan.reads.end();
      if (is_last || makes_numbers) {
        agree_on_numbers(numbers);
        const std::vector<std::string> key = texts_of(numbers);
        const auto known = makes_numbers || is_traced_ ? plan.returned.end() : plan.returned.find(key);
        if (known != plan.returned.end()) {
          returned = known->second;
        } else {
          const std::vector<Arg> so_far(numbers.begin(), numbers.begin() + static_cast<ptrdiff_t>(read->second) + 1);
          const size_t end = is_last ? trace.calls.size() : place_of(plan, next->first);
          seen = look(plan, so_far, end, input, step);
          if (has_left()) break;
          returned = seen->recording.output.numbers;
          if (!makes_numbers && !is_traced_ && plan.returned.size() < kMostKnown) plan.returned[key] = returned;
          if (makes_numbers) supply_made(plan, seen->recording.trace, end);
        }
      }
      if (is_last && plan.must_verify()) {  // all its numbers are there, and nothing is changed yet
        plan.program->abandon();
        plan.program->verify(batch);
        run_on([&] { return begin_plan(plan, batch); });
        for (auto again = plan.reads.begin(); again != read; ++again) run_on([&] { return plan.go_on(); });
      }
      run_on([&] { return plan.go_on(); });
    }
  } catch (...) {
    plan.abandon();
    throw;
  }
  if (!has_left()) {
    INTERNAL_CHECK(result.is_whole(), "a rank's plan reads more numbers than its trace");
    count_replay(plan, result);
    return StepOutput{std::move(result.outputs), std::move(returned)};
  }
  leave(call, std::move(*seen), numbers, input, step);
  return std::nullopt;
}

// Supplies the numbers that the code computes from those that it has read, for calls up to `end`.
void RankStep::supply_made(const Entry& plan, const Trace& taken, size_t end) {
  for (const HostSupply& one : numbers_supplied(plan.trace(), taken, end))
    if (std::ranges::any_of(plan.trace().events,
                            [&](const HostEvent& event) { return is_made_by_code(event) && event.begin == one.call; }))
      plan.supply(one);
}

// Leaves the plan without any effect. Afterwards the plan of the path that the step takes exists.
void RankStep::leave(Call& call, Look seen, const std::vector<Arg>& numbers, const StepInput& input,
                     const StepOnFn& step) {
  const Entry& plan = *call.plan;
  plan.abandon();
  call.undo->restore();
  ++stats_.departures;
  if (seen.wider) {
    VirtualPlan wider;
    wider.trace = std::move(*seen.wider);
    wider.is_path = true;
    plans_.remove_if([&](const Entry& one) { return &one == &plan; });
    call.plan = nullptr;
    return add_plan(std::move(wider), input);
  }
  if (find_other(plan, seen.recording.trace, *seen.leaves_at)) return;
  std::vector<Arg> path;
  for (const auto& [event, place] : plan.reads)
    if (place_of(plan, event) < *seen.leaves_at)
      path.assign(numbers.begin(), numbers.begin() + static_cast<ptrdiff_t>(place) + 1);
  capture(input, step, path);
}

// The index of the call that reads the event's number.
size_t RankStep::place_of(const Entry& plan, size_t event) { return plan.trace().events[event].begin.index() - 1; }

// The numbers are sums over all ranks in one order, so they have the same bits on every rank.
void RankStep::agree_on_numbers(const std::vector<Arg>& numbers) {
  if (const auto other = find_unlike(*ranks_, str("{}", fmt::join(texts_of(numbers), " "))))
    user_error("rank {} reads other numbers on the host than rank 0, by which the step decides", other->rank);
}

// Finds the first call up to `end` in which the run differs from the plan.
void RankStep::compare_calls(const Trace& trace, const VirtualRun& run, size_t end, Look& seen) {
  const Trace& taken = run.recording.trace;
  const size_t alike = calls_alike(trace, taken);
  if (run.thrown && alike == taken.calls.size()) std::rethrow_exception(run.thrown);  // as in eager, on this path
  if (run.thrown || end != trace.calls.size()) {
    if (alike < std::min(end + 1, trace.calls.size())) seen.leaves_at = alike;
    return;
  }
  Agreement agreement = agree_on_calls(trace, taken);
  const bool is_same = agreement.difference.empty() && agreement.obstacle.empty();
  if (!is_same || agreement.trace.externals != trace.externals)
    seen.leaves_at = alike;
  else if (agreement.trace.events != trace.events)
    seen.wider = std::move(agreement.trace);
  if (!is_same) log().debug("{}{}", agreement.difference, agreement.obstacle);
}

RankStep::Look RankStep::look(const Entry& plan, const std::vector<Arg>& numbers, size_t end, const StepInput& input,
                              const StepOnFn& step) {
  Look seen;
  const Trace& trace = plan.trace();
  together(*ranks_, [&] {
    const auto begin = Clock::now();
    const std::vector<at::Tensor> batch = rows_.whole(input);
    const StepInput given{batch, input.names, input.constants};
    const bool is_whole = end == trace.calls.size();
    // If the step stays on the path, its code runs to the end once a call, and its effects stay.
    const auto keeps = [&](const VirtualRun& run) {
      compare_calls(trace, run, end, seen);
      return is_traced_ && is_whole && !run.thrown && !seen.leaves_at && !seen.wider;
    };
    const LightLook light(program_);
    VirtualRun run = run_virtually(
        program_, given, [&] { return step(batch); }, config_.op_rules, numbers, keeps);
    seen.recording = std::move(run.recording);
    stats_.shadow_seconds += seconds_since(begin);
  });
  agree_on_path(seen.leaves_at ? str("{}", *seen.leaves_at) : seen.wider ? "wider" : "same");
  if (seen.leaves_at)
    log().info("another path is taken: of {} calls {} are the same", trace.calls.size(), *seen.leaves_at);
  return seen;
}

// Checks that all ranks have captured the same calls.
void RankStep::check_path(const Trace& trace) {
  std::string ops;
  for (const stepc::Call& call : trace.calls) ops += call.op + "\n";
  agree_on_path(hash_text(hash_bytes(std::as_bytes(std::span(ops)))));
}

void RankStep::agree_on_path(const std::string& mine) {
  if (const auto other = find_unlike(*ranks_, mine))
    user_error(
        "rank {} takes another path than rank 0, by the same numbers: what a step decides by has to be the same on all "
        "ranks",
        other->rank);
}

// Finds a plan that continues as the step did where it left `plan`. That plan runs next.
bool RankStep::find_other(const Entry& plan, const Trace& taken, size_t leaves_at) {
  size_t most = 0;
  for (const Entry& other : plans_) {
    if (&other == &plan || !other.is_path || other.signature != plan.signature) continue;
    const size_t alike = calls_alike(other.trace(), taken);
    const bool ends_there = alike == taken.calls.size() && alike == other.trace().calls.size();
    if ((alike <= leaves_at && !ends_there) || alike <= most) continue;
    most = alike;
    next_ = &other;
  }
  return most > 0;
}

}  // namespace stepc
