#include "data/shard/shard_cache.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "data/shard/chunks.h"
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
        chunks_(cut_chunks(files, options.chunk_bytes)),
        names_(chunks_.size()),
        faults_(chunks_.size()) {
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
        throw;  // the threads end with their chunks, or in the midst of a long text
      }
    }
    if (failure_) std::rethrow_exception(failure_);
    if (options_.progress) options_.progress(total_, total_);
    TextFaults faults;
    for (const TextFaults& of_chunk : faults_) faults.add(of_chunk);
    if (options_.faults && faults.any()) options_.faults(faults);
    return names_;
  }

  [[nodiscard]] size_t made() const { return made_; }

 private:
  struct Stopped {};

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
      } catch (const Stopped&) {
        // Whoever set stop_ says why.
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
    ShardWriter shard(path, tokenizer_.vocab_size());
    for (const ChunkPart& part : chunk.parts) {
      const SourceFile& file = files_[part.file];
      uint64_t read = 0;  // of a text, whose document is the part itself and may be large
      const auto read_text = [&](uint64_t bytes) {
        if (stop_) throw Stopped();
        file.content.let_go(part.begin + read, part.begin + bytes);
        done_ += bytes - std::exchange(read, bytes);
      };
      const bool is_text = file.kind == FileKind::kText;
      const auto use = [&](const Document& document) {
        tokenizer.append(document, shard, is_text ? Tokenizer::Progress(read_text) : Tokenizer::Progress());
      };
      const auto first_line = [&] {
        const auto before = file.content.text().substr(0, part.begin);
        return static_cast<uint64_t>(std::count(before.begin(), before.end(), '\n')) + 1;
      };
      faults_[index].add(file.parquet ? for_each_document(*file.parquet, part.begin, part.end, options_.format, use)
                                      : for_each_document(bytes_of(files_, part), file.kind, options_.format, file.name,
                                                          first_line, use));
      file.content.let_go(part.begin, part.end);
      done_ += part.end - part.begin - read;
    }
    shard.commit();
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
  std::vector<TextFaults> faults_;  // of each chunk
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

// Whether the cache gives its own files such names while it writes them: 0123456789abcdef.tokens.tmp-4711. The
// directory may be anybody's, and what has another name is not ours.
bool is_half_written(std::string_view name) {
  constexpr size_t kHashDigits = 16;
  const auto digits = [](std::string_view text, std::string_view of) {
    return !text.empty() && text.find_first_not_of(of) == std::string_view::npos;
  };
  if (name.size() <= kHashDigits || !digits(name.substr(0, kHashDigits), "0123456789abcdef")) return false;
  name.remove_prefix(kHashDigits);
  for (const std::string_view ending : {".tokens.tmp-", ".set.tmp-"})
    if (name.starts_with(ending)) return digits(name.substr(ending.size()), "0123456789");
  return false;
}

// What a process that was killed left of its files.
void remove_leftovers(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const bool is_file = fs::is_regular_file(entry.symlink_status());
    if (is_file && is_half_written(entry.path().filename().string())) remove_tree(entry.path());
  }
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
    const std::vector<SourceFile> sources = open_sources(files, options.format);
    Work work(tokenizer, sources, options, salt);
    names = work.run();
    result.made = work.made();
    known.remember(*names);
  }
  for (const std::string& name : *names) result.shards.push_back(options.directory / name);
  return result;
}

}  // namespace stepc
