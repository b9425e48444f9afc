#include "data/shard/chunks.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace stepc {

namespace {
// Where a part that begins at `begin` and has about `room` bytes can end.
uint64_t end_of_part(const SourceFile& file, uint64_t begin, uint64_t room) {
  const std::string_view text = file.content.text();
  if (text.size() - begin <= room || file.kind == FileKind::kText) return text.size();
  if (file.kind == FileKind::kJsonl) return std::min<uint64_t>(text.find('\n', begin + room - 1), text.size() - 1) + 1;
  const auto& groups = file.parquet->row_group_begins();
  const auto next = std::ranges::lower_bound(groups, begin + room);
  return next == groups.end() ? text.size() : *next;
}
}  // namespace

std::vector<SourceFile> open_sources(const std::vector<std::filesystem::path>& paths, const DocumentFormat& format) {
  USER_CHECK(!paths.empty(), "no text files are given");
  std::vector<SourceFile> files;
  const std::shared_ptr<ParquetReaders> readers = readers_of(format);
  for (const auto& path : paths) {
    const FileKind kind = file_kind_of(path);
    SourceFile& file = files.emplace_back(SourceFile{path.string(), kind, MappedFile(path), nullptr});
    const auto bytes = file.content.bytes();
    USER_CHECK(!bytes.empty(), "{} is empty", file.name);
    if (kind == FileKind::kParquet) file.parquet = std::make_unique<const ParquetFile>(file.name, bytes, readers);
  }
  return files;
}

uint64_t Chunk::bytes() const {
  uint64_t sum = 0;
  for (const ChunkPart& part : parts) sum += part.end - part.begin;
  return sum;
}

std::string_view bytes_of(const std::vector<SourceFile>& files, const ChunkPart& part) {
  return files[part.file].content.text().substr(part.begin, part.end - part.begin);
}

std::vector<Chunk> cut_chunks(const std::vector<SourceFile>& files, uint64_t chunk_bytes) {
  std::vector<Chunk> chunks(1);
  uint64_t room = chunk_bytes;
  const auto put = [&](const ChunkPart& part) {
    const uint64_t bytes = part.end - part.begin;
    chunks.back().parts.push_back(part);
    room -= std::min(room, bytes);
    if (room > 0) return;
    chunks.emplace_back();
    room = chunk_bytes;
  };
  for (size_t file = 0; file < files.size(); ++file) {
    const uint64_t size = files[file].content.bytes().size();
    for (uint64_t begin = 0; begin < size;) {
      const uint64_t end = end_of_part(files[file], begin, room);
      put({file, begin, end});
      begin = end;
    }
  }
  if (chunks.back().parts.empty()) chunks.pop_back();
  return chunks;
}

namespace {
// Block by block, so that a large part does not take its size in memory.
uint64_t part_hash(const SourceFile& file, const ChunkPart& part) {
  constexpr uint64_t kBlock = uint64_t{16} << 20;
  RunningHash hash;
  for (uint64_t begin = part.begin; begin < part.end; begin += kBlock) {
    const uint64_t end = std::min(begin + kBlock, part.end);
    hash.add(file.content.bytes().subspan(begin, end - begin));
    if (part.end - part.begin > kBlock) file.content.let_go(begin, end);
  }
  return hash.value();
}
}  // namespace

uint64_t chunk_hash(const std::vector<SourceFile>& files, const Chunk& chunk, uint64_t salt) {
  std::vector<uint64_t> parts = {salt};
  for (const ChunkPart& part : chunk.parts) {
    // Whether a part begins its document matters for text files only, and those are never cut.
    parts.insert(parts.end(), {part_hash(files[part.file], part), part.end - part.begin,
                               static_cast<uint64_t>(files[part.file].kind)});
    // The same bytes are other rows under another footer.
    if (const auto& parquet = files[part.file].parquet) parts.push_back(hash_bytes(parquet->footer()));
  }
  return hash_bytes(std::as_bytes(std::span(parts)));
}

}  // namespace stepc
