// The tokenizer.json and tokenizer_config.json of a plain byte tokenizer.
#include <nlohmann/json.hpp>

#include "data/tokenize/byte_alphabet.h"
#include "data/tokenizer_json.h"

namespace stepc {

std::string make_byte_tokenizer_json(const std::vector<std::string>& special_tokens) {
  using OrderedJson = nlohmann::ordered_json;
  constexpr int kBytes = 256;
  OrderedJson added = OrderedJson::array();
  for (size_t i = 0; i < special_tokens.size(); ++i)
    added.push_back({{"id", kBytes + i},
                     {"content", special_tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  OrderedJson vocab = OrderedJson::object();
  for (int byte = 0; byte < kBytes; ++byte) vocab[alphabet_text(std::string(1, static_cast<char>(byte)))] = byte;
  const OrderedJson level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const OrderedJson json = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", added},
                            {"normalizer", nullptr},
                            {"pre_tokenizer", level},
                            {"post_processor", nullptr},
                            {"decoder", level},
                            {"model",
                             {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", vocab},
                              {"merges", OrderedJson::array()}}}};
  return json.dump(2) + "\n";
}

std::string make_byte_tokenizer_config_json(const std::string& end_of_text) {
  const nlohmann::ordered_json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                       {"bos_token", end_of_text},
                                       {"eos_token", end_of_text},
                                       // Without it transformers makes token_type_ids too, which no decoder takes.
                                       {"model_input_names", {"input_ids", "attention_mask"}},
                                       {"clean_up_tokenization_spaces", false}};
  return json.dump(2) + "\n";
}

}  // namespace stepc
