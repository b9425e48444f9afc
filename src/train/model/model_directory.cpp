#include "train/model/model_directory.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "train/machine/machine.h"

namespace stepc::train {
namespace {
namespace fs = std::filesystem;

constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr const char* kAdapterWeights = "adapter_model.safetensors";
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

// Runs the function and puts the directory's name in front of errors that name only a field.
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

namespace {

bool is_adapter(const fs::path& path) { return fs::exists(path / kAdapterConfig) && !fs::exists(path / "config.json"); }

models::LoraConfig read_adapter_config(const fs::path& path) {
  models::LoraConfig adapter = in_directory(
      path, [&] { return models::LoraConfig::from_json(read_text(path / kAdapterConfig, kMaxConfigBytes)); });
  const fs::path base = adapter.base_model;
  USER_CHECK(fs::is_directory(base) && !fs::exists(base / kAdapterConfig),
             "{}: {}: base_model_name_or_path is {}; expected the directory of the model that the adapter is for",
             path.string(), kAdapterConfig, in_quotes(adapter.base_model));
  return adapter;
}

ModelDirectory open_adapter(const fs::path& path) {
  const models::LoraConfig adapter = read_adapter_config(path);
  ModelDirectory directory = open_model_directory(adapter.base_model);
  directory.path = path;
  directory.adapter = adapter;
  return directory;
}

}  // namespace

models::DecoderConfig read_model_config(const fs::path& path) {
  if (is_adapter(path)) return read_model_config(read_adapter_config(path).base_model);
  return in_directory(
      path, [&] { return models::DecoderConfig::from_json(read_text(path / "config.json", kMaxConfigBytes)); });
}

ModelDirectory open_model_directory(const fs::path& path) {
  if (is_adapter(path)) return open_adapter(path);
  USER_CHECK(fs::is_directory(path), "{}: not a directory; a model directory has config.json, tokenizer.json and {}",
             path.string(), "model.safetensors (`stepc init` makes one)");
  if (const fs::path newest = newest_directory(path); !newest.empty())
    USER_CHECK(fs::exists(path / "config.json"),
               "{}: the directory of a run, and no model: give one of its checkpoints, {}", path.string(),
               newest.string());
  models::DecoderConfig config = read_model_config(path);
  const fs::path tokenizer_path = tokenizer_file(path);
  Tokenizer tokenizer = in_directory(path, [&] { return Tokenizer::load(tokenizer_path); });
  USER_CHECK(tokenizer.vocab_size() <= config.vocab_size, "{}: {} has {} tokens, but config.json has vocab_size {}",
             path.string(), tokenizer_path.filename().string(), tokenizer.vocab_size(), config.vocab_size);
  return {path, std::move(config), std::move(tokenizer), read_companions(path), path};
}

namespace {
// The shapes of the files' tensors, in their order.
std::vector<models::WeightShape> shapes_in_files(const TensorFiles& files, uint64_t& bytes) {
  std::vector<models::WeightShape> shapes;
  for (const TensorFiles::Tensor& tensor : files.tensors()) {
    shapes.push_back({tensor.name, tensor.shape, to_scalar_type(tensor.dtype)});
    bytes += tensor.bytes();
  }
  return shapes;
}
}  // namespace

uint64_t check_weight_shapes(const ModelDirectory& directory) {
  return in_directory(directory.base, [&] {
    uint64_t bytes = 0;
    const auto shapes = shapes_in_files(TensorFiles(directory.base, kModelFiles), bytes);
    static_cast<void>(models::Decoder(directory.config, at::TensorOptions(at::kMeta))->places_in(shapes));
    return bytes;
  });
}

void visit_weights(const ModelDirectory& directory,
                   const std::function<void(const std::string& name, const TensorFiles& files,
                                            const TensorFiles::Tensor& tensor)>& visit) {
  in_directory(directory.base, [&] {
    uint64_t bytes = 0;
    const TensorFiles files(directory.base, kModelFiles);
    const auto shapes = shapes_in_files(files, bytes);
    const models::Decoder model(directory.config, at::TensorOptions(at::kMeta));
    const std::vector<size_t> places = model->places_in(shapes);
    const models::NamedTensors weights = model->persistent_state();
    std::map<std::string, std::string> own;
    for (size_t i = 0; i < weights.size(); ++i) own[shapes[places[i]].name] = weights[i].first;
    for (const TensorFiles::Tensor& tensor : files.tensors()) {
      const auto found = own.find(tensor.name);
      if (found != own.end()) visit(found->second, files, tensor);
    }
  });
}

void load_adapter_weights(const ModelDirectory& directory, const models::Decoder& model) {
  const uint64_t seed = directory.fresh_adapter_seed;
  const bool had_one = !models::adapter_state(model).empty();
  if (!had_one) models::add_adapters(model, *directory.adapter, seed);
  if (seed == 0) {
    models::load_adapters(model, load_tensors(TensorFiles(directory.path, kAdapterFiles)));
  } else if (had_one) {
    const models::Decoder drawn(directory.config);
    models::add_adapters(drawn, *directory.adapter, seed);
    models::load_adapters(model, models::adapter_state(drawn));
  }
}

void load_weights(const ModelDirectory& directory, models::Decoder& model) {
  in_directory(directory.base, [&] { model->load_state(load_model_tensors(directory.base)); });
  if (directory.adapter) in_directory(directory.path, [&] { load_adapter_weights(directory, model); });
}

models::Decoder load_model(const ModelDirectory& directory, at::ScalarType dtype, const at::Device& device) {
  const uint64_t in_files = check_weight_shapes(directory);
  const uint64_t in_memory = static_cast<uint64_t>(directory.config.parameter_count()) * at::elementSize(dtype);
  check_memory(str("loading {}", directory.path.string()), in_files + in_memory);
  models::Decoder model(directory.config, at::TensorOptions(device).dtype(dtype));
  load_weights(directory, model);
  return model;
}

void write_companions(const fs::path& destination, const ModelDirectory& directory, FileSystem& files) {
  for (const auto& [name, text] : directory.companions) write_file_synced(destination / name, text, files);
  if (directory.adapter)
    write_file_synced(destination / kAdapterConfig, directory.adapter->to_json(directory.config), files);
  else
    write_file_synced(destination / "config.json", directory.config.to_json(), files);
}

void write_model_files(const fs::path& destination, const models::DecoderConfig& config,
                       const std::map<std::string, std::string>& companions, const NamedTensors& weights,
                       uint64_t max_shard_bytes, FileSystem& files) {
  save_model_tensors(destination, weights, models::scalar_type(config.dtype), max_shard_bytes, files);
  for (const auto& [name, text] : companions) write_file_synced(destination / name, text, files);
  write_file_synced(destination / "config.json", config.to_json(), files);
}

void write_trained_files(const fs::path& destination, const ModelDirectory& directory, const MadeTensors& weights,
                         uint64_t max_shard_bytes, FileSystem& files) {
  if (directory.adapter)
    save_tensors(destination / kAdapterWeights, weights, {{"format", "pt"}}, files);
  else
    save_model_tensors(destination, weights, models::scalar_type(directory.config.dtype), max_shard_bytes, files);
  write_companions(destination, directory, files);
}

void export_model(const ModelDirectory& directory, const fs::path& destination, uint64_t max_shard_bytes,
                  FileSystem& files) {
  in_directory(directory.path, [&] {
    const TensorFiles weights(directory.path, directory.adapter ? kAdapterFiles : kModelFiles);
    MadeTensors made = made_of(weights);
    if (!directory.adapter) {  // in the model's order, which says where files are cut
      uint64_t bytes = 0;
      const models::Decoder model(directory.config, at::TensorOptions(at::kMeta));
      MadeTensors ordered;
      for (const size_t place : model->places_in(shapes_in_files(weights, bytes))) ordered.push_back(made[place]);
      made = std::move(ordered);
    }
    write_trained_files(destination, directory, made, max_shard_bytes, files);
  });
}

}  // namespace stepc::train
