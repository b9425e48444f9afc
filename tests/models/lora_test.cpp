#include "models/lora.h"

#include <functional>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "models/layers.h"

namespace stepc::models {
namespace {

Decoder small_decoder(at::ScalarType dtype = at::kFloat) {
  DecoderConfig config;
  config.vocab_size = 48;
  config.hidden_size = 32;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 4;
  config.head_dim = 8;
  Decoder model(config, dtype);
  model->initialize(7);
  return model;
}

at::Tensor some_ids() { return (at::arange(18, at::kLong) * 11 % 47).view({2, 9}); }

LoraConfig on(std::vector<std::string> targets) {
  LoraConfig config;
  config.target_modules = std::move(targets);
  return config;
}

std::string error_of_adapter(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Lora, FreshAdaptersChangeNothingAndTheSeedSaysWhatIsDrawn) {
  const at::NoGradGuard no_grad;
  Decoder model = small_decoder();
  const at::Tensor before = model->forward(some_ids());
  add_adapters(model, on({"q_proj", "down_proj"}), 3);
  EXPECT_TRUE(at::equal(model->forward(some_ids()), before));
  const auto drawn = [](uint64_t seed) {
    Decoder other = small_decoder();
    add_adapters(other, on({"q_proj"}), seed);
    return adapter_state(other)[0].second;
  };
  EXPECT_TRUE(at::equal(drawn(3), drawn(3)));
  EXPECT_FALSE(at::equal(drawn(3), drawn(4)));
  EXPECT_LE(drawn(3).abs().max().item<double>(), 1.0 / std::sqrt(32.0));
}

TEST(Lora, OnlyAdaptersAreTrainedAndOnlyWeightsArePersistent) {
  Decoder model = small_decoder();
  const size_t weights = model->persistent_state().size();
  add_adapters(model, on({"q_proj"}), 3);
  EXPECT_EQ(model->persistent_state().size(), weights);
  std::vector<std::string> trained;
  for (const auto& [name, tensor] : trainable_parameters(model)) trained.push_back(name);
  EXPECT_EQ(trained, (std::vector<std::string>{
                         "model.layers.0.self_attn.q_proj.lora_A", "model.layers.0.self_attn.q_proj.lora_B",
                         "model.layers.1.self_attn.q_proj.lora_A", "model.layers.1.self_attn.q_proj.lora_B"}));
  model->loss(some_ids(), some_ids()).backward();
  for (const auto& item : model->named_parameters())
    EXPECT_EQ(item.value().grad().defined(), item.value().requires_grad()) << item.key();
  EXPECT_EQ(adapter_state(model)[0].first, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
}

TEST(Lora, TargetsAreNamesPathsOrAllMatrices) {
  const auto adapted = [](std::vector<std::string> targets) {
    Decoder model = small_decoder();
    add_adapters(model, on(std::move(targets)), 1);
    return trainable_parameters(model).size() / 2;
  };
  EXPECT_EQ(adapted({"q_proj"}), 2);
  EXPECT_EQ(adapted({"model.layers.1.mlp.up_proj"}), 1);
  EXPECT_EQ(adapted({"1.mlp.up_proj", "o_proj"}), 3);
  EXPECT_EQ(adapted({"all-linear"}), 14);
  EXPECT_THAT(
      error_of_adapter([&] {
        adapted({"q_proj", "c_attn"});
      }),
      testing::HasSubstr("target module \"c_attn\" names no matrix of the model's layers; those are down_proj"));
  EXPECT_THAT(error_of_adapter([&] { adapted({"lm_head"}); }), testing::HasSubstr("\"lm_head\" names no matrix"));
  EXPECT_THAT(error_of_adapter([&] { adapted({}); }), testing::HasSubstr("no target modules"));
}

TEST(Lora, AdaptersOfABfloat16ModelAreFloat32) {
  Decoder model = small_decoder(at::kBFloat16);
  add_adapters(model, on({"q_proj"}), 1);
  for (const auto& [name, tensor] : adapter_state(model)) EXPECT_EQ(tensor.scalar_type(), at::kFloat);
  EXPECT_EQ(model->forward(some_ids()).scalar_type(), at::kBFloat16);
}

TEST(Lora, LoadIsStrictAndAllOrNothing) {
  Decoder model = small_decoder();
  add_adapters(model, on({"q_proj"}), 1);
  NamedTensors state;
  for (const auto& [name, tensor] : adapter_state(model)) state.emplace_back(name, at::ones_like(tensor));
  const NamedTensors missing(state.begin(), state.end() - 1);
  EXPECT_THAT(error_of_adapter([&] { load_adapters(model, missing); }),
              testing::HasSubstr("the adapter lacks base_model."));
  NamedTensors unknown = state;
  unknown.emplace_back("base_model.model.extra", at::ones({1}));
  EXPECT_THAT(error_of_adapter([&] { load_adapters(model, unknown); }),
              testing::HasSubstr("holds base_model.model.extra"));
  EXPECT_EQ(adapter_state(model)[1].second.abs().max().item<double>(), 0.0);
  load_adapters(model, state);
  EXPECT_EQ(adapter_state(model)[1].second.min().item<double>(), 1.0);
}

TEST(Lora, ConfigRoundTripsAndKeepsWhatItDoesNotUse) {
  LoraConfig config = on({"o_proj", "q_proj"});
  config.rank = 4;
  config.alpha = 12;
  config.dropout = 0.25;
  config.rank_stabilized = true;
  const LoraConfig again = LoraConfig::from_json(config.to_json(small_decoder()->config()));
  EXPECT_EQ(again.rank, 4);
  EXPECT_EQ(again.alpha, 12.0);
  EXPECT_EQ(again.dropout, 0.25);
  EXPECT_TRUE(again.rank_stabilized);
  EXPECT_EQ(again.target_modules, config.target_modules);
  const LoraConfig kept =
      LoraConfig::from_json(R"({"peft_type": "LORA", "target_modules": ["q_proj"], "revision": "x"})");
  EXPECT_EQ(kept.rank, 8);
  EXPECT_THAT(kept.to_json(small_decoder()->config()), testing::HasSubstr("\"revision\": \"x\""));
}

TEST(Lora, ConfigRefusesByFieldAndValue) {
  const auto refused = [](const std::string& fields) {
    return error_of_adapter(
        [&] { LoraConfig::from_json(R"({"peft_type": "LORA", "target_modules": ["q_proj"], )" + fields + "}"); });
  };
  EXPECT_EQ(refused(R"("use_dora": false, "layers_to_transform": null, "loftq_config": {})"), "accepted");
  EXPECT_THAT(refused(R"("use_dora": true)"), testing::HasSubstr("use_dora is true"));
  EXPECT_THAT(refused(R"("r": 0)"), testing::HasSubstr("r is 0; expected a number from 1"));
  EXPECT_THAT(refused(R"("r": 2.5)"), testing::HasSubstr("r is 2.5"));
  EXPECT_THAT(refused(R"("lora_dropout": 1.0)"), testing::HasSubstr("lora_dropout is 1"));
  EXPECT_THAT(refused(R"("use_rslora": "yes")"), testing::HasSubstr("use_rslora is \"yes\""));
  EXPECT_THAT(error_of_adapter([] { LoraConfig::from_json("[]"); }), testing::HasSubstr("expected an object"));
  EXPECT_THAT(error_of_adapter([] { LoraConfig::from_json(R"({"peft_type": "LORA", "target_modules": [1]})"); }),
              testing::HasSubstr("target_modules is a list"));
}

}  // namespace
}  // namespace stepc::models
