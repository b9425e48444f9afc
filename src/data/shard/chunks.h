// Files cut into chunks, one a shard: whole lines of .jsonl files, row groups of .parquet files, whole .txt files,
// small ones together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/source/document.h"

namespace stepc {

struct SourceFile {
  std::string name;
  FileKind kind;
  MappedFile content;
  std::unique_ptr<const ParquetFile> parquet;  // of such a file
};

// The files, mapped; one that is missing or empty is a UserError.
std::vector<SourceFile> open_sources(const std::vector<std::filesystem::path>& paths, const DocumentFormat& format);

struct ChunkPart {
  size_t file;
  uint64_t begin, end;  // bytes
};

struct Chunk {
  std::vector<ChunkPart> parts;
  [[nodiscard]] uint64_t bytes() const;
};

// Every byte is in one chunk, in order. Chunks have about `chunk_bytes`.
std::vector<Chunk> cut_chunks(const std::vector<SourceFile>& files, uint64_t chunk_bytes);

std::string_view bytes_of(const std::vector<SourceFile>& files, const ChunkPart& part);

// What names the shard of a chunk: its content and `salt`, which stands for everything else.
uint64_t chunk_hash(const std::vector<SourceFile>& files, const Chunk& chunk, uint64_t salt);

}  // namespace stepc
