#include "train/model/init_model.h"

#include <map>
#include <string_view>

#include "base/check.h"
#include "base/files.h"
#include "data/tokenizer_json.h"
#include "models/decoder.h"
#include "train/model/model_directory.h"

namespace stepc::train {
namespace {
namespace fs = std::filesystem;

constexpr int64_t kEndOfText = 256;  // the first id after the 256 bytes

models::DecoderConfig byte_level(models::DecoderConfig config) {
  USER_CHECK(config.vocab_size > kEndOfText, "the preset's vocabulary of {} is too small for bytes", config.vocab_size);
  config.bos_token_id = kEndOfText;
  config.eos_token_ids = {kEndOfText};
  return config;
}

}  // namespace

int64_t init_model(const InitOptions& options) {
  const fs::path& directory = options.directory;
  const models::DecoderConfig config = byte_level(models::DecoderConfig::preset(options.preset));
  USER_CHECK(!fs::exists(directory) || fs::is_directory(directory), "{}: exists and is not a directory",
             directory.string());
  const bool occupied = fs::exists(directory) && !fs::is_empty(directory);
  USER_CHECK(!occupied || options.force,
             "{}: not empty; choose another directory, or --force to replace the model files in it",
             directory.string());
  USER_CHECK(!fs::exists(directory / "model.safetensors.index.json"),
             "{}: holds a model of several files (model.safetensors.index.json), which --force does not replace",
             directory.string());

  models::Decoder model(config, models::scalar_type(config.dtype));
  model->initialize(options.seed);
  const std::map<std::string, std::string> tokenizer = {
      {"tokenizer.json", make_byte_tokenizer_json()},
      {"tokenizer_config.json", make_byte_tokenizer_config_json()},
      {"generation_config.json",
       str("{{\n  \"bos_token_id\": {0},\n  \"eos_token_id\": {0},\n  \"do_sample\": true\n}}\n", kEndOfText)},
  };
  if (occupied) {
    write_model_files(directory, config, tokenizer, model->persistent_state());
  } else {
    DirectoryTransaction transaction(directory, DirectoryTransaction::Existing::kReplace);
    write_model_files(transaction.path(), config, tokenizer, model->persistent_state());
    transaction.commit();
  }
  return config.parameter_count();
}

}  // namespace stepc::train
