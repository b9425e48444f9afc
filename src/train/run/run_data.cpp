#include "train/run/run_data.h"

#include <filesystem>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "data/source/find_files.h"
#include "train/machine/pythons.h"
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

std::vector<std::string> to_text(const TextFaults& faults) {
  std::vector<std::string> lines;
  if (const uint64_t count = faults.repaired)
    lines.push_back(
        str("{} line{} of text hold{} half of a surrogate pair (\\ud800 to \\udfff), which is no character: U+FFFD "
            "stands for it",
            count, count == 1 ? "" : "s", count == 1 ? "s" : ""));
  if (const uint64_t count = faults.skipped)
    lines.push_back(str("{} line{} or row{} left out, of which no document can be made; the first: {}", count,
                        count == 1 ? "" : "s", count == 1 ? " was" : "s were", faults.first_skipped));
  return lines;
}

void check_row_length(const RunConfig& config, const ModelDirectory& model) {
  USER_CHECK(config.data.longest_row() <= model.config.max_position_embeddings,
             "{}: must be at most {}, max_position_embeddings of {}",
             config.data.buckets.empty() ? str("data.seq_len = {}", config.data.seq_len)
                                         : str("data.buckets = [{}]", fmt::join(config.data.buckets, ", ")),
             model.config.max_position_embeddings, model.path.string());
}

Corpus read_corpus(const RunConfig& config, const ModelDirectory& model, Progress& progress, bool is_alone) {
  Progress::Phase phase(progress, "reading the data");
  const RunConfig::Data& data = config.data;
  CorpusOptions options;
  options.sources = sources_of(data);
  options.held_out = all_files(data.eval);
  options.held_out_fraction = data.eval_fraction;
  options.seq_len = data.seq_len;
  options.buckets = data.buckets;
  options.seed = static_cast<uint64_t>(config.train.seed);
  options.format.field = data.field;
  options.format.skips_unusable = data.skip_unusable;
  options.format.parquet = std::make_shared<ParquetReaders>(pythons());
  options.format.chat = [&] {
    return std::make_shared<const ChatTemplate>(choose_chat_template(data.chat, model.base));
  };
  options.cache.directory = data.cache.empty() ? fs::path(config.output.dir) / "tokens" : fs::path(data.cache);
  options.cache.separator = separator_of(model.tokenizer, model.config.eos_token_ids);
  options.cache.threads = static_cast<int>(config.train.threads);
  options.cache.progress = [&](uint64_t done, uint64_t total) {
    phase.update(str("{} of {} tokenised", human_bytes(done), human_bytes(total)));
  };
  // One rank does the work, and the others wait for it, in whatever order they arrive.
  if (is_alone)
    options.cache.waiting = [&] { progress.note("another process is tokenising for the same cache: waiting for it"); };
  options.cache.faults = [](const TextFaults& faults) {
    for (const std::string& line : to_text(faults)) log().warn(line);
  };
  try {
    return {model.tokenizer, options};
  } catch (const UnusableDocument& error) {
    user_error("{}; data.skip_unusable = true leaves out what cannot be used", error.what());
  }
}

}  // namespace stepc::train
