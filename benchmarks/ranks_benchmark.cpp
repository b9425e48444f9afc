// One rank of the stepc team of ranks_benchmark.py: the same Llama step on data-parallel ranks, on shards (zero 3),
// under tensor and under context parallelism, and of this rank's rows alone; and the collectives of the first four
// without anything else.
//
//   ranks_benchmark PRESET PRECISION BATCH SEQ [overlap]      with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
//
// With `overlap`, for slow_link_benchmark.py: dp and zero 3 alone, each also with parallel.overlap, and which share of
// the bytes that it sends its graph lets hide.
//
// `run N` on every rank's stdin takes N steps of each, one after the other; rank 0 answers with their seconds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "aten/constants.h"
#include "benchmarks/stopwatch.h"
#include "capture/virtual/virtual_region.h"
#include "comm/ranks.h"
#include "engine/ranks/rank_program.h"
#include "ir/rank_parts.h"
#include "models/lora.h"
#include "ops/op_def.h"
#include "plan/price.h"
#include "runtime/micro_kernels.h"
#include "train/machine/kernel_directory.h"
#include "train/step/capture_run.h"

namespace {

using namespace stepc;
using namespace stepc::train;

// A step of some mesh, with weights drawn at random.
class Step {
 public:
  Step(const std::string& preset, const RunConfig& config, const Strategy& strategy, int64_t seq,
       const std::shared_ptr<Ranks>& ranks)
      : ranks_(ranks), kernels_(kernel_directory()), state_(strategy.mesh, ranks) {
    const models::DecoderConfig shape = models::DecoderConfig::preset(preset);
    const int64_t rows = config.train.batch_size;
    batch_.tokens = at::randint(shape.vocab_size, {1, rows, seq}, at::kLong);
    batch_.labels = at::randint(shape.vocab_size, {1, rows, seq}, at::kLong);
    models::Decoder model = nullptr;
    ChosenOptimizer optimizer;
    {
      const VirtualRegion shapes_alone;
      model = models::Decoder(shape, models::scalar_type(config.model.compute));
      optimizer = choose_optimizer(config, models::trainable_parameters(model));
    }
    VirtualPlan captured = capture_step(model, optimizer, config, batch_.all_rows());
    CompileOptions options;
    options.strategy = strategy;
    options.target = known_target(kernel_directory(), features_of(kernels_.micro_kernels), 1).target;
    program_ = std::make_unique<RankProgram>(std::move(captured), kernels_, options, Verify::off(), ranks, state_);
    state_.load();
    for (const ScheduleInput& input : program_->schedule().inputs)
      if (input.kind == InputKind::kParameter) at::Tensor(state_.part(Owner::kParameter, input.key)).normal_(0, 0.02);
    state_.put(Owner::kOptimizerState, "lr", at::scalar_tensor(1e-6, at::kDouble));
    make_bare();
  }

  void run() { program_->step(batch_.all_rows()); }
  // What it sends and reduces, in its order.
  void run_bare() {
    for (const std::function<void()>& one : bare_) one();
  }
  // Of the bytes that it sends: those that neither the first computation waits for nor the last of the backward pass
  // gives.
  [[nodiscard]] double hideable_share() const {
    const std::vector<Instruction>& all = program_->schedule().instructions;
    const auto computes = [](const Instruction& one) {
      return one.kind != Instruction::Kind::kCollective && one.kind != Instruction::Kind::kWait;
    };
    const auto is_backward = [&](const Instruction& one) {
      return computes(one) && one.source.phase == Phase::kBackward;
    };
    const auto first = std::ranges::find_if(all, computes);
    const auto last = std::ranges::find_if(all.rbegin(), all.rend(), is_backward).base();
    std::set<uint32_t> waited_for;
    for (auto one = all.begin(); one != first; ++one)
      if (one->kind == Instruction::Kind::kWait) waited_for.insert(*one->mark);
    double bytes = 0, hideable = 0;
    for (auto one = all.begin(); one != all.end(); ++one) {
      const std::optional<Communication> sent = communication_of(program_->schedule(), *one);
      if (!sent) continue;
      bytes += sent->bytes;
      const bool is_first = one < first && (!one->mark || waited_for.contains(*one->mark));
      if (!is_first && one < last) hideable += sent->bytes;
    }
    return bytes > 0 ? hideable / bytes : 0;
  }

 private:
  void make_bare() {
    const Schedule& schedule = program_->schedule();
    for (const Instruction& instruction : schedule.instructions) {
      if (instruction.kind != Instruction::Kind::kCollective) continue;
      const auto tensor = [&](OperandId id) {
        const Operand& operand = schedule.operands[id.index()];
        return at::zeros(operand.sizes, scalar_type_of(operand.dtype));
      };
      const auto& axes = instruction.attrs.get<std::vector<int64_t>>("axes");
      RankGroup& group = ranks_->along(schedule.mesh, {axes.begin(), axes.end()});
      std::vector<at::Tensor> operands, results;
      for (OperandId read : instruction.reads) operands.push_back(tensor(read));
      for (OperandId write : instruction.writes) results.push_back(tensor(write));
      const at::Tensor scratch = at::empty({static_cast<int64_t>(instruction.scratch.bytes)}, at::kByte);
      const auto how = ReduceOp::kSum;
      switch (op_def(instruction.op).collective) {
        case Collective::kAllGather:
          bare_.emplace_back([=, &group] { group.all_gather(operands, results); });
          break;
        case Collective::kAllToAll:
          bare_.emplace_back([=, &group] { group.all_to_all(operands, results); });
          break;
        case Collective::kRotate: {
          const auto by = instruction.attrs.get<int64_t>("by");
          bare_.emplace_back([=, &group] { group.rotate(operands, results, by); });
          break;
        }
        case Collective::kReduceScatter:
          bare_.emplace_back([=, &group] {
            group.reduce_scatter(operands, results, how, scratch.mutable_data_ptr(), scratch.nbytes());
          });
          break;
        default:
          bare_.emplace_back(
              [=, &group] { group.all_reduce(results, how, scratch.mutable_data_ptr(), scratch.nbytes()); });
      }
    }
  }

  std::shared_ptr<Ranks> ranks_;
  KernelSources kernels_;
  ShardedState state_;
  Batch batch_;
  std::unique_ptr<RankProgram> program_;
  std::vector<std::function<void()>> bare_;
};

int run(const std::string& preset, const std::string& precision, int64_t rows, int64_t seq, bool overlap) {
  at::set_num_threads(1);
  constexpr std::chrono::hours kPatience{1};  // other teams have their turns
  const Launch launch = launch_of([](const char* name) { return std::getenv(name); });
  const std::shared_ptr<Ranks> ranks = Ranks::join(launch, kPatience, kPatience);
  RunConfig config;
  config.model.compute = precision;
  config.train.batch_size = rows;
  config.train.threads = 1;
  const auto strategy_of = [&](const char* axis) {
    Strategy strategy;
    strategy.mesh = make_mesh({{axis, launch.ranks}});
    strategy.context = Context::kByPrice;
    return strategy;
  };
  std::vector<std::pair<std::string, std::function<void()>>> pieces;
  std::vector<std::unique_ptr<Step>> steps;
  const auto add = [&](const std::string& name, const Strategy& strategy) {
    Step* step = steps.emplace_back(std::make_unique<Step>(preset, config, strategy, seq, ranks)).get();
    pieces.emplace_back(name, [=] { step->run(); });
    return step;
  };
  std::map<std::string, double> hideable;
  using Named = std::pair<std::string, const char*>;
  const std::vector<Named> all = {{"dp", "dp_replicate"}, {"zero3", "dp_shard"}, {"tp", "tp"}, {"cp", "cp"}};
  for (const auto& [name, axis] : std::span(all).first(overlap ? 2 : all.size())) {
    Strategy strategy = strategy_of(axis);
    Step* step = add(name, strategy);
    pieces.emplace_back(name + "_bare", [=] { step->run_bare(); });
    if (!overlap) continue;
    strategy.overlap_bytes = kOverlapBytes;
    hideable[name + "_hideable"] = add(name + "_overlap", strategy)->hideable_share();
  }
  config.train.batch_size = rows / launch.ranks;
  Step alone(preset, config, Strategy(), seq, ranks);
  pieces.emplace_back("alone", [&] { alone.run(); });
  std::string command;
  for (int count = 0; std::cin >> command >> count;) {
    std::map<std::string, std::vector<double>> seconds;
    for (int i = 0; i < count; ++i)
      for (const auto& [name, piece] : pieces) {
        ranks->barrier();
        seconds[name].push_back(seconds_of([&] {
          piece();
          ranks->barrier();  // the slowest counts
        }));
      }
    if (ranks->rank() != 0) continue;
    for (const auto& [name, share] : hideable) seconds[name] = {share};
    std::printf("%s\n", nlohmann::json(seconds).dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bool overlap = argc == 6 && std::string_view(argv[5]) == "overlap";
    if (argc == 5 || overlap) return run(argv[1], argv[2], std::atoll(argv[3]), std::atoll(argv[4]), overlap);
    std::fputs("ranks_benchmark PRESET PRECISION BATCH SEQ [overlap]\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ranks_benchmark: %s\n", error.what());
  }
  return 2;
}
