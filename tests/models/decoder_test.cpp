#include "models/decoder.h"

#include <cmath>
#include <functional>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/module_scope.h"

namespace stepc::models {
namespace {

DecoderConfig tiny() {
  DecoderConfig config;
  config.vocab_size = 48;
  config.hidden_size = 32;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 8;
  return config;
}

Decoder made(const DecoderConfig& config, at::ScalarType dtype = at::kFloat) {
  Decoder model(config, dtype);
  model->initialize(7);
  return model;
}

at::Tensor some_ids(int64_t batch, int64_t seq) {
  return (at::arange(batch * seq, at::kLong) * 11 % 47).view({batch, seq});
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<std::string> names_of(const NamedTensors& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) names.push_back(name);
  return names;
}

TEST(Decoder, ParametersHaveTheNamesAndShapesOfHuggingFace) {
  DecoderConfig config = tiny();
  config.num_key_value_heads = 2;
  config.query_key_value_bias = config.attention_output_bias = true;
  const Decoder model = made(config);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, tensor] : model->persistent_state()) shapes[name] = tensor.sizes().vec();
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes.size(), 3 + 2 * (9 + 4));
  EXPECT_EQ(shapes.at("model.embed_tokens.weight"), (Shape{48, 32}));
  EXPECT_EQ(shapes.at("model.layers.0.input_layernorm.weight"), (Shape{32}));
  EXPECT_EQ(shapes.at("model.layers.0.post_attention_layernorm.weight"), (Shape{32}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.q_proj.weight"), (Shape{32, 32}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.k_proj.weight"), (Shape{16, 32}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.v_proj.bias"), (Shape{16}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.o_proj.weight"), (Shape{32, 32}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.gate_proj.weight"), (Shape{40, 32}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.down_proj.weight"), (Shape{32, 40}));
  EXPECT_EQ(shapes.at("model.norm.weight"), (Shape{32}));
  EXPECT_EQ(shapes.at("lm_head.weight"), (Shape{48, 32}));
  EXPECT_TRUE(model->named_buffers().is_empty());
}

TEST(Decoder, CountsItsParameters) {
  for (const bool extras : {false, true}) {
    DecoderConfig config = tiny();
    config.query_key_value_bias = config.attention_output_bias = config.mlp_bias = config.tie_word_embeddings = extras;
    int64_t count = 0;
    for (const auto& [name, tensor] : made(config)->persistent_state()) count += tensor.numel();
    EXPECT_EQ(count, config.parameter_count());
  }
}

TEST(Decoder, InitializationIsSeededAndTheSameInEveryDtype) {
  const NamedTensors first = made(tiny())->persistent_state();
  const NamedTensors again = made(tiny())->persistent_state();
  const NamedTensors rounded = made(tiny(), at::kBFloat16)->persistent_state();
  Decoder other(tiny());
  other->initialize(8);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(first[i].second, again[i].second)) << first[i].first;
    EXPECT_TRUE(at::equal(first[i].second.to(at::kBFloat16), rounded[i].second)) << first[i].first;
  }
  EXPECT_FALSE(at::equal(first[0].second, other->persistent_state()[0].second));
  EXPECT_NEAR(first[0].second.std().item<double>(), 0.02, 0.002);
}

TEST(Decoder, FutureTokensDoNotChangePastLogits) {
  DecoderConfig grouped = tiny();
  grouped.num_key_value_heads = 1;
  for (const DecoderConfig& config : {tiny(), grouped}) {
    const at::NoGradGuard no_grad;
    Decoder model = made(config);
    const at::Tensor ids = some_ids(2, 9);
    at::Tensor changed = ids.clone();
    changed.slice(1, 5).fill_(3);
    const at::Tensor before = model->forward(ids);
    const at::Tensor after = model->forward(changed);
    EXPECT_EQ(before.sizes(), (std::vector<int64_t>{2, 9, 48}));
    EXPECT_TRUE(at::allclose(before.slice(1, 0, 5), after.slice(1, 0, 5), 1e-6, 1e-7));
    EXPECT_FALSE(at::allclose(before.slice(1, 5), after.slice(1, 5), 1e-3, 1e-4));
    // A prefix alone gives the same logits; one token alone too.
    EXPECT_TRUE(at::allclose(model->forward(ids.slice(1, 0, 1)), before.slice(1, 0, 1), 1e-5, 1e-6));
  }
}

TEST(Decoder, GroupedQueriesEqualRepeatedKeysAndValues) {
  const at::NoGradGuard no_grad;
  DecoderConfig config = tiny();
  config.num_key_value_heads = 2;
  Decoder grouped = made(config);
  Decoder full(tiny());
  NamedTensors repeated;
  for (const auto& [name, tensor] : grouped->persistent_state()) {
    const bool shared = name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos;
    repeated.emplace_back(name,
                          shared ? tensor.view({2, 1, 8, 32}).expand({2, 2, 8, 32}).reshape({32, 32}).clone() : tensor);
  }
  full->load_state(repeated);
  EXPECT_TRUE(at::allclose(full->forward(some_ids(2, 7)), grouped->forward(some_ids(2, 7)), 1e-5, 1e-6));
}

TEST(Decoder, TiedEmbeddingsAreOneTensorWithBothGradients) {
  DecoderConfig config = tiny();
  config.tie_word_embeddings = true;
  Decoder tied = made(config);
  EXPECT_THAT(names_of(tied->persistent_state()), testing::Not(testing::Contains("lm_head.weight")));

  Decoder untied(tiny());
  NamedTensors weights = tied->persistent_state();
  weights.emplace_back("lm_head.weight", tied->persistent_state()[0].second);
  untied->load_state(weights);
  const at::Tensor ids = some_ids(2, 6);
  EXPECT_TRUE(at::equal(tied->forward(ids), untied->forward(ids)));

  tied->loss(ids, ids).backward();
  untied->loss(ids, ids).backward();
  const auto parameters = untied->named_parameters();
  EXPECT_TRUE(at::allclose(tied->persistent_state()[0].second.grad(),
                           parameters["model.embed_tokens.weight"].grad() + parameters["lm_head.weight"].grad(), 1e-5,
                           1e-7));
  tied->load_state(weights);  // files of tied models may carry the second name
}

TEST(Decoder, LossIgnoresMaskedLabelsAndAddsUpOverMicroBatches) {
  const at::NoGradGuard no_grad;
  Decoder model = made(tiny());
  const at::Tensor ids = some_ids(4, 6);
  at::Tensor labels = ids.roll(-1, 1);
  labels.slice(1, 5).fill_(-100);
  labels.select(0, 2).fill_(-100);

  const at::Tensor log_p = model->forward(ids).to(at::kDouble).log_softmax(-1);
  const at::Tensor kept = labels.ne(-100);
  const at::Tensor picked = log_p.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  const double expected = -picked.masked_select(kept).mean().item<double>();
  EXPECT_NEAR(model->loss(ids, labels).item<double>(), expected, 1e-5);

  const at::Tensor count = kept.sum();
  const at::Tensor first = model->loss(ids.slice(0, 0, 1), labels.slice(0, 0, 1), count);
  const at::Tensor second = model->loss(ids.slice(0, 1), labels.slice(0, 1), count);
  EXPECT_NEAR((first + second).item<double>(), expected, 1e-5);
}

// However few logits are held at a time.
TEST(Decoder, SummedLossIsTheLossTimesItsTokens) {
  DecoderConfig config = tiny();
  config.logit_softcap = 3.0;
  Decoder model = made(config);
  const at::Tensor ids = some_ids(2, 9);
  at::Tensor labels = ids.roll(-1, 1);
  labels.select(1, 8).fill_(-100);
  const double expected = model->loss(ids, labels).item<double>() * 16;
  for (const int64_t logits : {1, 48 * 5, 48 * 18, 1 << 20})
    EXPECT_NEAR(model->summed_loss(ids, labels, {}, logits), expected, 1e-4) << logits;
}

TEST(Decoder, ShapesCanBeCheckedWithoutMemory) {
  DecoderConfig large = tiny();
  large.hidden_size = int64_t{1} << 20;
  large.vocab_size = int64_t{1} << 26;
  const Decoder model(large, at::TensorOptions(at::kMeta));
  EXPECT_EQ(error_of([&] {
              (void)model->places_in({{"model.embed_tokens.weight", {48, 32}}});
            }),
            "model.embed_tokens.weight has shape (48, 32) in the weights and (67108864, 1048576) by the config");
  std::vector<WeightShape> shapes;
  for (const auto& [name, tensor] : made(tiny())->persistent_state()) shapes.push_back({name, tensor.sizes().vec()});
  const Decoder small(tiny(), at::TensorOptions(at::kMeta));
  EXPECT_NO_THROW(small->places_in(shapes));
  shapes.front().type = at::kLong;
  EXPECT_THAT(error_of([&] { (void)small->places_in(shapes); }), testing::HasSubstr("has type Long in the weights"));
}

TEST(Decoder, LossIsFloat32ForBfloat16Weights) {
  Decoder model = made(tiny(), at::kBFloat16);
  const at::Tensor loss = model->loss(some_ids(2, 6), some_ids(2, 6));
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  loss.backward();
  for (const auto& [name, tensor] : model->persistent_state()) EXPECT_EQ(tensor.grad().scalar_type(), at::kBFloat16);
  EXPECT_NEAR(loss.item<double>(), std::log(48.0), 0.1);
}

TEST(Decoder, PaddingRowIsZeroAndGetsNoGradient) {
  DecoderConfig config = tiny();
  config.pad_token_id = 0;
  Decoder model = made(config);
  const at::Tensor ids = some_ids(2, 6);
  ASSERT_TRUE(ids.eq(0).any().item<bool>());
  model->loss(ids, ids).backward();
  const at::Tensor embedding = model->persistent_state()[0].second;
  EXPECT_EQ(embedding[0].abs().sum().item<double>(), 0.0);
  EXPECT_EQ(embedding.grad()[0].abs().sum().item<double>(), 0.0);
  EXPECT_GT(embedding.grad()[11].abs().sum().item<double>(), 0.0);
}

TEST(Decoder, LoadStateIsStrictAndAllOrNothing) {
  Decoder model = made(tiny());
  const at::Tensor before = model->persistent_state()[0].second.detach().clone();
  NamedTensors state;
  for (const auto& [name, tensor] : model->persistent_state()) state.emplace_back(name, at::ones_like(tensor));

  NamedTensors missing(state.begin(), state.end() - 1);
  EXPECT_THAT(error_of([&] { model->load_state(missing); }), testing::HasSubstr("the weights lack lm_head.weight"));
  NamedTensors unknown = state;
  unknown.emplace_back("model.extra", at::ones({1}));
  EXPECT_THAT(error_of([&] { model->load_state(unknown); }), testing::HasSubstr("hold model.extra"));
  NamedTensors misshapen = state;
  misshapen.back().second = at::ones({32, 48});
  EXPECT_THAT(error_of([&] { model->load_state(misshapen); }),
              testing::HasSubstr("lm_head.weight has shape (32, 48) in the weights and (48, 32) by the config"));
  NamedTensors integers = state;
  integers.back().second = at::ones({48, 32}, at::kLong);
  EXPECT_THAT(error_of([&] { model->load_state(integers); }), testing::HasSubstr("lm_head.weight has type Long"));
  EXPECT_TRUE(at::equal(model->persistent_state()[0].second, before));

  state.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({4}));
  model->load_state(state);
  EXPECT_EQ(model->persistent_state()[0].second.min().item<double>(), 1.0);
}

TEST(Decoder, RefusesIdsThatAreNotABatch) {
  Decoder model = made(tiny());
  EXPECT_THAT(error_of([&] { model->forward(at::zeros({4}, at::kLong)); }), testing::HasSubstr("1 dimensions"));
  EXPECT_THAT(error_of([&] { model->forward(at::zeros({1, 4})); }), testing::HasSubstr("type Float"));
}

// Sees every operation of a forward, and so the scope it runs in.
TEST(Decoder, ForwardsOpenScopesOfTheirParametersPaths) {
  static std::set<std::string> seen;
  seen.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        seen.insert(ModuleScope::current());
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  made(tiny())->forward(some_ids(1, 4));
  at::removeCallback(handle);
  for (const auto& [name, tensor] : made(tiny())->persistent_state())
    EXPECT_THAT(seen, testing::Contains(name.substr(0, name.rfind('.'))));
  EXPECT_THAT(seen, testing::Contains("model.layers.1.mlp"));
  EXPECT_THAT(seen, testing::Contains("model.rotary_emb"));
  EXPECT_EQ(ModuleScope::current(), "");
}

}  // namespace
}  // namespace stepc::models
