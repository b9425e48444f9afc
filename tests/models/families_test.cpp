// What must hold in every family: causality, packing, padding, how a batch is cut, counting, and that a step reads
// nothing back to the host. The arithmetic is compared with transformers in tests/parity.
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/CPUGeneratorImpl.h>

#include "models/decoder.h"
#include "models/family.h"
#include "tests/host_reads.h"

namespace stepc::models {
namespace {
using nlohmann::json;

constexpr int64_t kVocab = 48;

const std::map<std::string, json> kRows = {
    {"llama", {{"model_type", "llama"}, {"attention_bias", true}, {"mlp_bias", true}, {"num_key_value_heads", 2}}},
    {"llama31",
     {{"model_type", "llama"},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"original_max_position_embeddings", 8}}}}},
    {"mistral", {{"model_type", "mistral"}, {"num_key_value_heads", 2}, {"sliding_window", 3}}},
    {"qwen2", {{"model_type", "qwen2"}, {"use_sliding_window", true}, {"sliding_window", 3}, {"max_window_layers", 1}}},
    {"qwen3", {{"model_type", "qwen3"}, {"num_key_value_heads", 2}, {"head_dim", 12}}},
    {"olmo", {{"model_type", "olmo"}, {"clip_qkv", 0.5}}},
    {"olmo2", {{"model_type", "olmo2"}, {"num_key_value_heads", 2}}},
    {"glm", {{"model_type", "glm"}, {"head_dim", 8}}},
    {"glm4", {{"model_type", "glm4"}, {"head_dim", 8}}},
    {"gemma2", {{"model_type", "gemma2"}, {"num_key_value_heads", 2}, {"head_dim", 12}, {"sliding_window", 3}}},
    {"baichuan7b", {{"model_type", "baichuan"}, {"max_position_embeddings", 64}}},
    {"baichuan13b", {{"model_type", "baichuan"}, {"model_max_length", 64}}},
    {"gpt2",
     {{"model_type", "gpt2"},
      {"n_embd", 32},
      {"n_layer", 2},
      {"n_head", 4},
      {"n_positions", 32},
      {"embd_pdrop", 0},
      {"attn_pdrop", 0},
      {"resid_pdrop", 0}}},
    {"bloom", {{"model_type", "bloom"}, {"n_layer", 2}, {"n_head", 4}}},
};

class EveryFamily : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static DecoderConfig config() {
    json object = {{"vocab_size", kVocab},    {"hidden_size", 32},        {"intermediate_size", 40},
                   {"num_hidden_layers", 2},  {"num_attention_heads", 4}, {"initializer_range", 0.2},
                   {"bos_token_id", nullptr}, {"eos_token_id", nullptr},  {"pad_token_id", nullptr}};
    object.update(kRows.at(GetParam()));
    return DecoderConfig::from_json(object.dump());
  }
  [[nodiscard]] static Decoder model() {
    Decoder model(config());
    model->initialize(7);
    return model;
  }
};

at::Tensor family_ids(int64_t batch, int64_t seq, uint64_t seed = 1) {
  return at::randint(0, kVocab, {batch, seq}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong);
}

std::map<std::string, at::Tensor> gradients(Decoder& model) {
  std::map<std::string, at::Tensor> grads;
  for (const auto& item : model->named_parameters()) {
    grads[item.key()] = item.value().grad().clone();
    item.value().mutable_grad().reset();
  }
  return grads;
}

void expect_close(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& expected) {
  for (const auto& [name, grad] : expected) {
    const double error = ((actual.at(name) - grad).abs().max() / grad.abs().max().clamp_min(1e-6)).item<double>();
    EXPECT_LT(error, 1e-5) << name;
  }
}

TEST(Families, EachHasARowHere) {
  std::set<std::string> tested;
  for (const auto& [name, row] : kRows) tested.insert(row["model_type"]);
  for (const Family& family : families()) EXPECT_THAT(tested, testing::Contains(std::string(family.model_type)));
}

TEST_P(EveryFamily, CountsItsParameters) {
  int64_t count = 0;
  for (const auto& [name, tensor] : model()->persistent_state()) count += tensor.numel();
  EXPECT_EQ(count, config().parameter_count());
}

TEST_P(EveryFamily, WritesAConfigThatReadsBackEqual) {
  DecoderConfig config = EveryFamily::config();
  EXPECT_EQ(DecoderConfig::from_json(config.to_json()), config);
  config.source.clear();
  EXPECT_EQ(DecoderConfig::from_json(config.to_json()), config);
}

TEST_P(EveryFamily, FutureTokensDoNotChangePastLogits) {
  const at::NoGradGuard no_grad;
  Decoder model = this->model();
  const at::Tensor ids = family_ids(2, 9);
  const at::Tensor changed = at::cat({ids.slice(1, 0, 5), family_ids(2, 4, 2)}, 1);
  const at::Tensor before = model->forward(ids);
  const at::Tensor after = model->forward(changed);
  EXPECT_TRUE(at::allclose(before.slice(1, 0, 5), after.slice(1, 0, 5), 1e-5, 1e-6));
  EXPECT_FALSE(at::allclose(before.slice(1, 5), after.slice(1, 5), 1e-3, 1e-4));
  EXPECT_TRUE(at::allclose(model->forward(ids.slice(1, 0, 1)), before.slice(1, 0, 1), 1e-4, 1e-5));
}

TEST_P(EveryFamily, KeptKeysGiveTheLogitsOfTheWholeText) {
  const torch::NoGradGuard no_grad;
  Decoder model = this->model();
  const at::Tensor ids = family_ids(2, 13);
  const at::Tensor expected = model->forward(ids);
  KeyValueCache cache;
  for (const int64_t part : {5, 1, 4, 1, 1, 1}) {
    const int64_t begin = cache.length();
    const at::Tensor logits = model->next_logits(ids.slice(1, begin, begin + part), cache);
    EXPECT_EQ(cache.length(), begin + part);
    EXPECT_TRUE(at::allclose(logits, expected.select(1, begin + part - 1), 1e-4, 1e-5)) << "after " << begin;
  }
}

TEST_P(EveryFamily, PackedDocumentsEqualSeparateOnes) {
  Decoder model = this->model();
  const std::vector<int64_t> lengths = {5, 1, 9, 3};
  const std::vector<int64_t> cuts = {0, 5, 6, 15, 18};
  const at::Tensor ids = family_ids(2, 18);
  const at::Tensor labels = family_ids(2, 18, 2);
  const at::Tensor row = at::repeat_interleave(at::tensor({7, 3, 4, 3}, at::kLong), at::tensor(lengths, at::kLong));
  const at::Tensor documents = at::stack({row, at::ones_like(row)});
  const at::Tensor count = count_tokens(labels);

  const at::Tensor packed = model->loss(ids, labels, count, documents);
  packed.backward();
  const auto packed_grads = gradients(model);

  at::Tensor separate = model->loss(ids.slice(0, 1), labels.slice(0, 1), count);  // the second row is one document
  separate.backward();
  for (size_t i = 0; i < lengths.size(); ++i) {
    const at::Tensor loss = model->loss(ids.slice(0, 0, 1).slice(1, cuts[i], cuts[i + 1]),
                                        labels.slice(0, 0, 1).slice(1, cuts[i], cuts[i + 1]), count);
    loss.backward();
    separate = separate + loss.detach();
  }
  EXPECT_NEAR(packed.item<double>(), separate.item<double>(), 1e-5 * separate.item<double>());
  expect_close(packed_grads, gradients(model));
}

TEST_P(EveryFamily, EightRowsAtOnceEqualOneRowEightTimes) {
  Decoder model = this->model();
  const at::Tensor ids = family_ids(8, 7);
  at::Tensor labels = family_ids(8, 7, 2);
  for (int64_t row = 0; row < 8; ++row) labels[row].slice(0, 7 - row).fill_(-100);  // padding of all lengths
  labels[2][1].fill_(-100);                                                         // and a mask inside
  const at::Tensor count = count_tokens(labels);
  EXPECT_EQ(count.item<double>(), 7 + 6 + 4 + 4 + 3 + 2 + 1);

  const at::Tensor whole = model->loss(ids, labels, count);
  whole.backward();
  const auto whole_grads = gradients(model);
  double parts = 0;
  for (int64_t row = 0; row < 8; ++row) {
    const at::Tensor loss = model->loss(ids.slice(0, row, row + 1), labels.slice(0, row, row + 1), count);
    loss.backward();
    parts += loss.item<double>();
  }
  EXPECT_NEAR(whole.item<double>(), parts, 1e-6 * parts);
  expect_close(gradients(model), whole_grads);
  EXPECT_NEAR(model->loss(ids, labels).item<double>(), whole.item<double>(), 1e-6 * parts);
}

TEST_P(EveryFamily, PaddingToTheRightChangesNothing) {
  const at::NoGradGuard no_grad;
  Decoder model = this->model();
  const at::Tensor ids = family_ids(2, 6);
  const at::Tensor labels = family_ids(2, 6, 2);
  const at::Tensor padded_ids = at::cat({ids, at::zeros({2, 5}, at::kLong)}, 1);
  const at::Tensor padded_labels = at::cat({labels, at::full({2, 5}, -100, at::kLong)}, 1);
  EXPECT_NEAR(model->loss(padded_ids, padded_labels).item<double>(), model->loss(ids, labels).item<double>(), 1e-5);
}

TEST_P(EveryFamily, AStepReadsNothingBackToTheHost) {
  Decoder model = this->model();
  const at::Tensor ids = family_ids(2, 9);
  const test::HostReads reads;
  for (const at::Tensor& documents : {at::Tensor(), ids})
    model->loss(ids, ids, count_tokens(ids), documents).backward();
  EXPECT_EQ(test::HostReads::found(), std::set<std::string>{});
  ids.sum().item();
  EXPECT_TRUE(test::HostReads::found().contains("aten::_local_scalar_dense"));
}

TEST_P(EveryFamily, Bfloat16StaysNearFloat32) {
  const at::NoGradGuard no_grad;
  Decoder model = this->model();
  Decoder rounded(config(), at::kBFloat16);
  rounded->initialize(7);
  const at::Tensor ids = family_ids(2, 9);
  const at::Tensor logits = rounded->forward(ids);
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  const at::Tensor expected = model->forward(ids);
  EXPECT_LT(((logits - expected).abs().max() / expected.abs().max()).item<double>(), 0.05);
}

std::vector<std::string> row_names() {
  std::vector<std::string> names;
  for (const auto& [name, row] : kRows) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, EveryFamily, testing::ValuesIn(row_names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stepc::models
