// Random steps, each trained as an eager twin and through accelerate(): outputs, parameters, gradients, buffers, the
// batch, optimizer state and both generators are equal after every call, bit by bit.
//
// STEPC_RANDOM_PROGRAMS sets how many programs there are, STEPC_RANDOM_SEED which ones.
#include <cstdlib>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "base/log.h"
#include "engine/stepc.h"
#include "optim/adamw.h"
#include "tests/engine/random_program.h"

namespace stepc::test {
namespace {

constexpr int kCalls = 8;

using Tensors = std::vector<at::Tensor>;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

rc::Gen<Instruction> any_instruction() {
  std::vector<uint8_t> ops;
  for (size_t op = 0; op < operations().size(); ++op)
    ops.insert(ops.end(), static_cast<size_t>(operations()[op].weight), static_cast<uint8_t>(op));
  const auto byte = rc::gen::inRange<uint8_t>(0, 64);
  return rc::gen::build<Instruction>(
      rc::gen::set(&Instruction::op, rc::gen::elementOf(ops)), rc::gen::set(&Instruction::a, byte),
      rc::gen::set(&Instruction::b, byte), rc::gen::set(&Instruction::n, byte),
      rc::gen::set(&Instruction::no_grad, rc::gen::weightedElement<bool>({{5, false}, {1, true}})));
}

rc::Gen<RandomProgram> any_program() {
  return rc::gen::build<RandomProgram>(
      rc::gen::set(&RandomProgram::code, rc::gen::container<std::vector<Instruction>>(any_instruction())),
      rc::gen::set(&RandomProgram::update, rc::gen::element(Update::kNone, Update::kByHand, Update::kAdamW,
                                                            Update::kTorchSgd, Update::kTorchAdam)),
      rc::gen::set(&RandomProgram::clearing,
                   rc::gen::element(Clearing::kAtEnd, Clearing::kAtStart, Clearing::kZeroed, Clearing::kNever)),
      rc::gen::set(&RandomProgram::outputs, rc::gen::inRange<uint8_t>(1, 4)));
}

// One of the two: a model, what updates it, and a generator of its own.
class Twin {
 public:
  explicit Twin(const RandomProgram& program)
      : program_(program), generator_(at::make_generator<at::CPUGeneratorImpl>(9)) {
    namespace o = torch::optim;
    const Tensors parameters = model_->parameters();
    if (program.update == Update::kAdamW) {
      Named named;
      for (const auto& item : model_->named_parameters()) named.emplace_back(item.key(), item.value());
      adamw_ = std::make_unique<optim::AdamW>(named, optim::AdamWOptions{.lr = 0.05});
    }
    if (program.update == Update::kTorchSgd)
      torchs_ = std::make_unique<o::SGD>(parameters, o::SGDOptions(0.05).momentum(0.9));
    if (program.update == Update::kTorchAdam) torchs_ = std::make_unique<o::Adam>(parameters, o::AdamOptions(0.05));
  }

  Tensors step(const at::Tensor& x, const at::Tensor& ids) {
    if (program_.clearing == Clearing::kAtStart) model_->zero_grad();
    Machine machine(model_, generator_, x, ids);
    for (const Instruction& instruction : program_.code) machine.run(instruction);
    at::Tensor loss = at::zeros({});
    Tensors outputs;
    const std::vector<Value>& values = machine.values();
    for (size_t v = values.size() - 3; v < values.size(); ++v) {
      const at::Tensor& value = values[v].tensor;
      if (value.requires_grad()) loss = loss + value.to(at::kFloat).tanh().mean();
      if (values.size() - v <= program_.outputs) outputs.push_back(value);
    }
    outputs.push_back(loss);
    if (loss.requires_grad()) loss.backward();
    update();
    clear();
    return outputs;
  }

  void set_lr(double lr) {
    if (adamw_) adamw_->set_lr(lr);
    if (torchs_) torchs_->param_groups()[0].options().set_lr(lr);
  }

  std::vector<OptimizerRef> optimizers() {
    std::vector<OptimizerRef> out;
    if (adamw_) out.emplace_back(*adamw_);
    if (torchs_) out.emplace_back(*torchs_);
    return out;
  }
  RandomModel& model() { return model_; }

  // All that must be equal between steps.
  Named state() {
    Named out;
    for (const auto& item : model_->named_parameters()) {
      out.emplace_back(item.key(), item.value().detach());
      out.emplace_back("gradient of " + item.key(), item.value().grad());
    }
    for (const auto& item : model_->named_buffers()) out.emplace_back(item.key(), item.value());
    if (adamw_)
      for (const auto& [key, tensor] : adamw_->named_state()) out.emplace_back(key, tensor);
    if (torchs_)
      for (const at::Tensor& parameter : model_->parameters()) append_state(out, parameter);
    out.emplace_back("own generator", generator_.get_state());
    out.emplace_back("default generator", at::detail::getDefaultCPUGenerator().get_state());
    return out;
  }

 private:
  void update() {
    if (program_.update == Update::kByHand) {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model_->parameters())
        if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.05);
    }
    if (adamw_) adamw_->step();
    if (torchs_) torchs_->step();
  }
  void clear() {
    if (program_.clearing == Clearing::kAtEnd) model_->zero_grad();
    if (program_.clearing == Clearing::kZeroed) model_->zero_grad(/*set_to_none=*/false);
  }
  void append_state(Named& out, const at::Tensor& parameter) {
    const auto found = torchs_->state().find(parameter.unsafeGetTensorImpl());
    if (found == torchs_->state().end()) return;
    if (const auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(found->second.get()))
      out.emplace_back("momentum", sgd->momentum_buffer());
    if (const auto* adam = dynamic_cast<torch::optim::AdamParamState*>(found->second.get())) {
      out.emplace_back("step", at::scalar_tensor(adam->step(), at::kLong));
      out.emplace_back("first moment", adam->exp_avg());
      out.emplace_back("second moment", adam->exp_avg_sq());
    }
  }

  const RandomProgram& program_;
  RandomModel model_;
  at::Generator generator_;
  std::unique_ptr<optim::AdamW> adamw_;
  std::unique_ptr<torch::optim::Optimizer> torchs_;
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Up to rounding. Integers and bools too: a comparison of what is nearly equal may turn.
bool is_close(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const double tolerance = a.is_floating_point() && a.element_size() < 4 ? 5e-2 : 1e-3;
  return at::allclose(a.detach().to(at::kDouble), b.detach().to(at::kDouble), tolerance, tolerance,
                      /*equal_nan=*/true);
}

// The first thing in which they differ, empty where there is none.
std::string difference(const Named& a, const Named& b, bool (*same)(const at::Tensor&, const at::Tensor&) = same_bits) {
  if (a.size() != b.size()) return "number of tensors";
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].first != b[i].first || !same(a[i].second, b[i].second)) return a[i].first;
  return "";
}
Named named_outputs(const Tensors& outputs) {
  Named out;
  for (size_t i = 0; i < outputs.size(); ++i) out.emplace_back("output " + std::to_string(i), outputs[i]);
  return out;
}

struct Totals {
  int programs = 0;
  int refused = 0;
  int replayed = 0;  // programs with at least two replays
  uint64_t replays = 0;
  std::set<uint8_t> replayed_ops;
};

void train_twins(const RandomProgram& program, Totals& totals) {
  Twin a(program);
  Twin b(program);
  auto step = accelerate([&](const at::Tensor& x, const at::Tensor& ids) { return b.step(x, ids); }, {b.model()},
                         b.optimizers(), {.mode = Mode::kExact});
  std::vector<std::pair<Named, Tensors>> kept;
  for (int call = 0; call < kCalls; ++call) {
    torch::manual_seed(100 + call);
    const at::Tensor x = torch::randn({4, 4});
    const at::Tensor ids = torch::randint(0, 5, {4}, at::kLong);
    const at::Tensor xa = x.clone();
    const at::Tensor xb = x.clone();
    for (Twin* twin : {&a, &b}) twin->set_lr(0.05 / (1 + call / 3));
    Tensors outputs_a;
    try {
      outputs_a = a.step(xa, ids);
    } catch (const c10::Error&) {  // PyTorch itself refuses this program
      ++totals.refused;
      return;
    }
    const Named state_a = a.state();
    torch::manual_seed(100 + call);
    torch::randn({4, 4});
    torch::randint(0, 5, {4}, at::kLong);
    const Tensors outputs_b = step(xb, ids);
    const std::string where = " at call " + std::to_string(call) + "\n" + step.report();
    const auto expect_same = [&](const Named& one, const Named& other) {
      const std::string what = difference(one, other);
      if (!what.empty()) RC_FAIL(what + " differs" + where);
    };
    expect_same(named_outputs(outputs_a), named_outputs(outputs_b));
    expect_same(state_a, b.state());
    expect_same({{"batch", xa}}, {{"batch", xb}});
    Named copies;
    for (const auto& [name, tensor] : named_outputs(outputs_a)) copies.emplace_back(name, tensor.detach().clone());
    kept.emplace_back(std::move(copies), outputs_b);
  }
  for (const auto& [expected, outputs] : kept) RC_ASSERT(difference(expected, named_outputs(outputs)) == "");

  ++totals.programs;
  totals.replays += step.stats().replays;
  // A wrong replay that verification caught is a defect all the same. But where PyTorch's C++ optimizers, which have no
  // hooks, share a parameter with an update by hand, whose calls those are cannot be told, and verification decides.
  if (program.update < Update::kTorchSgd)
    for (const std::string& warning : step.stats().warnings)
      if (warning.find("a replay differs from eager") != std::string::npos) RC_FAIL(warning);
  if (step.stats().replays < 2) return;
  ++totals.replayed;
  for (const Instruction& instruction : program.code) totals.replayed_ops.insert(instruction.op);
}

// No log line for each of the many recordings, and one thread: the tensors are tiny.
class Quiet {
 public:
  Quiet() : level_(log().level()), threads_(at::get_num_threads()) {
    log().set_level(spdlog::level::off);
    at::set_num_threads(1);
  }
  ~Quiet() {
    log().set_level(level_);
    at::set_num_threads(threads_);
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  spdlog::level::level_enum level_;
  int threads_;
};

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoi(text);
}

TEST(RandomPrograms, AreBitEqualToEager) {
  const Quiet quiet;
  rc::detail::TestParams params;
  params.seed = static_cast<uint64_t>(from_environment("STEPC_RANDOM_SEED", 4));
  params.maxSuccess = from_environment("STEPC_RANDOM_PROGRAMS", 2000);
  params.maxSize = 24;
  Totals totals;
  const rc::detail::TestResult result = rc::detail::checkTestable(
      [&] { train_twins(*any_program(), totals); }, rc::detail::TestMetadata{"RandomPrograms", ""}, params);
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  std::cout << totals.replayed << " of " << totals.programs << " programs were replayed, " << totals.replays
            << " replays\n";
  ASSERT_TRUE(result.template is<rc::detail::SuccessResult>()) << message.str();
  EXPECT_LE(totals.refused, totals.programs / 100);
  EXPECT_GE(totals.replayed, totals.programs * 8 / 10);
  if (totals.programs < 1000) return;
  for (size_t op = 0; op < operations().size(); ++op)
    EXPECT_EQ(totals.replayed_ops.count(static_cast<uint8_t>(op)), 1U)
        << operations()[op].name << " was never replayed";
}

// As a Graph, with generated kernels: equal up to rounding. Programs without draws, which a Graph makes of its own.
std::string train_fast(RandomProgram program, Totals& totals) {
  const auto draws = [](const Instruction& instruction) {
    const std::string_view name = operations()[instruction.op].name;
    for (const char* word : {"dropout", "bernoulli", "normal", "rand", "generator", "seed"})
      if (name.find(word) != std::string_view::npos) return true;
    return false;
  };
  std::erase_if(program.code, draws);
  // Adam makes a whole step of a gradient that is rounding alone, in another direction here than there.
  if (program.update == Update::kAdamW || program.update == Update::kTorchAdam) program.update = Update::kTorchSgd;
  Twin a(program);
  Twin b(program);
  Config config;
  config.mode = Mode::kFast;
  config.verify = Verify::off();
  auto step = accelerate([&](const at::Tensor& x, const at::Tensor& ids) { return b.step(x, ids); }, {b.model()},
                         b.optimizers(), config);
  for (int call = 0; call < kCalls; ++call) {
    torch::manual_seed(100 + call);
    const at::Tensor x = torch::randn({4, 4});
    const at::Tensor ids = torch::randint(0, 5, {4}, at::kLong);
    const at::Tensor xa = x.clone();
    const at::Tensor xb = x.clone();
    Tensors outputs_a;
    try {
      outputs_a = a.step(xa, ids);
    } catch (const c10::Error&) {  // PyTorch itself refuses this program
      ++totals.refused;
      return {};
    }
    const Tensors outputs_b = step(xb, ids);
    std::string what = difference(named_outputs(outputs_a), named_outputs(outputs_b), is_close);
    if (what.empty()) what = difference(a.state(), b.state(), is_close);
    if (what.empty()) what = difference({{"batch", xa}}, {{"batch", xb}}, is_close);
    if (!what.empty()) return what + " differs at call " + std::to_string(call);
  }
  ++totals.programs;
  totals.replays += step.stats().replays;
  if (step.stats().graph_nodes > 0 && step.stats().replays >= 2) ++totals.replayed;
  return {};
}

TEST(RandomPrograms, AsGraphsAreCloseToEager) {
  const Quiet quiet;
  rc::detail::TestParams params;
  params.seed = static_cast<uint64_t>(from_environment("STEPC_RANDOM_SEED", 4));
  params.maxSuccess = from_environment("STEPC_RANDOM_GRAPHS", 300);
  params.maxSize = 24;
  Totals totals;
  const rc::detail::TestResult result = rc::detail::checkTestable(
      [&] {
        const std::string what = train_fast(*any_program(), totals);
        if (!what.empty()) RC_FAIL(what);
      },
      rc::detail::TestMetadata{"RandomPrograms", ""}, params);
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  std::cout << totals.replayed << " of " << totals.programs << " programs ran as graphs, " << totals.replays
            << " replays\n";
  ASSERT_TRUE(result.template is<rc::detail::SuccessResult>()) << message.str();
  EXPECT_GE(totals.replayed, totals.programs / 2);
}

}  // namespace
}  // namespace stepc::test
