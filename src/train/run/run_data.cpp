#include "train/run/run_data.h"

#include <filesystem>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/text.h"
#include "data/source/find_files.h"
#include "train/model/chat_choice.h"
#include "train/model/separator.h"

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

}  // namespace

std::string repaired_text(uint64_t lines) {
  return str(
      "{} line{} of text hold{} half of a surrogate pair (\\ud800 to \\udfff), which is no character: U+FFFD stands "
      "for it",
      lines, lines == 1 ? "" : "s", lines == 1 ? "s" : "");
}

void check_row_length(const RunConfig& config, const ModelDirectory& model) {
  USER_CHECK(config.data.longest_row() <= model.config.max_position_embeddings,
             "{}: must be at most {}, max_position_embeddings of {}",
             config.data.buckets.empty() ? str("data.seq_len = {}", config.data.seq_len)
                                         : str("data.buckets = [{}]", fmt::join(config.data.buckets, ", ")),
             model.config.max_position_embeddings, model.path.string());
}

Corpus read_corpus(const RunConfig& config, const ModelDirectory& model, DataEvents events) {
  const RunConfig::Data& data = config.data;
  CorpusOptions options;
  options.sources = sources_of(data);
  options.held_out = all_files(data.eval);
  options.held_out_fraction = data.eval_fraction;
  options.seq_len = data.seq_len;
  options.buckets = data.buckets;
  options.seed = static_cast<uint64_t>(config.train.seed);
  options.format.field = data.field;
  options.format.chat = [&] {
    return std::make_shared<const ChatTemplate>(choose_chat_template(data.chat, model.base));
  };
  options.cache.directory = data.cache.empty() ? fs::path(config.output.dir) / "tokens" : fs::path(data.cache);
  options.cache.separator = separator_of(model.tokenizer, model.config.eos_token_ids);
  options.cache.threads = static_cast<int>(config.train.threads);
  options.cache.progress = std::move(events.tokenizing);
  options.cache.waiting = std::move(events.waiting);
  options.cache.repaired = std::move(events.repaired);
  return {model.tokenizer, options};
}

}  // namespace stepc::train
