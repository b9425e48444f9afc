// Captured training steps of every decoder family, and of every optimizer and precision, against the same steps run
// eagerly: ten steps, equal bit by bit in loss, parameters and optimizer state.
#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/stepc.h"
#include "models/decoder.h"
#include "models/lora.h"
#include "optim/adamw.h"
#include "optim/agd.h"
#include "optim/clip.h"
#include "optim/lion.h"
#include "optim/loss_scaler.h"
#include "optim/sgd.h"
#include "optim/wsam.h"

namespace stepc {
namespace {
using models::Decoder;
using models::DecoderConfig;
using nlohmann::json;

constexpr int64_t kVocab = 64;
constexpr int64_t kSeq = 24;

// A model with its optimizer and the step over both.
struct Rig {
  Decoder model = nullptr;
  std::shared_ptr<optim::Optimizer> optimizer;
  std::shared_ptr<optim::Wsam> wsam;          // the optimizer, where it is that
  std::shared_ptr<optim::LossScaler> scaler;  // may be null
  bool packed = false;

  at::Tensor loss(const at::Tensor& batch) {
    const at::Tensor ids = batch.slice(1, 0, kSeq);
    const at::Tensor labels = batch.slice(1, 1, kSeq + 1);
    const at::Tensor documents = packed ? ids.ge(kVocab / 2).to(at::kLong) : at::Tensor();
    return model->loss(ids, labels, models::count_tokens(labels), documents);
  }
  void backward(const at::Tensor& loss) { (scaler ? loss * scaler->scale() : loss).backward(); }

  at::Tensor step(const at::Tensor& batch) {
    const at::Tensor loss = this->loss(batch);
    backward(loss);
    if (wsam) {
      wsam->ascend();
      backward(this->loss(batch));
    }
    std::vector<at::Tensor> parameters;
    for (const auto& [name, parameter] : optimizer->parameters()) parameters.push_back(parameter);
    const at::Tensor overflow = scaler ? scaler->unscale_(parameters) : at::Tensor();
    if (!wsam) optim::clip_grad_norm_(parameters, 1.0);
    optimizer->step(overflow);
    if (scaler) scaler->update_(overflow);
    optimizer->zero_grad();
    return loss.detach();
  }
};

void expect_same_bits(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  ASSERT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()), 0) << what << " differs";
}

void expect_captured_equals_eager(const std::function<Rig()>& make) {
  Rig eager = make();
  Rig captured = make();
  auto step = accelerate([&](const at::Tensor& batch) { return captured.step(batch); }, {captured.model},
                         {*captured.optimizer}, {.mode = Mode::kExact});
  for (int i = 0; i < 10; ++i) {
    torch::manual_seed(100 + i);
    const at::Tensor batch = torch::randint(0, kVocab, {2, kSeq + 1}, at::kLong);
    for (Rig* rig : {&eager, &captured}) rig->optimizer->set_lr(1e-3 / (1 + i));
    torch::manual_seed(1000 + i);
    const at::Tensor expected = eager.step(batch);
    torch::manual_seed(1000 + i);
    expect_same_bits(expected, step(batch), "loss of step " + std::to_string(i));
    const auto a = eager.optimizer->named_state();
    const auto b = captured.optimizer->named_state();
    for (size_t s = 0; s < a.size(); ++s) expect_same_bits(a[s].second, b[s].second, a[s].first);
    const auto p = eager.model->named_parameters();
    const auto q = captured.model->named_parameters();
    for (size_t s = 0; s < p.size(); ++s) expect_same_bits(p[s].value(), q[s].value(), p[s].key());
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(step.stats().plans, 1U) << step.report();
  EXPECT_GE(step.stats().replays, 5U) << step.report();
}

const std::map<std::string, json> kFamilies = {
    {"llama", {{"model_type", "llama"}, {"num_key_value_heads", 2}}},
    {"mistral", {{"model_type", "mistral"}, {"num_key_value_heads", 2}, {"sliding_window", 5}}},
    {"qwen2", {{"model_type", "qwen2"}}},
    {"qwen3", {{"model_type", "qwen3"}, {"num_key_value_heads", 2}, {"head_dim", 12}}},
    {"olmo", {{"model_type", "olmo"}, {"clip_qkv", 0.5}}},
    {"olmo2", {{"model_type", "olmo2"}}},
    {"glm", {{"model_type", "glm"}, {"head_dim", 8}}},
    {"glm4", {{"model_type", "glm4"}, {"head_dim", 8}}},
    {"gemma2", {{"model_type", "gemma2"}, {"num_key_value_heads", 2}, {"head_dim", 12}, {"sliding_window", 5}}},
    {"baichuan7b", {{"model_type", "baichuan"}, {"max_position_embeddings", 64}}},
    {"baichuan13b", {{"model_type", "baichuan"}, {"model_max_length", 64}}},
    {"gpt2_with_dropout", {{"model_type", "gpt2"}, {"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 64}}},
    {"bloom", {{"model_type", "bloom"}, {"n_layer", 2}, {"n_head", 4}}},
};

Decoder make_model(const std::string& family, at::ScalarType dtype = at::kFloat) {
  json object = {{"vocab_size", kVocab},    {"hidden_size", 32},        {"intermediate_size", 40},
                 {"num_hidden_layers", 2},  {"num_attention_heads", 4}, {"initializer_range", 0.1},
                 {"bos_token_id", nullptr}, {"eos_token_id", nullptr},  {"pad_token_id", nullptr}};
  object.update(kFamilies.at(family));
  Decoder model(DecoderConfig::from_json(object.dump()), dtype);
  model->initialize(7);
  return model;
}

class CapturedFamily : public testing::TestWithParam<std::string> {};

TEST_P(CapturedFamily, IsBitEqualToEager) {
  for (const bool packed : {false, true}) {
    SCOPED_TRACE(packed ? "packed" : "one document a row");
    expect_captured_equals_eager([&] {
      Rig rig;
      rig.model = make_model(GetParam());
      rig.optimizer = std::make_shared<optim::AdamW>(rig.model->persistent_state(), optim::AdamWOptions{});
      rig.packed = packed;
      return rig;
    });
  }
}

using MakeOptimizer = std::function<std::shared_ptr<optim::Optimizer>(optim::NamedTensors, optim::UpdateRules)>;
const std::map<std::string, MakeOptimizer> kOptimizers = {
    {"adamw", [](auto p, auto r) { return std::make_shared<optim::AdamW>(p, optim::AdamWOptions{.rules = r}); }},
    {"agd", [](auto p, auto r) { return std::make_shared<optim::Agd>(p, optim::AgdOptions{.rules = r}); }},
    {"lion",
     [](auto p, auto r) {
       return std::make_shared<optim::Lion>(p, optim::LionOptions{.weight_decay = 0.1, .rules = r});
     }},
    {"sgd",
     [](auto p, auto r) {
       return std::make_shared<optim::Sgd>(p, optim::SgdOptions{.momentum = 0.9, .nesterov = true, .rules = r});
     }},
    {"wsam",
     [](auto p, auto r) {
       return std::make_shared<optim::Wsam>(std::make_shared<optim::AdamW>(p, optim::AdamWOptions{.rules = r}),
                                            optim::WsamOptions{.max_norm = 1.0});
     }},
};

class CapturedOptimizer : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(CapturedOptimizer, IsBitEqualToEager) {
  const auto& [name, precision] = GetParam();
  const auto dtype = precision == "float32" ? at::kFloat : precision == "float16" ? at::kHalf : at::kBFloat16;
  const auto low =
      precision == "stochastic" ? optim::LowPrecision::kStochasticRounding : optim::LowPrecision::kMasterWeights;
  expect_captured_equals_eager([&, name = name, precision = precision] {
    Rig rig;
    rig.model = make_model("llama", dtype);
    rig.optimizer = kOptimizers.at(name)(rig.model->persistent_state(), {.low_precision = low});
    rig.wsam = std::dynamic_pointer_cast<optim::Wsam>(rig.optimizer);
    if (precision == "float16") {
      rig.scaler = std::make_shared<optim::LossScaler>(optim::LossScalerOptions{.interval = 3});
      rig.optimizer->keep(rig.scaler->named_state());
    }
    return rig;
  });
}

TEST(CapturedLora, IsBitEqualToEager) {
  expect_captured_equals_eager([] {
    Rig rig;
    rig.model = make_model("llama", at::kBFloat16);
    models::LoraConfig lora;
    lora.dropout = 0.1;
    lora.target_modules = {"q_proj", "down_proj"};
    models::add_adapters(rig.model, lora, 5);
    rig.optimizer = std::make_shared<optim::AdamW>(models::trainable_parameters(rig.model), optim::AdamWOptions{});
    return rig;
  });
}

template <class Map>
std::vector<std::string> names(const Map& map) {
  std::vector<std::string> all;
  for (const auto& [name, value] : map) all.push_back(name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, CapturedFamily, testing::ValuesIn(names(kFamilies)),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(All, CapturedOptimizer,
                         testing::Combine(testing::ValuesIn(names(kOptimizers)),
                                          testing::Values("float32", "bfloat16", "stochastic", "float16")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace stepc
