// The decoder that the tests of whole steps train: two layers, grouped queries, 128 words.
#pragma once

#include "models/decoder_config.h"

namespace stepc::test {

inline models::DecoderConfig tiny_decoder() {
  models::DecoderConfig config;
  config.vocab_size = 128;
  config.hidden_size = 64;
  config.intermediate_size = 160;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  return config;
}

}  // namespace stepc::test
