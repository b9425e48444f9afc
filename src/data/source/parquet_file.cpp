#include "data/source/parquet_file.h"

#include <algorithm>
#include <utility>

#include <arrow/api.h>
#include <arrow/io/memory.h>
#include <nlohmann/json.hpp>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include "base/check.h"

namespace stepc {

namespace {
constexpr int64_t kBatchRows = 64;
constexpr int64_t kMaxMemory = int64_t{2} << 30;  // that one reader may hold
constexpr uint64_t kMagicBytes = 4;               // before the first row group
constexpr uint64_t kTrailerBytes = 8;             // the footer's size and the magic, behind the footer

// Of what Arrow says, which may have several lines and names out of the file.
std::string one_line(std::string_view said) {
  constexpr size_t kMaxShown = 200;
  std::string line(said.substr(0, said.find('\n')).substr(0, kMaxShown));
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return line;
}

[[noreturn]] void unreadable(const std::string& name, std::string_view said) {
  user_error("{}: not readable as Parquet: {}", name, one_line(said));
}

// Whatever Arrow throws or returns as a failure becomes a UserError.
template <class Call>
auto guarded(const std::string& name, const Call& call) {
  try {
    return call();
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    unreadable(name, error.what());
  }
}

void expect_ok(const std::string& name, const arrow::Status& status) {
  if (!status.ok()) unreadable(name, status.message());
}
template <class T>
T value_of(const std::string& name, arrow::Result<T> result) {
  expect_ok(name, result.status());
  return std::move(result).ValueUnsafe();
}

bool is_text(const arrow::DataType& type) {
  if (type.id() != arrow::Type::DICTIONARY) return arrow::is_string(type.id()) || type.id() == arrow::Type::STRING_VIEW;
  return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
}

ParquetFile::ColumnKind kind_of_type(const arrow::DataType& type) {
  if (is_text(type)) return ParquetFile::ColumnKind::kText;
  const bool is_list = type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST;
  return is_list && type.field(0)->type()->id() == arrow::Type::STRUCT ? ParquetFile::ColumnKind::kChat
                                                                       : ParquetFile::ColumnKind::kOther;
}

template <class Array>
Json list_at(const Array& list, int64_t row);

// One value of an array, as the JSON that a line would have had in its place.
Json value_at(const arrow::Array& array, int64_t row) {
  using arrow::Type;
  if (array.IsNull(row)) return nullptr;
  switch (array.type_id()) {
    case Type::STRING:
      return static_cast<const arrow::StringArray&>(array).GetString(row);
    case Type::LARGE_STRING:
      return static_cast<const arrow::LargeStringArray&>(array).GetString(row);
    case Type::STRING_VIEW:
      return static_cast<const arrow::StringViewArray&>(array).GetString(row);
    case Type::BOOL:
      return static_cast<const arrow::BooleanArray&>(array).Value(row);
    case Type::INT32:
      return static_cast<const arrow::Int32Array&>(array).Value(row);
    case Type::INT64:
      return static_cast<const arrow::Int64Array&>(array).Value(row);
    case Type::DOUBLE:
      return static_cast<const arrow::DoubleArray&>(array).Value(row);
    case Type::LIST:
      return list_at(static_cast<const arrow::ListArray&>(array), row);
    case Type::LARGE_LIST:
      return list_at(static_cast<const arrow::LargeListArray&>(array), row);
    case Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      return value_at(*dictionary.dictionary(), dictionary.GetValueIndex(row));
    }
    case Type::STRUCT: {
      const auto& record = static_cast<const arrow::StructArray&>(array);
      Json object = Json::object();
      for (int i = 0; i < record.num_fields(); ++i)
        object[record.struct_type()->field(i)->name()] = value_at(*record.field(i), row);
      return object;
    }
    default:
      user_error("a value of type {} is not read; convert the column to .jsonl", one_line(array.type()->ToString()));
  }
}

template <class Array>
Json list_at(const Array& list, int64_t row) {
  Json values = Json::array();
  for (int64_t i = list.value_offset(row); i < list.value_offset(row + 1); ++i)
    values.push_back(value_at(*list.values(), i));
  return values;
}

void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const auto& child : field.children) add_leaves(child, leaves);
}

// What it opens belongs to it, and a bound on memory of its own. For one thread.
class Reader {
 public:
  Reader(const std::string& name, std::span<const std::byte> content,
         const std::shared_ptr<parquet::FileMetaData>& metadata) {
    const auto source = std::make_shared<arrow::io::BufferReader>(
        std::make_shared<arrow::Buffer>(reinterpret_cast<const uint8_t*>(content.data()), std::ssize(content)));
    parquet::ArrowReaderProperties properties(/*use_threads=*/false);
    properties.set_batch_size(kBatchRows);
    properties.set_pre_buffer(false);
    auto file = parquet::ParquetFileReader::Open(source, parquet::ReaderProperties(&memory_), metadata);
    reader_ = value_of(name, parquet::arrow::FileReader::Make(&memory_, std::move(file), properties));
  }
  parquet::arrow::FileReader* operator->() const { return reader_.get(); }

 private:
  // The system's allocator: Arrow's choice depends on the environment.
  arrow::ProxyMemoryPool counted_{arrow::system_memory_pool()};
  arrow::CappedMemoryPool memory_{&counted_, kMaxMemory};
  std::unique_ptr<parquet::arrow::FileReader> reader_;
};
}  // namespace

struct ParquetFile::Impl {
  Impl(std::string file_name, std::span<const std::byte> file_content)
      : name(std::move(file_name)), content(file_content) {
    constexpr uint64_t kLeast = kMagicBytes + kTrailerBytes;
    if (content.size() < kLeast) unreadable(name, str("it has {} bytes, the least is {}", content.size(), kLeast));
    guarded(name, [&] {
      opened = std::make_unique<const Reader>(name, content, nullptr);
      const Reader& reader = *opened;
      metadata = reader->parquet_reader()->metadata();
      footer_begin = content.size() - kTrailerBytes - metadata->size();
      for (const auto& field : reader->manifest().schema_fields) {
        Column column{field.field->name(), field.field->type(), {}};
        add_leaves(field, column.leaves);
        columns.push_back(std::move(column));
      }
      find_row_groups();
    });
  }

  struct Column {
    std::string name;
    std::shared_ptr<arrow::DataType> type;
    std::vector<int> leaves;
  };
  struct RowGroup {
    int index;
    uint64_t first_row;  // from 0
  };

  void find_row_groups() {
    uint64_t row = 0, end = kMagicBytes;
    for (int index = 0; index < metadata->num_row_groups(); ++index) {
      const auto group = metadata->RowGroup(index);
      if (group->num_rows() == 0) continue;
      USER_CHECK(group->num_rows() > 0, "{}: row group {} has {} rows", name, index, group->num_rows());
      const auto [first, last] = place_of(*group, index);
      USER_CHECK(first >= end, "{}: row group {} begins in the one before; write the file again", name, index);
      row_groups.push_back({index, row});
      begins.push_back(first);
      row += static_cast<uint64_t>(group->num_rows());
      end = last;
    }
  }

  [[nodiscard]] std::pair<uint64_t, uint64_t> place_of(const parquet::RowGroupMetaData& group, int index) const {
    uint64_t first = footer_begin, last = 0;
    for (int i = 0; i < group.num_columns(); ++i) {
      const auto chunk = group.ColumnChunk(i);
      int64_t begin = chunk->data_page_offset();
      if (chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0)
        begin = std::min(begin, chunk->dictionary_page_offset());
      const int64_t size = chunk->total_compressed_size();
      USER_CHECK(begin >= 0 && size >= 0 && static_cast<uint64_t>(begin) <= footer_begin &&
                     static_cast<uint64_t>(size) <= footer_begin - static_cast<uint64_t>(begin),
                 "{}: row group {} lies outside of the file: it is damaged or cut short", name, index);
      first = std::min(first, static_cast<uint64_t>(begin));
      last = std::max(last, static_cast<uint64_t>(begin + size));
    }
    return {first, last};
  }

  [[nodiscard]] const Column* find(const std::string& column) const {
    const auto is_it = [&](const Column& other) { return other.name == column; };
    const auto found = std::ranges::find_if(columns, is_it);
    if (found == columns.end()) return nullptr;
    USER_CHECK(std::find_if(found + 1, columns.end(), is_it) == columns.end(), "{}: two columns are named {}", name,
               in_quotes(column));
    return &*found;
  }

  // For messages.
  [[nodiscard]] std::string column_names() const {
    constexpr size_t kMaxShown = 10;
    std::vector<std::string> names;
    for (const Column& column : columns) {
      if (names.size() == kMaxShown) {
        names.emplace_back("...");
        break;
      }
      names.push_back(in_quotes(column.name));
    }
    return str("{}", fmt::join(names, ", "));
  }

  [[nodiscard]] const Column& readable(const std::string& name_of_column) const {
    const Column* column = find(name_of_column);
    USER_CHECK(column, "{}: no column {}; its columns: {}", name, in_quotes(name_of_column), column_names());
    USER_CHECK(kind_of_type(*column->type) != ColumnKind::kOther,
               "{}: column {} is {}, neither text nor chat messages; its columns: {}", name, in_quotes(name_of_column),
               one_line(column->type->ToString()), column_names());
    return *column;
  }

  std::string name;
  std::span<const std::byte> content;
  std::unique_ptr<const Reader> opened;  // the metadata uses its memory
  std::shared_ptr<parquet::FileMetaData> metadata;
  uint64_t footer_begin = 0;
  std::vector<Column> columns;
  std::vector<RowGroup> row_groups;  // that have rows
  std::vector<uint64_t> begins;      // of each of them
};

ParquetFile::ParquetFile(std::string name, std::span<const std::byte> content)
    : impl_(std::make_unique<const Impl>(std::move(name), content)) {}
ParquetFile::~ParquetFile() = default;

ParquetFile::ColumnKind ParquetFile::kind_of(const std::string& column) const {
  const auto* found = impl_->find(column);
  return found ? kind_of_type(*found->type) : ColumnKind::kMissing;
}

const std::string& ParquetFile::name() const { return impl_->name; }
const std::vector<uint64_t>& ParquetFile::row_group_begins() const { return impl_->begins; }
std::span<const std::byte> ParquetFile::footer() const { return impl_->content.subspan(impl_->footer_begin); }

void ParquetFile::for_each_value(const std::string& column_name, uint64_t begin, uint64_t end,
                                 const std::function<void(uint64_t row, const Json& value)>& use) const {
  const std::string& name = impl_->name;
  const Impl::Column& column = impl_->readable(column_name);
  const auto index_of = [&](uint64_t byte) {
    return static_cast<size_t>(std::ranges::lower_bound(impl_->begins, byte) - impl_->begins.begin());
  };
  for (size_t i = index_of(begin); i < index_of(end); ++i) {
    const int group = impl_->row_groups[i].index;
    uint64_t row = impl_->row_groups[i].first_row;
    const auto next_batch = [&](arrow::RecordBatchReader& batches) {
      return guarded(name, [&] {
        auto batch = value_of(name, batches.Next());
        if (batch) {
          const arrow::Status status = batch->ValidateFull();  // the text's UTF-8 too
          USER_CHECK(status.ok(), "{}: a row from {} to {} is damaged: {}", name, row + 1,
                     row + static_cast<uint64_t>(batch->num_rows()), one_line(status.message()));
        }
        return batch;
      });
    };
    const auto reader = guarded(name, [&] { return std::make_unique<Reader>(name, impl_->content, impl_->metadata); });
    const auto batches =
        guarded(name, [&] { return value_of(name, (*reader)->GetRecordBatchReader({group}, column.leaves)); });
    while (const auto batch = next_batch(*batches))
      for (int64_t i_row = 0; i_row < batch->num_rows(); ++i_row) {
        ++row;
        Json value;
        try {
          value = value_at(*batch->column(0), i_row);
        } catch (const UserError& error) {
          user_error("{}: row {}: {}", name, row, error.what());
        }
        use(row, value);
      }
  }
}

}  // namespace stepc
