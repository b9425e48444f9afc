// One column of a Parquet file, row by row, through Apache Arrow; a build without Arrow (no_parquet.cpp) has the same
// class and says so. Nothing of Arrow is seen outside of the .cpp file.
//
//   [ row group | row group | ... | footer ]
//
// Row groups with rows lie one after another; a file is read by those that begin in a byte range. Only the batch of
// rows at hand and the pages that it comes from are in memory. A file is trusted in nothing: whatever is wrong with it
// is a UserError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"

namespace stepc {

class ParquetFile {
 public:
  // Reads the footer. `content` is the whole file, and outlives this; `name` is for messages.
  ParquetFile(std::string name, std::span<const std::byte> content);
  ~ParquetFile();
  ParquetFile(const ParquetFile&) = delete;
  ParquetFile& operator=(const ParquetFile&) = delete;

  enum class ColumnKind { kMissing, kText, kChat, kOther };  // kChat: lists of records
  [[nodiscard]] ColumnKind kind_of(const std::string& column) const;

  [[nodiscard]] const std::string& name() const;
  // Where the row groups that have rows begin, ascending.
  [[nodiscard]] const std::vector<uint64_t>& row_group_begins() const;
  // What says how the rest is read.
  [[nodiscard]] std::span<const std::byte> footer() const;

  // The values of a column, of text or of chats, in the row groups that begin in [begin, end). Rows count from 1
  // through the file. May be called from several threads.
  void for_each_value(const std::string& column, uint64_t begin, uint64_t end,
                      const std::function<void(uint64_t row, const Json& value)>& use) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace stepc
