// Runs the C++ Llama on a Hugging Face directory for test_llama.py:
//
//   llama_parity MODEL_DIR INPUTS.safetensors OUTPUTS.safetensors
//
// INPUTS holds ids and labels, both int64 (batch, seq). OUTPUTS gets logits, loss, "grad.<parameter>" for every
// parameter and "weight.<parameter>" as loaded; beside it, OUTPUTS.config.json is the config as written back.
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/check.h"
#include "checkpoint/tensors.h"
#include "models/llama.h"

namespace {
using namespace stepc;

at::Tensor named(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return tensor;
  user_error("the inputs lack {}", name);
}

void run(const std::string& model_dir, const std::string& inputs_path, const std::string& outputs_path) {
  std::stringstream text;
  text << std::ifstream(model_dir + "/config.json").rdbuf();
  const auto config = models::LlamaConfig::from_json(text.str());
  models::LlamaForCausalLM model(config, models::scalar_type(config.dtype));
  model->load_state(load_tensors(model_dir + "/model.safetensors"));

  const NamedTensors inputs = load_tensors(inputs_path);
  const at::Tensor ids = named(inputs, "ids");
  const at::Tensor loss = model->loss(ids, named(inputs, "labels"));
  loss.backward();

  NamedTensors outputs = {{"logits", model->forward(ids).detach()}, {"loss", loss.detach()}};
  for (const auto& [name, parameter] : model->persistent_state()) {
    outputs.emplace_back("grad." + name, parameter.grad());
    outputs.emplace_back("weight." + name, parameter.detach());
  }
  save_tensors(outputs_path, outputs);
  std::ofstream(outputs_path + ".config.json") << config.to_json();
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: llama_parity MODEL_DIR INPUTS OUTPUTS\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
