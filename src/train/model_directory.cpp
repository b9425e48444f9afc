#include "train/model_directory.h"

#include <array>

#include "base/check.h"
#include "base/files.h"

namespace stepc::train {
namespace {
namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr uint64_t kMaxCompanionBytes = 256 << 20;  // tokenizer.json of large vocabularies is tens of MB
constexpr std::array kCompanions = {"tokenizer.json",
                                    "tokenizer.model",
                                    "added_tokens.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "generation_config.json",
                                    "chat_template.jinja",
                                    "vocab.json",
                                    "merges.txt"};

// Errors that name only a field get the directory in front.
template <class Fn>
auto in_directory(const fs::path& path, Fn&& read) {
  try {
    return read();
  } catch (const UserError& error) {
    const std::string text = error.what();
    if (text.find((path / "").string()) != std::string::npos) throw;
    user_error("{}: {}", path.string(), text);
  }
}

std::map<std::string, std::string> read_companions(const fs::path& path) {
  std::map<std::string, std::string> files;
  for (const char* name : kCompanions) {
    if (fs::is_regular_file(path / name)) files[name] = read_text(path / name, kMaxCompanionBytes);
  }
  return files;
}

}  // namespace

fs::path tokenizer_file(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (fs::exists(path / name)) return path / name;
  user_error("{}: neither tokenizer.json nor tokenizer.model is there", path.string());
}

ModelDirectory open_model_directory(const fs::path& path) {
  USER_CHECK(fs::is_directory(path), "{}: not a directory; a model directory has config.json, tokenizer.json and {}",
             path.string(), "model.safetensors (`stepc init` makes one)");
  models::DecoderConfig config = in_directory(
      path, [&] { return models::DecoderConfig::from_json(read_text(path / "config.json", kMaxConfigBytes)); });
  Tokenizer tokenizer = in_directory(path, [&] { return Tokenizer::load(tokenizer_file(path)); });
  USER_CHECK(tokenizer.vocab_size() <= config.vocab_size, "{}: {} has {} tokens, but config.json has vocab_size {}",
             path.string(), tokenizer_file(path).filename().string(), tokenizer.vocab_size(), config.vocab_size);
  return {path, std::move(config), std::move(tokenizer), read_companions(path)};
}

NamedTensors load_weights(const ModelDirectory& directory, models::Decoder& model) {
  return in_directory(directory.path, [&] {
    NamedTensors weights = load_model_tensors(directory.path);
    model->load_state(weights);
    return weights;
  });
}

models::Decoder load_model(const ModelDirectory& directory, at::ScalarType dtype) {
  models::Decoder model(directory.config, dtype);
  load_weights(directory, model);
  return model;
}

void write_model_files(const fs::path& destination, const models::DecoderConfig& config,
                       const std::map<std::string, std::string>& companions, const NamedTensors& weights) {
  const at::ScalarType dtype = models::scalar_type(config.dtype);
  NamedTensors converted;
  for (const auto& [name, tensor] : weights) converted.emplace_back(name, tensor.detach().to(dtype));
  save_tensors(destination / "model.safetensors", converted, {{"format", "pt"}});
  for (const auto& [name, text] : companions) write_file_synced(destination / name, text);
  write_file_synced(destination / "config.json", config.to_json());
}

}  // namespace stepc::train
