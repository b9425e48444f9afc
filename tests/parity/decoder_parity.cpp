// Runs the C++ decoder on a Hugging Face directory for test_families.py, test_baichuan.py and test_lora.py:
//
//   decoder_parity MODEL_DIR INPUTS.safetensors OUTPUTS.safetensors [--train SEED] [--adapter DIR]
//
// INPUTS holds ids and labels, both int64 (batch, seq). OUTPUTS gets logits, loss and "grad.<parameter>" for every
// parameter that is trained. Beside it, OUTPUTS.model/ is the model as written back: config.json and model.safetensors.
// With --train, dropout is on and drawn from SEED; logits are then left out. With --adapter, PEFT's adapter of DIR is
// loaded, alone trained, and written back to OUTPUTS.adapter/.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "checkpoint/model_shards.h"
#include "checkpoint/tensors.h"
#include "models/decoder.h"
#include "models/lora.h"

namespace {
using namespace stepc;
namespace fs = std::filesystem;

at::Tensor named(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return tensor;
  user_error("the inputs lack {}", name);
}

std::string text_of(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void write_model(const fs::path& directory, const models::Decoder& model, uint64_t max_shard_bytes) {
  fs::create_directory(directory);
  NamedTensors weights;
  for (const auto& [name, tensor] : model->persistent_state()) weights.emplace_back(name, tensor.detach());
  save_model_tensors(directory, weights, models::scalar_type(model->config().dtype), max_shard_bytes);
  std::ofstream(directory / "config.json") << model->config().to_json();
}

void write_adapter(const fs::path& directory, const models::Decoder& model, const models::LoraConfig& adapter) {
  fs::create_directory(directory);
  NamedTensors weights;
  for (const auto& [name, tensor] : models::adapter_state(model)) weights.emplace_back(name, tensor.detach());
  save_tensors(directory / "adapter_model.safetensors", weights, {{"format", "pt"}});
  std::ofstream(directory / "adapter_config.json") << adapter.to_json(model->config());
}

void run(const std::vector<std::string>& arguments, std::map<std::string, std::string> options) {
  const fs::path model_dir = arguments[0];
  const fs::path outputs_path = arguments[2];
  const auto config = models::DecoderConfig::from_json(text_of(model_dir / "config.json"));
  models::Decoder model(config, models::scalar_type(config.dtype));
  model->load_state(load_model_tensors(model_dir));
  std::optional<models::LoraConfig> adapter;
  if (options.contains("--adapter")) {
    const fs::path directory = options["--adapter"];
    adapter = models::LoraConfig::from_json(text_of(directory / "adapter_config.json"));
    models::add_adapters(model, *adapter, /*seed=*/1);
    models::load_adapters(model, load_tensors(directory / "adapter_model.safetensors"));
  }
  const bool train = options.contains("--train");
  model->train(train);
  if (train) at::manual_seed(std::stoull(options["--train"]));

  const NamedTensors inputs = load_tensors(arguments[1]);
  const at::Tensor ids = named(inputs, "ids");
  const at::Tensor loss = model->loss(ids, named(inputs, "labels"));
  loss.backward();

  NamedTensors outputs = {{"loss", loss.detach()}};
  if (!train) outputs.emplace_back("logits", model->forward(ids).detach());
  for (const auto& item : model->named_parameters())
    if (item.value().grad().defined()) outputs.emplace_back("grad." + item.key(), item.value().grad());
  save_tensors(outputs_path, outputs);
  const auto max_shard = options.find("--max-shard");
  write_model(outputs_path.string() + ".model", model,
              max_shard == options.end() ? kMaxShardBytes : std::stoull(max_shard->second));
  if (adapter) write_adapter(outputs_path.string() + ".adapter", model, *adapter);
}
}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments;
  std::map<std::string, std::string> options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--") && i + 1 < argc)
      options[argument] = argv[++i];
    else
      arguments.push_back(argument);
  }
  if (arguments.size() != 3) {
    std::cerr << "usage: decoder_parity MODEL_DIR INPUTS OUTPUTS [--train SEED] [--adapter DIR]\n";
    return 2;
  }
  try {
    run(arguments, options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
