// What a reader says of a Parquet file of a thousand bytes: its columns and row groups.
#include <array>

#include <nlohmann/json.hpp>

#include "data/source/parquet_file.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  return fuzz_one([&] {
    std::array<std::byte, 1000> content = {};
    content[content.size() - 8] = std::byte{100};  // of its footer
    const ParquetLayout layout = parquet_layout(parse_json(fuzz_text(data, size), "a.parquet"), content, "a.parquet");
    uint64_t row = 0, begin = 4;
    for (size_t i = 0; i < layout.row_groups.size(); ++i) {
      if (layout.row_groups[i].first_row != row || layout.row_groups[i].rows == 0) std::abort();
      if (layout.row_group_begins[i] < begin || layout.row_group_begins[i] > 892) std::abort();
      row += layout.row_groups[i].rows;
      begin = layout.row_group_begins[i];
    }
    if (row > INT64_MAX) std::abort();
  });
}
