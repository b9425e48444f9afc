// A TensorBoard event file of scalars. Each record is an Event message in protocol-buffer encoding:
//
//   | length, u64 | masked CRC-32C of the length |
//   | Event {wall_time, step, Summary {{tag, simple_value}, ...}} | masked CRC-32C of the event |
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stepc::train {

using Scalars = std::vector<std::pair<std::string, double>>;  // tag, value

class EventFile {
 public:
  // Replaces what is there.
  explicit EventFile(const std::string& path);

  // `wall_time`: seconds since 1970. On disk when this returns, as far as a later crash of the process goes.
  void write(int64_t step, double wall_time, const Scalars& scalars);

 private:
  void write_record(std::string_view event);

  std::string path_;
  std::ofstream file_;
};

// CRC-32C (Castagnoli).
uint32_t crc32c(std::string_view bytes);

}  // namespace stepc::train
