// One column of a Parquet file, row by row, through a Python that has pyarrow (data/source/parquet_process.h).
//
//   [ row group | row group | ... | footer ]
//
// Row groups with rows lie one after another; a file is read by those that begin in a byte range. Neither a file nor
// what its reader says of it is trusted in anything: whatever is wrong is a UserError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/source/parquet_process.h"

namespace stepc {

// What is known of a file beside its rows.
struct ParquetLayout {
  enum class ColumnKind { kText, kChat, kOther };  // kChat: lists of records
  struct Column {
    std::string name;
    ColumnKind kind = ColumnKind::kOther;
    std::string type;  // in Arrow's words
  };
  struct RowGroup {
    int index = 0;
    uint64_t first_row = 0, rows = 0;  // from 0
  };
  std::vector<Column> columns;
  std::vector<RowGroup> row_groups;        // that have rows
  std::vector<uint64_t> row_group_begins;  // bytes, ascending
  uint64_t footer_begin = 0;
};
// Of what a reader says of a file (ParquetProcess::layout()); `name` is for messages.
ParquetLayout parquet_layout(const Json& said, std::span<const std::byte> content, const std::string& name);

class ParquetFile {
 public:
  using ColumnKind = ParquetLayout::ColumnKind;

  // Reads the footer. `name`: the file's path; `content` is the whole file, and outlives this.
  ParquetFile(std::string name, std::span<const std::byte> content, std::shared_ptr<ParquetReaders> readers);

  // Nothing where there is no such column.
  [[nodiscard]] std::optional<ColumnKind> kind_of(const std::string& column) const;

  [[nodiscard]] const std::string& name() const { return name_; }
  // Where the row groups that have rows begin, ascending.
  [[nodiscard]] const std::vector<uint64_t>& row_group_begins() const { return layout_.row_group_begins; }
  // What says how the rest is read.
  [[nodiscard]] std::span<const std::byte> footer() const { return content_.subspan(layout_.footer_begin); }

  // The values of a column, of text or of chats, in the row groups that begin in [begin, end). Rows count from 1
  // through the file. May be called from several threads.
  void for_each_value(const std::string& column, uint64_t begin, uint64_t end,
                      const std::function<void(uint64_t row, const Json& value)>& use) const;

 private:
  [[nodiscard]] const ParquetLayout::Column* find(const std::string& column) const;
  void check_readable(const std::string& column) const;

  std::string name_;
  std::span<const std::byte> content_;
  std::shared_ptr<ParquetReaders> readers_;
  ParquetLayout layout_;
};

}  // namespace stepc
