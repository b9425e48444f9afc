#include "capture/recorder.h"

#include <gtest/gtest.h>

#include <torch/library.h>
#include <torch/types.h>

#include "aten/constants.h"
#include "base/check.h"
#include "base/module_scope.h"

namespace stepc {
namespace {

// A program whose tensors a function lists.
class Listed final : public RecordedProgram {
 public:
  explicit Listed(std::function<std::vector<OwnedTensor>()> list) : list_(std::move(list)) {}
  std::vector<OwnedTensor> list() override { return list_(); }

 private:
  std::function<std::vector<OwnedTensor>()> list_;
};

Recording record_listed(const std::function<std::vector<OwnedTensor>()>& list,
                        const std::function<std::vector<at::Tensor>()>& step) {
  Listed program(list);
  return record(program, [&] { return StepOutput{step(), {}}; });
}

// A linear model with plain SGD, as small as a whole step can be.
struct Tiny {
  at::Tensor weight = torch::ones({4, 4}, torch::requires_grad());
  at::Tensor batch = torch::ones({2, 4});
  std::vector<OwnedTensor> owned() const {
    return {{Owner::kParameter, "net.weight", weight},
            {Owner::kGradient, "net.weight", weight.grad()},
            {Owner::kBatch, "0", batch}};
  }
  std::vector<at::Tensor> step() const {
    at::Tensor loss;
    {
      const ModuleScope scope("net");
      loss = batch.matmul(weight).pow(2).mean();
    }
    loss.backward();
    {
      const at::NoGradGuard no_grad;
      weight.sub_(weight.grad() * 0.1);
    }
    weight.mutable_grad().reset();
    return {loss};
  }
  Recording record_step() const {
    return record_listed([this] { return owned(); }, [this] { return step(); });
  }
};

const Call& find(const Trace& trace, const std::string& op) {
  for (const Call& call : trace.calls)
    if (call.op == op) return call;
  throw std::runtime_error(op + " is not in\n" + to_text(trace));
}

TEST(Recorder, WritesDownAWholeStep) {
  const Tiny tiny;
  const Recording recording = tiny.record_step();
  EXPECT_TRUE(recording.obstacles.empty()) << recording.obstacles.front();
  const Trace& trace = recording.trace;
  verify(trace);
  EXPECT_EQ(parse_trace(to_text(trace)), trace);
  ASSERT_EQ(trace.externals.size(), 2U);
  EXPECT_EQ(trace.externals[0].key, "0");
  EXPECT_EQ(trace.externals[1].key, "net.weight");
  EXPECT_EQ(find(trace, "aten::mm").phase, Phase::kForward);
  EXPECT_EQ(find(trace, "aten::mm").module, "net");
  EXPECT_EQ(find(trace, "aten::sub_.Tensor").phase, Phase::kUpdate);
  EXPECT_EQ(find(trace, "aten::sub_.Tensor").module, "net") << "an update takes the parameter's path";
  EXPECT_EQ(find(trace, "aten::sub_.Tensor").writes.size(), 1U);
  int backward = 0;
  for (const Call& call : trace.calls)
    if (call.phase == Phase::kBackward && call.op == "aten::mm") {
      ++backward;
      EXPECT_EQ(call.module, "net") << "a backward call takes its forward call's path";
    }
  EXPECT_EQ(backward, 1);
  ASSERT_EQ(trace.outputs.size(), 1U);
  EXPECT_TRUE(trace.storages[trace.values[trace.outputs[0].index()].storage.index()].escapes);
  EXPECT_FALSE(recording.output.tensors[0].requires_grad());
  EXPECT_GT(recording.peak_bytes, 0U);
}

TEST(Recorder, TwoRecordingsOfASteadyStepAgree) {
  const Tiny tiny;
  EXPECT_EQ(first_difference(tiny.record_step().trace, tiny.record_step().trace), "");
}

TEST(Recorder, DoesNotChangeTheStep) {
  const Tiny eager;
  const Tiny recorded;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor loss = eager.step()[0];
    EXPECT_TRUE(torch::equal(loss, recorded.record_step().output.tensors[0]));
    EXPECT_TRUE(torch::equal(eager.weight, recorded.weight));
  }
}

TEST(Recorder, WorkspacesInsideKernelsAreListed) {
  const at::Tensor x = torch::randn({1, 3, 32, 32});
  const at::Tensor w = torch::randn({8, 3, 3, 3});
  const Recording recording = record_listed(
      [&] {
        return std::vector<OwnedTensor>{{Owner::kBatch, "x", x}, {Owner::kBatch, "w", w}};
      },
      [&] {
        return std::vector<at::Tensor>{torch::conv2d(x, w, {}, 1, at::IntArrayRef{1, 1}).to(at::kBFloat16)};
      });
  size_t workspaces = 0;
  for (const Allocation& allocation : recording.trace.allocations) workspaces += allocation.storage.valid() ? 0 : 1;
  EXPECT_GT(workspaces, 0U) << to_text(recording.trace);
}

TEST(Recorder, ExceptionsPassAndTakeItDown) {
  const Tiny tiny;
  EXPECT_THROW(record_listed([&] { return tiny.owned(); },
                             [&]() -> std::vector<at::Tensor> {
                               tiny.batch.matmul(torch::ones({3}));
                               return {};
                             }),
               c10::Error);
  EXPECT_FALSE(is_recording());
  EXPECT_TRUE(tiny.record_step().obstacles.empty());
}

TEST(Recorder, ConstantsOfEveryKindSurvive) {
  // Every constant that a recorded call holds becomes the same IValue again.
  const at::Tensor x = torch::randn({2, 3, 4, 4});
  const Recording recording = record_listed(
      [&] {
        return std::vector<OwnedTensor>{{Owner::kBatch, "x", x}};
      },
      [&] {
        at::Tensor y = torch::avg_pool2d(x, {2, 2});
        y = y.to(at::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast) + 1.5;
        y = torch::cat({y, torch::zeros({2, 1, 2, 2}, y.options())}, 1);
        y = at::gelu(y, "tanh");
        return std::vector<at::Tensor>{torch::clamp(y.to(at::kFloat), -1, 1).sum()};
      });
  EXPECT_TRUE(recording.obstacles.empty());
  int constants = 0;
  for (const Call& call : recording.trace.calls) {
    const size_t dot = call.op.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        call.op.substr(0, dot).c_str(), dot == std::string::npos ? "" : call.op.substr(dot + 1).c_str());
    for (size_t i = 0; i < call.args.size(); ++i) {
      if (std::holds_alternative<ValueId>(call.args[i]) || std::holds_alternative<std::vector<ValueId>>(call.args[i]))
        continue;
      const auto& argument = op.schema().arguments()[i];
      EXPECT_EQ(constant_from_ivalue(constant_to_ivalue(call.args[i], argument), argument), call.args[i]) << call.op;
      ++constants;
    }
  }
  EXPECT_GT(constants, 15);
}

TEST(RecorderDeathTest, SaysWhenTheDispatchKeyIsTaken) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fresh process: this one has the key already
  EXPECT_EXIT(
      {
        torch::Library other(torch::Library::IMPL, "_", c10::DispatchKey::Fake, __FILE__, __LINE__);
        other.fallback(torch::CppFunction::makeFallthrough());
        try {
          install_recorder();
        } catch (const UserError& error) {
          std::fprintf(stderr, "%s\n", error.what());
          std::_Exit(2);
        }
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(2), "another library in this process has taken PyTorch's dispatch key 'Fake'");
}

}  // namespace
}  // namespace stepc
