#include "data/shard/chunk_plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace stepc {

std::vector<SourceFile> open_sources(const std::vector<std::filesystem::path>& paths) {
  USER_CHECK(!paths.empty(), "no text files are given");
  std::vector<SourceFile> files;
  for (const auto& path : paths) {
    const FileKind kind = file_kind_of(path);
    files.push_back({path.string(), kind, MappedFile(path)});
    USER_CHECK(!files.back().content.bytes().empty(), "{} is empty", path.string());
  }
  return files;
}

uint64_t Chunk::bytes() const {
  uint64_t sum = 0;
  for (const ChunkPart& part : parts) sum += part.end - part.begin;
  return sum;
}

std::string_view text_of(const std::vector<SourceFile>& files, const ChunkPart& part) {
  return files[part.file].content.text().substr(part.begin, part.end - part.begin);
}

std::vector<Chunk> plan_chunks(const std::vector<SourceFile>& files, uint64_t chunk_bytes) {
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
    const std::string_view text = files[file].content.text();
    for (uint64_t begin = 0; begin < text.size();) {
      uint64_t end = text.size();
      if (files[file].kind == FileKind::kJsonl && end - begin > room)
        end = std::min<uint64_t>(text.find('\n', begin + room - 1), text.size() - 1) + 1;
      put({file, begin, end});
      begin = end;
    }
  }
  if (chunks.back().parts.empty()) chunks.pop_back();
  return chunks;
}

uint64_t chunk_hash(const std::vector<SourceFile>& files, const Chunk& chunk, uint64_t salt) {
  std::vector<uint64_t> parts = {salt};
  for (const ChunkPart& part : chunk.parts) {
    const std::string_view text = text_of(files, part);
    // Whether a part begins its document matters for text files only, and those are never cut.
    parts.insert(parts.end(), {hash_bytes(std::as_bytes(std::span(text))), text.size(),
                               static_cast<uint64_t>(files[part.file].kind)});
  }
  return hash_bytes(std::as_bytes(std::span(parts)));
}

}  // namespace stepc
