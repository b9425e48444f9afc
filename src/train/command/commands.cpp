#include "train/command/commands.h"

#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "calibrate/calibrate.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensors.h"
#include "cost/target_file.h"
#include "train/command/calibrate_cluster.h"
#include "train/command/inspect.h"
#include "train/machine/device.h"
#include "train/machine/kernel_directory.h"
#include "train/machine/machine.h"
#include "train/model/chat_choice.h"
#include "train/model/model_directory.h"
#include "train/report/progress.h"
#include "train/run/run_data.h"
#include "train/run/trainer.h"
#include "train/step/evaluate.h"

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
  Progress progress = progress_on_terminal(stderr);
  const at::Device device = use_device("train.device", config.train.device);
  const BatchCopier to_device(device);
  const auto network = progress.during(
      "loading the model", [&] { return load_model(directory, models::scalar_type(config.model.compute), device); });
  const Corpus corpus = read_corpus(config, directory, progress);
  USER_CHECK(corpus.held_out_windows() > 0,
             "nothing is held out to evaluate on: give data.eval, or a data.eval_fraction above 0");
  USER_CHECK(has_held_out_labels(corpus, config.data.eval_windows),
             "the {} held-out windows have no label that training would learn: hold out more, or other text",
             config.data.eval_windows);
  const HeldOutLoss loss = progress.during("evaluating", [&] {
    return evaluate([&](const Batch& rows) { return summed_loss(network, to_device(rows)); }, directory.tokenizer,
                    corpus, config.data.eval_windows, config.train.batch_size);
  });
  fmt::print("{}: held-out loss {:.4f} nats per token, {:.4f} nats per byte ({} tokens, {} bytes)\n", chosen.string(),
             loss.nats_per_token, loss.nats_per_byte, loss.tokens, loss.bytes);
  return 0;
}

namespace {
// The tokens that end a text: those of generation_config.json, which transformers reads too, come before the model's
// own.
std::vector<int64_t> stop_ids_of(const ModelDirectory& directory) {
  constexpr const char* kFile = "generation_config.json";
  constexpr const char* kField = "eos_token_id";
  const auto file = directory.companions.find(kFile);
  if (file == directory.companions.end()) return directory.config.eos_token_ids;
  const std::string what = (directory.base / kFile).string();
  const Json json = parse_json(file->second, what);
  if (!json.is_object() || !json.contains(kField) || json[kField].is_null()) return directory.config.eos_token_ids;
  const Json given = json[kField].is_array() ? json[kField] : Json::array({json[kField]});
  std::vector<int64_t> ids;
  for (const Json& id : given) {
    USER_CHECK(id.is_number_integer(), "{}: {} is {}; expected token ids", what, kField, shown(json[kField]));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

// Makes the prompt a user's message in a chat. The answer ends with the model's turn, whatever mark the template uses.
void put_into_chat(const ChatTemplate& chat, const Tokenizer& tokenizer, GenerateCommand& command) {
  const Json messages = Json::array({{{"role", "user"}, {"content", command.prompt}}});
  command.prompt = chat.render(messages, /*add_generation_prompt=*/true);
  const std::string end = chat.end_of_turn();
  if (end.empty()) return;
  if (const auto id = tokenizer.added_token(end)) {
    command.sample.stop_ids.push_back(*id);
  } else {
    command.sample.stops.push_back(end);
  }
}
}  // namespace

int run_generate(GenerateCommand command) {
  const ModelDirectory directory = open_model_directory(command.directory);
  USER_CHECK(!command.prompt.empty(), "--prompt is empty: give some text to continue");
  command.sample.stop_ids = stop_ids_of(directory);
  command.sample.is_whole_text = command.chat.empty();
  if (!command.chat.empty())
    put_into_chat(choose_chat_template(command.chat, directory.base), directory.tokenizer, command);
  Progress progress = progress_on_terminal(stderr);
  const at::Device device = use_device("--device", command.device);
  const auto model = progress.during("loading the model", [&] { return load_model(directory, at::kFloat, device); });
  const Sample sample = progress.during(
      "generating", [&] { return sample_text(model, directory.tokenizer, command.prompt, command.sample); });
  // A terminal gets no control characters, which it would obey; a pipe or a file gets the model's text unchanged.
  fmt::print("{}{}\n", command.chat.empty() ? command.prompt : std::string(),
             is_terminal(stdout) ? printable(sample.text) : sample.text);
  if (!sample.note.empty()) fmt::print(stderr, "stepc: {}\n", sample.note);
  return 0;
}

namespace {

constexpr const char* kOwnStep = "program_state.json";  // step.save() writes it (python/stepc/saved.py)
constexpr uint64_t kMostFileBytes = 256 << 20;          // tokenizer.json of large vocabularies is tens of MB

// Exports a checkpoint of a user's own step (step.save()), whose model stepc may not know: the tensors under their
// names and in their types, and all other files except those that only training needs.
void export_own_step(const fs::path& checkpoint, const fs::path& destination, uint64_t max_shard_bytes) {
  const TensorFiles weights(checkpoint, kModelFiles);
  save_model_tensors(destination, made_of(weights), std::nullopt, max_shard_bytes);
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    const std::string name = entry.path().filename().string();
    const bool is_of_training = name == kManifestName || name == kIndexName || name == "trainer_state.json" ||
                                name.ends_with(kOwnStep) || name.ends_with(".safetensors");
    if (!is_of_training) write_file_synced(destination / name, read_text(entry.path(), kMostFileBytes));
  }
}

}  // namespace

int run_export(const fs::path& from, const fs::path& to, double max_shard_gb) {
  constexpr double kBytesPerGb = 1e9;
  USER_CHECK(max_shard_gb > 0, "--max-shard-gb {}: must be more than 0", max_shard_gb);
  if (fs::exists(from / kManifestName)) read_checkpoint(from);  // every file is whole
  const auto max_shard_bytes = static_cast<uint64_t>(max_shard_gb * kBytesPerGb);
  std::optional<ModelDirectory> directory;
  if (!fs::exists(from / kOwnStep)) directory = open_model_directory(from);
  if (directory) check_weight_shapes(*directory);
  if (to.has_parent_path()) make_directories(to.parent_path());
  DirectoryTransaction model(to);
  if (directory)
    export_model(*directory, model.path(), max_shard_bytes);
  else
    export_own_step(from, model.path(), max_shard_bytes);
  model.commit();
  fmt::print("{}: the model of {}\n", to.string(), from.string());
  return 0;
}

int run_calibrate(const CalibrateCommand& command) {
  if (!command.cluster.empty()) return calibrate_cluster(command);
  USER_CHECK(command.ranks == 0, "--ranks {} is of links: give --cluster as well, the file to write", command.ranks);
  const fs::path directory = command.kernels.empty() ? kernel_directory() : command.kernels;
  USER_CHECK(!directory.empty(), "there is no directory to keep the result in: give --kernels, or set HOME");
  if (command.threads > 0) at::set_num_threads(command.threads);
  const MeasuringHere here(directory, at::get_num_threads());
  KernelSources kernels(directory);
  const auto begin = Clock::now();
  const Target target = calibrate(
      kernels, [](const std::string& what) { fmt::print(stderr, "measuring {} ...\n", what); }, command.rounds);
  keep_target(directory, target);
  fmt::print("{}", command.prints ? to_text(target) : rates_table(target));
  fmt::print(stderr, "{}: measured in {:.0f} s; predictions use it from now on\n",
             target_file(directory, target.threads).string(), seconds_since(begin));
  return 0;
}

int run_inspect(const fs::path& directory) {
  const Inspection inspection = inspect(directory);
  fmt::print("{}", inspection.table);
  if (!inspection.is_good) throw RunFailure(str("{}: damaged", directory.string()));
  return 0;
}

}  // namespace stepc::train
