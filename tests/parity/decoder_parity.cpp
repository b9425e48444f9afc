// Runs the C++ decoder on a Hugging Face directory for test_families.py and test_lora.py:
//
//   decoder_parity MODEL_DIR INPUTS.safetensors OUTPUTS.safetensors [--train SEED]
//
// INPUTS holds ids and labels, both int64 (batch, seq). OUTPUTS gets logits, loss and "grad.<parameter>" for every
// parameter that is trained. Beside it, OUTPUTS.model/ is the model as written back: config.json and model.safetensors.
// With --train, dropout is on and drawn from SEED; logits are then left out.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>

#include "base/check.h"
#include "checkpoint/tensors.h"
#include "models/decoder.h"

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

void run(const fs::path& model_dir, const fs::path& inputs_path, const fs::path& outputs_path,
         std::optional<uint64_t> seed) {
  const auto config = models::DecoderConfig::from_json(text_of(model_dir / "config.json"));
  models::Decoder model(config, models::scalar_type(config.dtype));
  model->load_state(load_model_tensors(model_dir));
  model->train(seed.has_value());
  if (seed) torch::manual_seed(*seed);

  const NamedTensors inputs = load_tensors(inputs_path);
  const at::Tensor ids = named(inputs, "ids");
  const at::Tensor loss = model->loss(ids, named(inputs, "labels"));
  loss.backward();

  NamedTensors outputs = {{"loss", loss.detach()}};
  if (!seed) outputs.emplace_back("logits", model->forward(ids).detach());
  for (const auto& item : model->named_parameters())
    if (item.value().grad().defined()) outputs.emplace_back("grad." + item.key(), item.value().grad());
  save_tensors(outputs_path, outputs);

  const fs::path back = outputs_path.string() + ".model";
  fs::create_directory(back);
  NamedTensors weights;
  for (const auto& [name, tensor] : model->persistent_state()) weights.emplace_back(name, tensor.detach());
  save_tensors(back / "model.safetensors", weights, {{"format", "pt"}});
  std::ofstream(back / "config.json") << config.to_json();
}
}  // namespace

int main(int argc, char** argv) {
  const bool train = argc == 6 && std::string(argv[4]) == "--train";
  if (argc != 4 && !train) {
    std::cerr << "usage: decoder_parity MODEL_DIR INPUTS OUTPUTS [--train SEED]\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3], train ? std::optional<uint64_t>(std::stoull(argv[5])) : std::nullopt);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
