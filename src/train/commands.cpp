#include "train/commands.h"

#include <cstdio>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/text.h"
#include "train/evaluate.h"
#include "train/inspect.h"
#include "train/machine.h"
#include "train/model_directory.h"
#include "train/run_data.h"
#include "train/trainer.h"

namespace stepc::train {
namespace fs = std::filesystem;

std::string preset_list() { return str("{}", fmt::join(models::DecoderConfig::preset_names(), ", ")); }

int run_init(const InitOptions& options) {
  const int64_t parameters = init_model(options);
  fmt::print("{}: {} with {} parameters, byte-level tokenizer\n", options.directory.string(), options.preset,
             human_count(static_cast<double>(parameters)));
  return 0;
}

int run_eval(RunConfig config, const std::string& model) {
  config = use_threads(std::move(config));
  const fs::path finished = fs::path(config.output.dir) / "model";
  const fs::path chosen = !model.empty()         ? fs::path(model)
                          : fs::exists(finished) ? finished
                                                 : fs::path(config.model.path);
  const ModelDirectory directory = open_model_directory(chosen);
  const auto network = load_model(directory, models::scalar_type(config.model.compute));
  const Corpus corpus = read_corpus(config, directory);
  const HeldOutLoss loss =
      evaluate(network, directory.tokenizer, corpus, config.data.eval_windows, config.train.batch_size);
  fmt::print("{}: held-out loss {:.4f} nats per token, {:.4f} nats per byte ({} tokens, {} bytes)\n", chosen.string(),
             loss.nats_per_token, loss.nats_per_byte, loss.tokens, loss.bytes);
  return 0;
}

int run_generate(const GenerateCommand& command) {
  const ModelDirectory directory = open_model_directory(command.directory);
  const auto model = load_model(directory, at::kFloat);
  const std::string text = sample_text(model, directory.tokenizer, command.prompt, command.sample);
  fmt::print("{}{}\n", command.prompt, printable(text));
  return 0;
}

int run_inspect(const fs::path& directory) {
  const Inspection inspection = inspect(directory);
  fmt::print("{}", inspection.table);
  if (!inspection.is_good) throw RunFailure(str("{}: damaged", directory.string()));
  return 0;
}

}  // namespace stepc::train
