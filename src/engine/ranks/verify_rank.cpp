#include "engine/ranks/verify_rank.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <unistd.h>

#include <ATen/Functions.h>

#include "aten/cpu_hook.h"
#include "aten/device_facts.h"
#include "aten/draws_leave_no_trace.h"
#include "base/check.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "engine/compare/run_difference.h"
#include "engine/compare/sketch.h"
#include "engine/ranks/consensus.h"
#include "engine/ranks/sharded_state.h"
#include "engine/verify/remains.h"
#include "engine/verify/verify_dry.h"
#include "runtime/arena.h"

namespace stepc {

namespace {

// The results of a run in a form that those of a second run can be compared with.
struct LeftByRank {
  std::vector<Named> results;
  std::map<std::pair<Owner, std::string>, Sketch> written;
  std::map<std::pair<Owner, std::string>, at::Tensor> before;  // the program's tensors, by handles
};

// Runs without effect; nullopt if a guard missed.
std::optional<LeftByRank> run_dry(Executor& executor, RunInputs inputs, DrawsLeaveNoTrace& draws) {
  const Schedule& schedule = executor.schedule();
  LeftByRank left;
  std::vector<Sketch> sketches(schedule.inputs.size());
  // The run draws from a copy of the generator. Calls that use the process's generator itself find it in its state from
  // before.
  draws.begin_again();
  inputs.generators = {executor.generator().clone()};
  inputs.show_written = [&](size_t input, const at::Tensor& now, int64_t first) {
    sketches[input].show(now, first, element_count(schedule.operands[schedule.inputs[input].operand.index()].sizes));
  };
  for (size_t i = 0; i < schedule.inputs.size(); ++i)
    if (const ScheduleInput& input = schedule.inputs[i]; is_of_program(input.kind))
      left.before[{*owner_of(input.kind), input.key}] = inputs.tensors[i];
  StepResult result = executor.run(std::move(inputs));
  while (result.paused) result = executor.resume({});
  if (result.missed_guard) return std::nullopt;
  for (size_t o = 0; o < result.outputs.size(); ++o)
    left.results.push_back(named(str("returned value {}", o), str("returned {}", o), Sketch(result.outputs[o]).values(),
                                 /*by_bits=*/false));
  for (size_t n = 0; n < result.numbers.size(); ++n)
    left.results.push_back(
        named(str("returned number {}", n), str("number {}", n), tensor_of(result.numbers[n]), /*by_bits=*/false));
  for (const Bound& bound : result.rebindings)
    left.results.push_back(named_owned({bound.owner, bound.key}, Sketch(bound.tensor).values(), /*by_bits=*/false));
  for (size_t i = 0; i < sketches.size(); ++i)
    if (sketches[i].is_defined())
      left.written[{*owner_of(schedule.inputs[i].kind), schedule.inputs[i].key}] = sketches[i];
  return left;
}

// A tensor that only one of the runs writes keeps its old value in the other run.
std::string difference_of(const LeftByRank& plan, const LeftByRank& plain, DType narrowest) {
  if (plan.results.size() != plain.results.size()) return "which results it leaves";
  std::vector<Named> ours = plan.results, theirs = plain.results;
  std::set<std::pair<Owner, std::string>> all;
  for (const LeftByRank* left : {&plan, &plain})
    for (const auto& [key, sketch] : left->written) all.insert(key);
  const auto add = [](const LeftByRank& left, const std::pair<Owner, std::string>& key, std::vector<Named>& to) {
    const auto found = left.written.find(key);
    const auto before = left.before.find(key);
    const at::Tensor values = found != left.written.end()   ? found->second.values()
                              : before != left.before.end() ? Sketch(before->second).values()
                                                            : at::Tensor();
    to.push_back(named_owned({key.first, key.second}, values, /*by_bits=*/false));
  };
  for (const auto& key : all) {
    add(plan, key, ours);
    add(plain, key, theirs);
  }
  return difference_in_values(ours, theirs, narrowest);
}

// The results of a run's instructions, by operand, without writes to the program's memory and without exchanges, which
// may still be in progress.
struct Made {
  size_t instruction = 0;
  OperandId operand;
  Sketch sketch;
};
std::function<void(size_t, const at::Tensor&)> keep_made(const Schedule& schedule, std::vector<Made>& made) {
  return [&schedule, &made, last = SIZE_MAX, next = size_t{0}](size_t instruction, const at::Tensor& written) mutable {
    if (instruction != last) next = 0;
    last = instruction;
    const std::vector<OperandId>& writes = schedule.instructions[instruction].writes;
    while (!writes[next].valid()) ++next;
    const OperandId operand = writes[next++];
    const Buffer& buffer = schedule.buffers[schedule.operands[operand.index()].buffer.index()];
    const bool is_exchange = schedule.instructions[instruction].kind == Instruction::Kind::kCollective;
    if (!is_exchange && buffer.kind != Buffer::Kind::kInput && written.is_contiguous())
      made.push_back({instruction, operand, Sketch(written)});
  };
}

std::string name_of_instruction(const Instruction& one) {
  return str("{} ({} of '{}')", one.op.empty() ? std::string(name_of(one.kind)) : one.op, name_of(one.source.phase),
             one.source.module);
}

class Verifier {
 public:
  explicit Verifier(const RankProof& proof)
      : proof_(proof), ranks_(*proof.ranks), narrowest_(proof.plan.plan.narrowest) {}

  RankVerdict compare(Compiled& plain) {
    RankVerdict verdict;
    const Schedule& planned = proof_.plan.executor->schedule();
    if (const std::string why = make_plain(plain); !why.empty()) {
      plain = {};
      verdict.with = "with nothing: " + why;
      return verdict;
    }
    draws_.emplace();
    const uint64_t bytes = plain.executor->schedule().peak_bytes();
    verdict.compared = true;
    verdict.with = str("with the plain graph of one rank, one ATen call a node, in {}", human_bytes(bytes));
    std::string plain_error, plan_error;
    const std::optional<LeftByRank> right = run(*plain.executor, plain_error);
    if (bytes > planned.peak_bytes()) release_idle_arenas();  // the plan's own run begins with pages of its own
    release_free_memory();
    const std::optional<LeftByRank> left = run(*proof_.plan.executor, plan_error);
    const auto difference_from_plain = [&](const std::optional<LeftByRank>& of, const std::string& error) {
      if (!error.empty()) return str("an error: {}", error);
      if (!plain_error.empty()) return str("an error of the plain graph: {}", plain_error);
      if (!of || !right) return std::string(of || right ? "what it decides" : "");
      return difference_of(*of, *right, narrowest_);
    };
    const std::string difference = difference_from_plain(left, plan_error);
    const bool is_missed = !left && !right && difference.empty();
    verdict.is_decided = ranks_.largest(is_missed ? 1 : 0) == 0;
    if (!is_any(!difference.empty())) return verdict;
    find_first_instruction();
    plan_error.clear();
    const std::optional<LeftByRank> again = run(*proof_.plan.executor, plan_error);
    verdict.is_transient = !is_any(!difference_from_plain(again, plan_error).empty());
    verdict.difference = *first_of_all(ranks_, {static_cast<size_t>(ranks_.rank())}, difference);
    if (const auto op = first_of_all(ranks_, {place_}, op_)) verdict.difference += str(", first in {}", *op);
    if (is_any(!plain_error.empty())) plain = {};
    return verdict;
  }

 private:
  bool is_any(bool mine) { return ranks_.largest(mine ? 1 : 0) != 0; }

  // Makes the plain Graph's plan. Returns why there is none, the same text on all ranks; empty: there is one.
  std::string make_plain(Compiled& plain) {
    if (plain.executor != nullptr) {
      proof_.supply(*plain.executor);
      return {};
    }
    CompileOptions options = proof_.options;
    options.strategy.context = proof_.plan.context;
    keep_parameters(options.strategy, proof_.plan.graph);
    const Schedule& planned = proof_.plan.executor->schedule();
    const uint64_t most = most_of_plain(planned);
    const uint64_t there = options.budget.kind == MemoryBudget::Kind::kBytes ? options.budget.bytes : room(planned);
    std::string why;
    try {
      const PlainLimit limit{most, proof_.plan.graph};
      plain = compile_plain(proof_.trace, proof_.kernels, options, &limit, proof_.ranks);
      const uint64_t bytes = plain.executor->schedule().peak_bytes();
      if (bytes > most && bytes + planned.input_bytes() > there)
        why = str("the plain graph takes {}, and there is {}", human_bytes(bytes + planned.input_bytes()),
                  human_bytes(there));
    } catch (const LostRank&) {
      throw;
    } catch (const std::exception& error) {
      why = str("the plain graph cannot be planned: {}", first_line(error.what()));
    }
    release_free_memory();
    if (std::string all = common_error(ranks_, why); !all.empty()) return all;
    if (find_unlike(ranks_, hash_of(plain.executor->schedule()))) return "the ranks came to different plain graphs";
    proof_.supply(*plain.executor);
    return {};
  }

  // The memory that there is for the program's tensors and a plan.
  uint64_t room(const Schedule& planned) {
    if (planned.device.empty()) return usable_bytes() / ranks_here();
    const auto facts = device_facts(c10::Device(planned.device));
    return facts && facts->total_bytes > 0 ? facts->free_bytes + planned.input_bytes() : UINT64_MAX;
  }

  // The number of ranks on this machine, which share its memory.
  uint64_t ranks_here() {
    std::array<char, 256> name{};
    gethostname(name.data(), name.size() - 1);
    const std::vector<std::string> all = ranks_.exchange(name.data());
    return static_cast<uint64_t>(std::ranges::count(all, std::string(name.data())));
  }

  std::optional<LeftByRank> run(Executor& executor, std::string& error) {
    try {
      return run_dry(executor, proof_.inputs(executor), *draws_);
    } catch (const LostRank&) {
      throw;
    } catch (const RankFailed&) {
      throw;
    } catch (const std::exception& thrown) {
      error = first_line(thrown.what());
      executor.abandon();
      return std::nullopt;
    }
  }

  // Finds the first instruction whose result differs from that of the same Graph's nodes run one by one.
  void find_first_instruction() {
    Compiled nodes;
    std::string why;
    try {
      nodes = compile_nodes(proof_.plan.graph, proof_.trace, proof_.kernels, proof_.options, proof_.ranks);
    } catch (const std::exception& error) {
      why = first_line(error.what());
    }
    if (!common_error(ranks_, why).empty()) return;
    if (find_unlike(ranks_, hash_of(nodes.executor->schedule()))) return;
    proof_.supply(*nodes.executor);
    const auto made_by = [&](Executor& executor) {
      std::vector<Made> made;
      RunInputs inputs = proof_.inputs(executor);
      inputs.on_written = keep_made(executor.schedule(), made);
      try {
        run_dry(executor, std::move(inputs), *draws_);
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): what was made until then is there
        executor.abandon();
      }
      return made;
    };
    const std::vector<Made> by_nodes = made_by(*nodes.executor), by_plan = made_by(*proof_.plan.executor);
    std::map<OperandId, size_t> tensor_at, right_of;
    const std::vector<OperandId>& operands = proof_.plan.plan.operand_of;
    for (size_t t = 0; t < operands.size(); ++t)
      if (operands[t].valid()) tensor_at.emplace(operands[t], t);
    for (size_t m = 0; m < by_nodes.size(); ++m) right_of[by_nodes[m].operand] = m;
    for (const Made& made : by_plan) {
      const auto tensor = tensor_at.find(made.operand);
      if (tensor == tensor_at.end()) continue;
      const auto right = right_of.find(nodes.plan.operand_of.at(tensor->second));
      if (right == right_of.end()) continue;
      const auto named_alike = [](const Sketch& sketch) {
        return std::vector<Named>{named("it", "it", sketch.values(), /*by_bits=*/false)};
      };
      if (difference_in_values(named_alike(made.sketch), named_alike(by_nodes[right->second].sketch), narrowest_)
              .empty())
        continue;
      place_ = made.instruction;
      op_ = name_of_instruction(proof_.plan.executor->schedule().instructions[made.instruction]);
      return;
    }
  }

  const RankProof& proof_;
  Ranks& ranks_;
  DType narrowest_;
  std::optional<DrawsLeaveNoTrace> draws_;
  size_t place_ = 0;
  std::string op_;
};

}  // namespace

RankVerdict verify_rank(const RankProof& proof, Compiled& plain) { return Verifier(proof).compare(plain); }

}  // namespace stepc
