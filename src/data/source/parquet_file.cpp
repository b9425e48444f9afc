#include "data/source/parquet_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace stepc {

namespace {
constexpr uint64_t kMagicBytes = 4;    // before the first row group
constexpr uint64_t kTrailerBytes = 8;  // the footer's size and the magic, behind the footer
constexpr int64_t kMost = INT64_MAX;

uint64_t footer_begin_of(std::span<const std::byte> content, const std::string& name) {
  uint32_t bytes = 0;
  std::memcpy(&bytes, content.data() + content.size() - kTrailerBytes, sizeof(bytes));
  USER_CHECK(bytes <= content.size() - kMagicBytes - kTrailerBytes,
             "{}: not readable as Parquet: its footer would have {} bytes, and the file has {}", name, bytes,
             content.size());
  return content.size() - kTrailerBytes - bytes;
}

ParquetLayout::Column column_of(const Json& said, const std::string& name) {
  using Kind = ParquetLayout::ColumnKind;
  const auto is_text = [](const Json& one) { return one.is_string(); };
  USER_CHECK(said.is_array() && said.size() == 3 && std::ranges::all_of(said, is_text), "{}: its reader said {}", name,
             shown(said));
  const std::string& kind = said[1].get_ref<const std::string&>();
  return {said[0],
          kind == "text"   ? Kind::kText
          : kind == "chat" ? Kind::kChat
                           : Kind::kOther,
          one_line(said[2].get_ref<const std::string&>())};
}

// The bytes from its first column chunk to the end of its last.
std::pair<uint64_t, uint64_t> place_of(const Json& chunks, uint64_t footer_begin, size_t index,
                                       const std::string& name) {
  uint64_t first = footer_begin, last = 0;
  for (const Json& chunk : chunks) {
    const bool is_place =
        chunk.is_array() && chunk.size() == 2 && chunk[0].is_number_integer() && chunk[1].is_number_integer();
    USER_CHECK(is_place, "{}: its reader said {}", name, shown(chunk));
    const auto begin = chunk[0].get<int64_t>(), size = chunk[1].get<int64_t>();
    USER_CHECK(begin >= 0 && size >= 0 && static_cast<uint64_t>(begin) <= footer_begin &&
                   static_cast<uint64_t>(size) <= footer_begin - static_cast<uint64_t>(begin),
               "{}: row group {} lies outside of the file: it is damaged or cut short", name, index);
    first = std::min(first, static_cast<uint64_t>(begin));
    last = std::max(last, static_cast<uint64_t>(begin + size));
  }
  return {first, last};
}

// In printable characters, and not too many: the names come out of the file.
std::string column_names(const std::vector<ParquetLayout::Column>& columns) {
  constexpr size_t kMaxShown = 10;
  std::vector<std::string> names;
  for (const ParquetLayout::Column& column : columns) {
    if (names.size() == kMaxShown) {
      names.emplace_back("...");
      break;
    }
    names.push_back(in_quotes(column.name));
  }
  return str("{}", fmt::join(names, ", "));
}
}  // namespace

ParquetLayout parquet_layout(const Json& said, std::span<const std::byte> content, const std::string& name) {
  ParquetLayout layout;
  layout.footer_begin = footer_begin_of(content, name);
  for (const Json& column : json_array(said, "columns", name)) layout.columns.push_back(column_of(column, name));
  uint64_t row = 0, end = kMagicBytes;
  const Json& groups = json_array(said, "groups", name);
  for (size_t index = 0; index < groups.size(); ++index) {
    const Json& group = groups[index];
    USER_CHECK(group.is_array() && group.size() == 2 && group[0].is_number_integer() && group[1].is_array(),
               "{}: its reader said {}", name, shown(group));
    const auto rows = group[0].get<int64_t>();
    if (rows == 0) continue;
    USER_CHECK(rows > 0 && static_cast<uint64_t>(rows) <= kMost - row, "{}: row group {} has {} rows", name, index,
               rows);
    const auto [first, last] = place_of(group[1], layout.footer_begin, index, name);
    USER_CHECK(first >= end, "{}: row group {} begins in the one before; write the file again", name, index);
    layout.row_groups.push_back({static_cast<int>(index), row, static_cast<uint64_t>(rows)});
    layout.row_group_begins.push_back(first);
    row += static_cast<uint64_t>(rows);
    end = last;
  }
  return layout;
}

ParquetFile::ParquetFile(std::string name, std::span<const std::byte> content, std::shared_ptr<ParquetReaders> readers)
    : name_(std::move(name)), content_(content), readers_(std::move(readers)) {
  INTERNAL_CHECK(readers_ != nullptr);
  constexpr uint64_t kLeast = kMagicBytes + kTrailerBytes;
  USER_CHECK(content.size() >= kLeast, "{}: not readable as Parquet: it has {} bytes, the least is {}", name_,
             content.size(), kLeast);
  const Json said = readers_->with(name_, [&](ParquetProcess& process) { return process.layout(name_); });
  layout_ = parquet_layout(said, content, name_);
}

const ParquetLayout::Column* ParquetFile::find(const std::string& column) const {
  const auto is_it = [&](const ParquetLayout::Column& other) { return other.name == column; };
  const auto found = std::ranges::find_if(layout_.columns, is_it);
  if (found == layout_.columns.end()) return nullptr;
  USER_CHECK(std::find_if(found + 1, layout_.columns.end(), is_it) == layout_.columns.end(),
             "{}: two columns are named {}", name_, in_quotes(column));
  return &*found;
}

std::optional<ParquetFile::ColumnKind> ParquetFile::kind_of(const std::string& column) const {
  const auto* found = find(column);
  return found ? std::optional(found->kind) : std::nullopt;
}

void ParquetFile::check_readable(const std::string& column) const {
  const auto* found = find(column);
  USER_CHECK(found, "{}: no column {}; its columns: {}", name_, in_quotes(column), column_names(layout_.columns));
  USER_CHECK(found->kind != ColumnKind::kOther, "{}: column {} is {}, neither text nor chat messages; its columns: {}",
             name_, in_quotes(column), found->type, column_names(layout_.columns));
}

void ParquetFile::for_each_value(const std::string& column, uint64_t begin, uint64_t end,
                                 const std::function<void(uint64_t row, const Json& value)>& use) const {
  check_readable(column);
  const auto index_of = [&](uint64_t byte) {
    return static_cast<size_t>(std::ranges::lower_bound(row_group_begins(), byte) - row_group_begins().begin());
  };
  for (size_t i = index_of(begin); i < index_of(end); ++i) {
    const ParquetLayout::RowGroup& group = layout_.row_groups[i];
    uint64_t rows = 0;
    readers_->with(name_, [&](ParquetProcess& process) {
      process.for_each_value(name_, column, group.index, group.first_row + 1, [&](uint64_t row, const Json& value) {
        USER_CHECK(++rows <= group.rows, "{}: row group {} has more than its {} rows", name_, group.index, group.rows);
        use(row, value);
      });
    });
    USER_CHECK(rows == group.rows, "{}: row group {} has {} rows, and its footer says {}", name_, group.index, rows,
               group.rows);
  }
}

}  // namespace stepc
