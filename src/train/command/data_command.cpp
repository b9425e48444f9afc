#include "train/command/data_command.h"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "base/json.h"
#include "base/text.h"
#include "data/inspect/shown_row.h"
#include "data/shard/mixture.h"
#include "data/shard/shard_cache.h"
#include "train/machine/pythons.h"
#include "train/model/chat_choice.h"
#include "train/model/model_directory.h"
#include "train/model/separator.h"
#include "train/report/progress.h"
#include "train/run/run_data.h"

namespace stepc::train {

namespace fs = std::filesystem;

namespace {
struct Options {
  fs::path tokenizer;
  std::vector<fs::path> files;
  fs::path cache = "token-cache";
  std::string field, chat;
  std::optional<std::string> separator;  // unset: what a run would take
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  int64_t seq_len = 512;
  uint64_t seed = 0, sample = 0;
  bool colour = false, borders = false, verify = false, skip_unusable = false;
};

DocumentFormat format_of(const Options& options) {
  DocumentFormat format;
  const fs::path directory = fs::is_directory(options.tokenizer) ? options.tokenizer : options.tokenizer.parent_path();
  if (!options.chat.empty())
    format.chat = std::make_shared<const ChatTemplate>(choose_chat_template(options.chat, directory));
  format.skips_unusable = options.skip_unusable;
  format.parquet = std::make_shared<ParquetReaders>(pythons());
  format.field = !options.field.empty() ? options.field : format.chat ? "messages" : "text";
  return format;
}

TokenStream tokenized(const Options& options, const Tokenizer& tokenizer, size_t& made) {
  Progress progress = progress_on_terminal(stderr);
  Progress::Phase phase(progress, "tokenizing");
  ShardCacheOptions cache;
  cache.directory = options.cache;
  cache.format = format_of(options);
  cache.separator = options.separator.value_or(separator_of(tokenizer, options.tokenizer));
  USER_CHECK(cache.separator.empty() || tokenizer.added_token(cache.separator),
             "--separator {}: the tokenizer has no such added token; \"\" for none", in_quotes(cache.separator));
  cache.threads = options.threads;
  cache.verify = options.verify;
  cache.progress = [&](uint64_t done, uint64_t total) {
    phase.update(str("{} of {}", human_bytes(done), human_bytes(total)));
  };
  cache.waiting = [&] {
    std::fputs(str("another process is at work in {}, waiting for it\n", options.cache.string()).c_str(), stderr);
  };
  cache.faults = [](const TextFaults& faults) {
    for (const std::string& line : to_text(faults)) std::fputs(("stepc: " + line + "\n").c_str(), stderr);
  };
  const ShardCacheResult result = [&] {
    try {
      return tokenize_files(tokenizer, options.files, cache);
    } catch (const UnusableDocument& error) {
      user_error("{}; --skip-unusable leaves out what cannot be used", error.what());
    }
  }();
  made = result.made;
  return TokenStream(result.shards);
}

int run_tokenize(const Options& options) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_file(options.tokenizer));
  size_t made = 0;
  const TokenStream stream = tokenized(options, tokenizer, made);
  fmt::print("{} tokens of {} document{} from {} of text, {:.2f} bytes a token; {} new shard{} in {}\n",
             human_count(static_cast<double>(stream.size())), human_count(static_cast<double>(stream.documents())),
             stream.documents() == 1 ? "" : "s", human_bytes(stream.text_bytes()),
             static_cast<double>(stream.text_bytes()) / static_cast<double>(std::max<uint64_t>(stream.size(), 1)), made,
             made == 1 ? "" : "s", options.cache.string());
  return 0;
}

int run_inspect(const Options& options) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_file(options.tokenizer));
  size_t made = 0;
  const auto stream = std::make_shared<const TokenStream>(tokenized(options, tokenizer, made));
  const Mixture mixture({{stream, 1, 0, stream->size()}}, options.seq_len, options.seed);
  PackedBatch batch;
  mixture.fill(options.sample, 1, batch);
  const PackedRow row = batch.row(0, static_cast<size_t>(options.seq_len));
  fmt::print("sample {}: window {} of {}, {} tokens, {} document{}, {} learned\n", options.sample,
             mixture.place_of(options.sample).window, mixture.windows(0), options.seq_len, row.documents.back() + 1,
             row.documents.back() == 0 ? "" : "s", learned_tokens(row));
  const bool colour = options.colour || terminal_columns(stdout) > 0;
  fmt::print("{}", shown_row(tokenizer, row, {colour, options.borders}));
  return 0;
}

void add_options(CLI::App& command, Options& options) {
  command.add_option("tokenizer", options.tokenizer, "model directory, tokenizer.json or tokenizer.model")->required();
  command.add_option("files", options.files, ".txt (one document), .jsonl (one a line) or .parquet (one a row)")
      ->required();
  command.add_option("--cache", options.cache, "directory of the token shards")->capture_default_str();
  command.add_option("--field", options.field,
                     "of a .jsonl line, or the column of a .parquet file; default: text, with --chat messages");
  command.add_option(
      "--chat", options.chat,
      "lines are chats in this template, loss on the assistant's turns: model (tokenizer_config.json), " +
          str("{}", fmt::join(ChatTemplate::names(), ", ")));
  command.add_option(
      "--separator", options.separator,
      "added token after each document; default: <|endoftext|>, else the model's end of text; \"\": none");
  command.add_flag("--skip-unusable", options.skip_unusable,
                   "leave out lines and rows of which no document can be made, and count them");
  command.add_option("--threads", options.threads, "that tokenize")->check(CLI::Range(1, 1024))->capture_default_str();
}
}  // namespace

DataCommand add_data_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* data = app.add_subcommand("data", "turn text into tokens, and look at them");
  data->require_subcommand(1);
  CLI::App* tokenize = data->add_subcommand("tokenize", "text files to token shards in a cache");
  add_options(*tokenize, *options);
  tokenize->add_flag("--verify", options->verify, "read the shards that are there, and make damaged ones again");
  CLI::App* inspect = data->add_subcommand("inspect", "print a training sample, coloured by document and loss mask");
  add_options(*inspect, *options);
  inspect->add_option("--seq-len", options->seq_len, "tokens a sample")->capture_default_str();
  inspect->add_option("--seed", options->seed, "of the order of samples")->capture_default_str();
  inspect->add_option("--sample", options->sample, "which sample, from 0")->capture_default_str();
  inspect->add_flag("--color", options->colour, "colours where the output is no terminal too");
  inspect->add_flag("--borders", options->borders, "a bar after each token");
  return {data, [options, tokenize] { return tokenize->parsed() ? run_tokenize(*options) : run_inspect(*options); }};
}

}  // namespace stepc::train
