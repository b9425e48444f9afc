// Text files as token shards in a cache directory. A shard is named by the content that it was made of (text,
// tokenizer, format), so the same text is never tokenised twice and a changed file always is. A run that was
// interrupted goes on with the shards that are there; of two processes that start at once one works and the other waits
// for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/source/document.h"
#include "data/tokenizer.h"

namespace stepc {

struct ShardCacheOptions {
  std::filesystem::path directory;
  DocumentFormat format;
  // The added token put after every document that is no chat, if the tokenizer has it; empty for none.
  std::string separator = "<|endoftext|>";
  int threads = 1;
  bool verify = false;  // read what is there in full; a shard that is found damaged is made again either way
  uint64_t chunk_bytes = uint64_t{16} << 20;  // of text a shard, about
  // Called on the calling thread with bytes done and bytes in all; what it throws ends the work.
  std::function<void(uint64_t done, uint64_t total)> progress;
  // Called once if another process is at work on this directory.
  std::function<void()> waiting;
  // Called once, after the work, if there were any.
  std::function<void(const TextFaults&)> faults;
};

struct ShardCacheResult {
  std::vector<std::filesystem::path> shards;  // in the order of the files
  size_t made = 0;                            // shards that were not there
};

ShardCacheResult tokenize_files(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& files,
                                const ShardCacheOptions& options);

}  // namespace stepc
