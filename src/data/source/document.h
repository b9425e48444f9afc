// Documents out of files: .txt (a file is a document), .jsonl (a line is one: the text of a field, or chat messages)
// and .parquet (a row is one, its column what the field is to a line).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "data/chat/chat_template.h"
#include "data/source/parquet_file.h"

namespace stepc {

struct DocumentFormat {
  std::string field = "text";                    // of a .jsonl line; a column of a .parquet file
  std::shared_ptr<const ChatTemplate> chat;      // set: the field holds messages; unset: it holds text
  bool skips_unusable = false;                   // leaves out lines and rows of which no document can be made
  std::shared_ptr<ParquetReaders> parquet = {};  // who reads .parquet files; unset: whatever `python3` is
  // Of everything that decides about the documents of a file.
  [[nodiscard]] uint64_t hash() const;
};

// Of the format's own, or new ones.
std::shared_ptr<ParquetReaders> readers_of(const DocumentFormat& format);

enum class FileKind { kText, kJsonl, kParquet };
// By the file's ending; what cannot be read is a UserError that says what to do.
FileKind file_kind_of(const std::filesystem::path& path);

struct Document {
  std::string_view text;
  bool is_chat = false;
  // The byte ranges that are learned from, in order; of a document that is no chat all of it is.
  std::vector<std::pair<size_t, size_t>> learned;
};

// A line or row of which no document can be made: no JSON, without the field, a chat that the template refuses. Says
// which one it is.
class UnusableDocument : public UserError {
 public:
  using UserError::UserError;
};

// What was found in text beside its documents.
struct TextFaults {
  uint64_t repaired = 0;      // lines with halves of surrogate pairs, for which U+FFFD was put
  uint64_t skipped = 0;       // lines and rows that were left out
  std::string first_skipped;  // what was wrong with the first of these

  [[nodiscard]] bool any() const { return repaired > 0 || skipped > 0; }
  // `later`: of text that stands behind.
  void add(const TextFaults& later);
};

// Calls `use` for the documents in a part of a text file, which begins and ends at the borders of lines. `first_line`
// gives the number of the part's first line, for messages; it is asked for only where there is one.
TextFaults for_each_document(std::string_view part, FileKind kind, const DocumentFormat& format,
                             const std::string& name, const std::function<uint64_t()>& first_line,
                             const std::function<void(const Document&)>& use);

// The same for the row groups of a Parquet file that begin at bytes [begin, end) of it.
TextFaults for_each_document(const ParquetFile& file, uint64_t begin, uint64_t end, const DocumentFormat& format,
                             const std::function<void(const Document&)>& use);

}  // namespace stepc
