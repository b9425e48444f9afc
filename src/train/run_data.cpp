#include "train/run_data.h"

#include <filesystem>
#include <utility>

#include "data/source/find_files.h"
#include "train/chat_choice.h"

namespace stepc::train {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> all_files(const std::vector<std::string>& names) {
  std::vector<fs::path> files;
  for (const std::string& name : names)
    for (fs::path& file : find_files(name)) files.push_back(std::move(file));
  return files;
}

std::vector<CorpusOptions::Source> sources_of(const RunConfig::Data& data) {
  if (data.weights.empty()) return {{all_files(data.train), 1.0}};
  std::vector<CorpusOptions::Source> sources;
  for (size_t i = 0; i < data.train.size(); ++i) sources.push_back({find_files(data.train[i]), data.weights[i]});
  return sources;
}

// What ends a document: the usual token where the tokenizer has it, else the model's own.
std::string separator_of(const ModelDirectory& model) {
  std::string usual = "<|endoftext|>";
  if (model.tokenizer.added_token(usual)) return usual;
  for (const int64_t id : model.config.eos_token_ids) {
    const std::string_view spelling = model.tokenizer.spelling(static_cast<int32_t>(id));
    if (!spelling.empty() && model.tokenizer.added_token(spelling) == id) return std::string(spelling);
  }
  return {};
}

}  // namespace

Corpus read_corpus(const RunConfig& config, const ModelDirectory& model, DataEvents events) {
  const RunConfig::Data& data = config.data;
  CorpusOptions options;
  options.sources = sources_of(data);
  options.held_out = all_files(data.eval);
  options.held_out_fraction = data.eval_fraction;
  options.seq_len = data.seq_len;
  options.seed = static_cast<uint64_t>(config.train.seed);
  options.format.field = data.field;
  options.format.chat = [&] {
    return std::make_shared<const ChatTemplate>(choose_chat_template(data.chat, model.base));
  };
  options.cache.directory = data.cache.empty() ? fs::path(config.output.dir) / "tokens" : fs::path(data.cache);
  options.cache.separator = separator_of(model);
  options.cache.threads = static_cast<int>(config.train.threads);
  options.cache.progress = std::move(events.tokenizing);
  options.cache.waiting = std::move(events.waiting);
  return {model.tokenizer, options};
}

}  // namespace stepc::train
