#include "data/shard/shard_cache.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/check.h"
#include "base/hash.h"
#include "data/shard/chunk_plan.h"
#include "data/shard/directory_lock.h"
#include "data/shard/known_sets.h"
#include "data/shard/tokenize_documents.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
constexpr uint64_t kFormatVersion = 1;  // another one: other shards for the same text

// Is there a shard, as far as opening it, or reading all of it, can tell?
bool is_good_shard(const fs::path& path, bool verify) {
  if (!fs::exists(path)) return false;
  try {
    const TokenShard shard(path);
    if (verify) shard.verify();
    return true;
  } catch (const UserError&) {
    return false;
  }
}

// Tokenises the chunks that have no shard yet, on several threads.
class Work {
 public:
  Work(const Tokenizer& tokenizer, const std::vector<SourceFile>& files, const ShardCacheOptions& options,
       uint64_t salt)
      : tokenizer_(tokenizer),
        files_(files),
        options_(options),
        salt_(salt),
        separator_(tokenizer.added_token(options.separator)),
        chunks_(plan_chunks(files, options.chunk_bytes)),
        names_(chunks_.size()) {
    for (const Chunk& chunk : chunks_) total_ += chunk.bytes();
  }

  // The names of the shards, in order.
  std::vector<std::string> run() {
    {
      std::vector<std::jthread> threads;
      const size_t count =
          std::clamp<size_t>(static_cast<size_t>(options_.threads), 1, std::max<size_t>(chunks_.size(), 1));
      running_ = count;
      for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
      try {
        report_until_done();
      } catch (...) {
        stop_ = true;
        throw;  // the threads end with their chunks
      }
    }
    if (failure_) std::rethrow_exception(failure_);
    if (options_.progress) options_.progress(total_, total_);
    return names_;
  }

  [[nodiscard]] size_t made() const { return made_; }

 private:
  void report_until_done() {
    std::unique_lock lock(mutex_);
    while (running_ > 0) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      if (!options_.progress || running_ == 0) continue;
      lock.unlock();
      options_.progress(done_, total_);
      lock.lock();
    }
  }

  void work() {
    DocumentTokenizer tokenizer(tokenizer_, separator_);
    for (size_t chunk = 0; !stop_ && (chunk = next_++) < chunks_.size();) {
      try {
        make_shard(tokenizer, chunk);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        // The first chunk's failure is the one that is told: chunks are taken in order, so it is always reached.
        if (!failure_ || chunk < failed_chunk_) {
          failure_ = std::current_exception();
          failed_chunk_ = chunk;
        }
        stop_ = true;
      }
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_all();
  }

  void make_shard(DocumentTokenizer& tokenizer, size_t index) {
    const Chunk& chunk = chunks_[index];
    names_[index] = hash_text(chunk_hash(files_, chunk, salt_)) + ".tokens";
    const fs::path path = options_.directory / names_[index];
    if (!claim(names_[index]) || is_good_shard(path, options_.verify)) {
      done_ += chunk.bytes();
      return;
    }
    TokenizedDocuments documents;
    for (const ChunkPart& part : chunk.parts) {
      const SourceFile& file = files_[part.file];
      const auto use = [&](const Document& document) { tokenizer.append(document, documents); };
      const auto first_line = [&] {
        const auto before = file.content.text().substr(0, part.begin);
        return static_cast<uint64_t>(std::count(before.begin(), before.end(), '\n')) + 1;
      };
      if (file.parquet)
        for_each_document(*file.parquet, part.begin, part.end, options_.format, use);
      else
        for_each_document(bytes_of(files_, part), file.kind, options_.format, file.name, first_line, use);
      done_ += part.end - part.begin;
    }
    write_shard(path, documents, tokenizer_.vocab_size());
    ++made_;
  }

  // Chunks of equal content have one shard, which one thread makes.
  bool claim(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return claimed_.insert(name).second;
  }

  const Tokenizer& tokenizer_;
  const std::vector<SourceFile>& files_;
  const ShardCacheOptions& options_;
  uint64_t salt_;
  std::optional<int32_t> separator_;
  std::vector<Chunk> chunks_;
  std::vector<std::string> names_;
  uint64_t total_ = 0;

  std::atomic<uint64_t> done_ = 0;
  std::atomic<size_t> next_ = 0, made_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t running_ = 0;  // guarded by mutex_, as what follows
  std::set<std::string> claimed_;
  size_t failed_chunk_ = 0;
  std::exception_ptr failure_;
};

// What a process that was killed left of its files.
void remove_leftovers(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) remove_tree(entry.path());
}

uint64_t salt_of(const Tokenizer& tokenizer, const ShardCacheOptions& options) {
  const std::vector<uint64_t> parts = {kFormatVersion, tokenizer.hash(), options.format.hash(), options.chunk_bytes,
                                       hash_bytes(std::as_bytes(std::span(options.separator)))};
  return hash_bytes(std::as_bytes(std::span(parts)));
}
}  // namespace

ShardCacheResult tokenize_files(const Tokenizer& tokenizer, const std::vector<fs::path>& files,
                                const ShardCacheOptions& options) {
  USER_CHECK(!files.empty(), "no text files are given");
  INTERNAL_CHECK(options.chunk_bytes > 0);
  std::error_code error;
  fs::create_directories(options.directory, error);
  USER_CHECK(!error, "cannot create {}: {}", options.directory.string(), error.message());
  const DirectoryLock lock(options.directory, options.waiting);
  remove_leftovers(options.directory);

  const uint64_t salt = salt_of(tokenizer, options);
  const KnownSet known(options.directory, files, salt);
  ShardCacheResult result;
  auto names = known.shards();
  const auto is_good = [&](const std::string& name) { return is_good_shard(options.directory / name, options.verify); };
  if (!names || !std::all_of(names->begin(), names->end(), is_good)) {
    const std::vector<SourceFile> sources = open_sources(files);
    Work work(tokenizer, sources, options, salt);
    names = work.run();
    result.made = work.made();
    known.remember(*names);
  }
  for (const std::string& name : *names) result.shards.push_back(options.directory / name);
  return result;
}

}  // namespace stepc
