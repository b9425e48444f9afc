#include "models/decoder_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace stepc::models {
namespace {
using nlohmann::json;

json tiny() {
  return {{"model_type", "llama"},   {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 100},       {"hidden_size", 64},
          {"intermediate_size", 96}, {"num_hidden_layers", 2},
          {"num_attention_heads", 4}};
}

std::string error_of(const json& object) {
  try {
    DecoderConfig::from_json(object.dump());
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DecoderConfig, FillsInTheDefaultsOfTransformers) {
  const DecoderConfig config = DecoderConfig::from_json(tiny().dump());
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.rotary.theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.dtype, "float32");
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, std::nullopt);
  EXPECT_THAT(config.eos_token_ids, testing::ElementsAre(2));
}

TEST(DecoderConfig, RoundTripsAndKeepsUnknownFields) {
  json object = tiny();
  object["num_key_value_heads"] = 2;
  object["head_dim"] = 32;
  object["rope_theta"] = 500000;
  object["tie_word_embeddings"] = true;
  object["attention_bias"] = true;
  object["torch_dtype"] = "bfloat16";
  object["bos_token_id"] = nullptr;
  object["pad_token_id"] = 0;
  object["eos_token_id"] = {3, 4};
  object["use_cache"] = true;
  object["_name_or_path"] = "somewhere/tiny";
  const DecoderConfig config = DecoderConfig::from_json(object.dump());
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.bos_token_id, std::nullopt);
  EXPECT_EQ(config.pad_token_id, 0);
  EXPECT_THAT(config.eos_token_ids, testing::ElementsAre(3, 4));

  const std::string text = config.to_json();
  EXPECT_EQ(DecoderConfig::from_json(text), config);
  EXPECT_EQ(json::parse(text)["_name_or_path"], "somewhere/tiny");
  EXPECT_EQ(json::parse(text)["use_cache"], true);
  EXPECT_EQ(json::parse(text)["rope_theta"], 500000.0);
}

TEST(DecoderConfig, ReadsTheRopeParametersOfTransformers5) {
  json object = tiny();
  object["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000.0}};
  EXPECT_EQ(DecoderConfig::from_json(object.dump()).rotary.theta, 20000.0);
  object["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(error_of(object), testing::HasSubstr("partial_rotary_factor is 0.5"));
}

struct Refused {
  std::string field;
  json value;
  std::string message;
};

TEST(DecoderConfig, RefusesByFieldAndValue) {
  const std::vector<Refused> cases = {
      {"model_type", "mamba", "model_type is \"mamba\"; stepc supports llama, mistral, "},
      {"model_type", 3, "model_type is 3"},
      {"model_type", nullptr, "model_type is null"},
      {"architectures", {"LlamaForSequenceClassification"}, "architectures is \"LlamaForSequenceClassification\""},
      {"architectures", {"LlamaForCausalLM", "Other"}, "architectures is a list"},
      {"hidden_act", "relu", "hidden_act is \"relu\"; stepc supports only silu, gelu, gelu_new"},
      {"pretraining_tp", 2, "pretraining_tp is 2"},
      {"attention_dropout", 1.5, "attention_dropout is 1.5"},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 8.0}}, "rope_scaling has rope_type \"yarn\""},
      {"rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}, "rope_scaling has rope_type \"longrope\""},
      {"rope_scaling", {{"type", "linear"}}, "rope_scaling lacks factor"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}, "factor is 0.5"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 1.0}},
       "rope_scaling has low_freq_factor 4 and high_freq_factor 1"},
      {"rope_scaling", "linear", "rope_scaling is \"linear\"; expected an object or null"},
      {"rope_scaling", {{"rope_type", 7}}, "rope_scaling has rope_type 7"},
      {"quantization_config", {{"bits", 4}}, "quantization_config is set"},
      {"vocab_size", nullptr, "vocab_size is missing"},
      {"vocab_size", 0, "vocab_size is 0; expected an integer from 1"},
      {"vocab_size", -5, "vocab_size is -5"},
      {"vocab_size", 1.5, "vocab_size is 1.5"},
      {"vocab_size", "100", "vocab_size is \"100\""},
      {"vocab_size", true, "vocab_size is true"},
      {"hidden_size", UINT64_MAX, "hidden_size is 18446744073709551615"},
      {"hidden_size", INT64_MAX, "hidden_size is 9223372036854775807"},
      {"intermediate_size", INT64_MIN, "intermediate_size is -9223372036854775808"},
      {"num_hidden_layers", 1000000, "num_hidden_layers is 1000000; expected an integer from 1 to 4096"},
      {"num_attention_heads", 5, "hidden_size is 64 and num_attention_heads 5"},
      {"num_attention_heads", 0, "num_attention_heads is 0"},
      {"num_key_value_heads", 3, "num_attention_heads is 4 and num_key_value_heads 3"},
      {"num_key_value_heads", 8, "num_attention_heads is 4 and num_key_value_heads 8"},
      {"head_dim", 15, "head_dim is 15; the rotary embedding needs an even number"},
      {"max_position_embeddings", -1, "max_position_embeddings is -1"},
      {"rms_norm_eps", -1e-6, "rms_norm_eps is -1e-06"},
      {"rms_norm_eps", "small", "rms_norm_eps is \"small\""},
      {"rope_theta", 0, "rope_theta is 0"},
      {"tie_word_embeddings", "yes", "tie_word_embeddings is \"yes\"; expected true or false"},
      {"attention_bias", 1, "attention_bias is 1"},
      {"dtype", "int8", "dtype is \"int8\"; stepc supports only float32, bfloat16, float16, float64"},
      {"torch_dtype", 16, "torch_dtype is 16"},
      {"bos_token_id", 100, "bos_token_id is 100; expected an integer from 0 to 99"},
      {"eos_token_id", {2, -1}, "eos_token_id is -1"},
      {"eos_token_id", {{"a", 1}}, "eos_token_id is an object"},
      {"pad_token_id", 1e300, "pad_token_id is 1e+300"},
  };
  for (const Refused& refused : cases) {
    json object = tiny();
    object[refused.field] = refused.value;
    EXPECT_THAT(error_of(object), testing::HasSubstr("config.json: " + refused.message)) << object.dump();
  }
}

struct RefusedInFamily {
  std::string model_type;
  Refused refused;
};

TEST(DecoderConfig, RefusesTheSwitchesOfAFamilyThatItDoesNotHave) {
  const std::vector<RefusedInFamily> cases = {
      {"mistral", {"sliding_window", 0, "sliding_window is 0"}},
      {"mistral", {"partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"}},
      {"qwen2", {"layer_types", {"full_attention"}, "layer_types is a list; expected a list of 2 entries"}},
      {"qwen3", {"layer_types", {"full_attention", "linear_attention"}, "layer_types has \"linear_attention\""}},
      {"olmo", {"clip_qkv", "much", "clip_qkv is \"much\""}},
      {"glm4", {"partial_rotary_factor", 0.0, "head_dim is 16, of which 0 are rotated"}},
      {"gemma2", {"final_logit_softcapping", -1.0, "final_logit_softcapping is -1"}},
      {"gemma2", {"hidden_activation", "relu", "hidden_activation is \"relu\""}},
      {"baichuan", {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}, "rope_scaling is an object"}},
      {"baichuan", {"num_attention_heads", 5, "hidden_size is 64 and the number of attention heads 5"}},
      {"gpt2", {"scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx is true"}},
      {"gpt2", {"add_cross_attention", true, "add_cross_attention is true"}},
      {"gpt2", {"resid_pdrop", 1.0, "resid_pdrop is 1"}},
      {"gpt2", {"n_positions", int64_t{1} << 30, "n_positions is 1073741824"}},
      {"bloom", {"slow_but_exact", true, "slow_but_exact is true"}},
  };
  for (const auto& [model_type, refused] : cases) {
    json object = tiny();
    object.erase("architectures");
    object["model_type"] = model_type;
    object["num_key_value_heads"] = 4;
    object["head_dim"] = 16;
    object["bos_token_id"] = object["eos_token_id"] = object["pad_token_id"] = nullptr;
    object["n_embd"] = 64;
    object["n_head"] = 4;
    object["n_layer"] = 2;
    EXPECT_EQ(error_of(object), "accepted") << model_type;
    object[refused.field] = refused.value;
    EXPECT_THAT(error_of(object), testing::HasSubstr("config.json: " + refused.message)) << object.dump();
  }
}

TEST(DecoderConfig, ADefaultTokenBeyondTheVocabularyIsRefused) {
  json object = tiny();
  object.erase("architectures");
  object["model_type"] = "glm";
  object["eos_token_id"] = nullptr;
  EXPECT_THAT(error_of(object), testing::HasSubstr("pad_token_id is absent, for which glm has 151329"));
  object["pad_token_id"] = nullptr;
  EXPECT_EQ(error_of(object), "accepted");
}

TEST(DecoderConfig, ChangesOfAReadConfigAreWrittenBackAndNothingElse) {
  json object = tiny();
  object["rope_scaling"] = nullptr;
  object["torch_dtype"] = "bfloat16";
  DecoderConfig config = DecoderConfig::from_json(object.dump());
  EXPECT_EQ(json::parse(config.to_json()), object);
  config.dtype = "float32";
  config.vocab_size = 128;
  object.erase("torch_dtype");
  object["dtype"] = "float32";
  object["vocab_size"] = 128;
  EXPECT_EQ(json::parse(config.to_json()), object);
}

TEST(DecoderConfig, RefusesWhatIsNotAnObject) {
  EXPECT_THROW(DecoderConfig::from_json(""), UserError);
  EXPECT_THROW(DecoderConfig::from_json("[1, 2]"), UserError);
  EXPECT_THROW(DecoderConfig::from_json(R"({"vocab_size": 1e999})"), UserError);
  EXPECT_THROW(DecoderConfig::from_json("{\"model_type\": \"\xff\"}"), UserError);
  const std::string deep = R"({"a": )" + std::string(1'000'000, '[');
  EXPECT_THROW(DecoderConfig::from_json(deep), UserError);
}

TEST(DecoderConfig, LargestAcceptedSizesDoNotOverflow) {
  json object = tiny();
  object["vocab_size"] = int64_t{1} << 26;
  object["hidden_size"] = object["intermediate_size"] = int64_t{1} << 20;
  object["num_hidden_layers"] = object["num_attention_heads"] = object["head_dim"] = 4096;
  const DecoderConfig config = DecoderConfig::from_json(object.dump());
  EXPECT_GT(config.parameter_count(), int64_t{1} << 57);
  EXPECT_GT(config.train_flops_per_token(1024), 6.0 * static_cast<double>(int64_t{1} << 57));
}

TEST(DecoderConfig, PresetsHaveTheirNamedSizes) {
  const auto millions = [](const char* name) {
    return static_cast<double>(DecoderConfig::preset(name).parameter_count()) / 1e6;
  };
  EXPECT_NEAR(millions("llama-10m"), 10.4, 0.1);
  EXPECT_NEAR(millions("bench-134m"), 134.1, 0.1);
  EXPECT_NEAR(millions("bench-10m"), 10.2, 0.1);
  EXPECT_NEAR(millions("bench-1.8m"), 1.8, 0.05);
  for (const std::string& name : DecoderConfig::preset_names()) {
    const DecoderConfig preset = DecoderConfig::preset(name);
    EXPECT_EQ(DecoderConfig::from_json(preset.to_json()), preset) << name;
  }
  // The 4 x 512 step of the 134 M model is 1.40 TFLOP.
  EXPECT_NEAR(DecoderConfig::preset("bench-134m").train_flops_per_token(512) * 2048, 1.40e12, 0.01e12);
}

TEST(DecoderConfig, UnknownPresetNamesTheNearest) {
  try {
    DecoderConfig::preset("lama-10m");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no preset \"lama-10m\" (\"llama-10m\"?)"));
  }
}

}  // namespace
}  // namespace stepc::models
