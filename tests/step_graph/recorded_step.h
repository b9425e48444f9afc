// A decoder's training step with AdamW and clipping, recorded in eager PyTorch, with all that it may touch before and
// after.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "capture/recorder.h"
#include "interp/array.h"
#include "models/decoder.h"
#include "optim/adamw.h"
#include "optim/agd.h"
#include "optim/clip.h"
#include "optim/wsam.h"
#include "tests/step_graph/aten_calls.h"

namespace stepc::test {

struct Family {
  std::string name, config;
};
inline void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }  // NOLINT: GoogleTest's name

inline const std::string kSizes =
    R"("vocab_size":96,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,"max_position_embeddings":64)";
inline std::string sized(const std::string& type, const std::string& more = "") {
  return R"({"model_type":")" + type + "\"," + more + kSizes + "}";
}
inline std::string grouped(const std::string& type, const std::string& more = "") {
  return sized(type, R"("intermediate_size":48,"num_key_value_heads":2,"rms_norm_eps":1e-5,)" + more);
}
inline std::string gpt2(const std::string& dropout) {
  return R"({"model_type":"gpt2","vocab_size":96,"n_embd":32,"n_layer":2,"n_head":4,"n_positions":64,"n_ctx":64,)"
         R"("embd_pdrop":)" +
         dropout + R"(,"attn_pdrop":)" + dropout + R"(,"resid_pdrop":)" + dropout + "}";
}

class RecordedStep : private RecordedProgram {
 public:
  enum class Rule : uint8_t { kAdamW, kAgd, kWsam };

  RecordedStep(const std::string& config, at::ScalarType dtype, int64_t micro_batches = 1, Rule rule = Rule::kAdamW) {
    at::manual_seed(1);
    const auto decoder = models::DecoderConfig::from_json(config);
    models::Decoder model(decoder, at::TensorOptions(dtype));
    model->initialize(3);
    for (auto& item : model->named_parameters()) parameters_.emplace_back(item.key(), item.value());
    const std::shared_ptr<optim::Optimizer> optimizer = make_optimizer(rule);
    auto* wsam = dynamic_cast<optim::Wsam*>(optimizer.get());
    for (const auto& [key, tensor] : parameters_) owned_.push_back({Owner::kParameter, key, tensor});
    for (const auto& [key, tensor] : optimizer->named_state()) owned_.push_back({Owner::kOptimizerState, key, tensor});
    const at::Tensor batch = at::randint(0, 96, {4 * micro_batches, 17}, at::kLong);
    owned_.push_back({Owner::kBatch, "0", batch});

    std::vector<at::Tensor> tensors;
    for (const auto& [key, tensor] : parameters_) tensors.push_back(tensor);
    const auto step = [&] {
      at::Tensor loss;
      for (int64_t m = 0; m < micro_batches; ++m) {
        const at::Tensor rows = batch.slice(0, m * 4, m * 4 + 4);
        const at::Tensor part = model->loss(rows.slice(1, 0, 16), rows.slice(1, 1, 17)) / micro_batches;
        part.backward();
        if (wsam != nullptr) {
          wsam->ascend();
          model->loss(rows.slice(1, 0, 16), rows.slice(1, 1, 17)).backward();
        }
        loss = loss.defined() ? loss + part.detach() : part.detach();
      }
      at::Tensor norm = optim::clip_grad_norm_(tensors, 1.0);
      optimizer->step();
      optimizer->zero_grad();
      return StepOutput{{loss, norm}, {}};
    };
    step();
    before = state();
    Recording recording = record(*this, step);
    after = state();
    for (const std::string& obstacle : recording.obstacles) ADD_FAILURE() << obstacle;
    for (const at::Tensor& output : recording.output.tensors) returned.push_back(array_of(output));
    trace = std::move(recording.trace);
  }

  std::map<std::pair<InputKind, std::string>, Array> before, after;
  std::vector<Array> returned;
  Trace trace;

 private:
  std::shared_ptr<optim::Optimizer> make_optimizer(Rule rule) {
    if (rule == Rule::kAgd) return std::make_shared<optim::Agd>(parameters_, optim::AgdOptions{});
    optim::AdamWOptions options;
    options.lr = 1e-3;
    options.weight_decay = 0.1;
    auto adamw = std::make_shared<optim::AdamW>(parameters_, options);
    if (rule == Rule::kAdamW) return adamw;
    return std::make_shared<optim::Wsam>(adamw, optim::WsamOptions{});
  }
  std::vector<OwnedTensor> list() override {
    std::vector<OwnedTensor> out = owned_;
    for (const auto& [key, tensor] : parameters_) out.push_back({Owner::kGradient, key, tensor.grad()});
    return out;
  }
  std::map<std::pair<InputKind, std::string>, Array> state() const {
    const std::map<Owner, InputKind> kinds = {{Owner::kParameter, InputKind::kParameter},
                                              {Owner::kOptimizerState, InputKind::kOptimizerState},
                                              {Owner::kBatch, InputKind::kBatch}};
    std::map<std::pair<InputKind, std::string>, Array> out;
    for (const OwnedTensor& owned : owned_) out[{kinds.at(owned.owner), owned.key}] = array_of(owned.tensor);
    return out;
  }

  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<OwnedTensor> owned_;
};

}  // namespace stepc::test
