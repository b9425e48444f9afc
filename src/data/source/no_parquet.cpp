// What a build without Arrow has in place of parquet_file.cpp.
#include "base/check.h"
#include "data/source/parquet_file.h"

namespace stepc {

struct ParquetFile::Impl {
  std::string name;
  std::vector<uint64_t> row_group_begins;
};

ParquetFile::ParquetFile(std::string name, std::span<const std::byte> /*content*/) {
  user_error(
      "{}: this build reads no Parquet: install the Python package pyarrow into .venv and build again, or convert the "
      "column to .jsonl",
      name);
}
ParquetFile::~ParquetFile() = default;

ParquetFile::ColumnKind ParquetFile::kind_of(const std::string& /*column*/) const { return ColumnKind::kMissing; }
const std::string& ParquetFile::name() const { return impl_->name; }
const std::vector<uint64_t>& ParquetFile::row_group_begins() const { return impl_->row_group_begins; }
std::span<const std::byte> ParquetFile::footer() const { return {}; }
void ParquetFile::for_each_value(const std::string& /*column*/, uint64_t /*begin*/, uint64_t /*end*/,
                                 const std::function<void(uint64_t row, const Json& value)>& /*use*/) const {}

}  // namespace stepc
