#include "train/report/events.h"

#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "base/check.h"

namespace stepc::train {
namespace {

// The fields of TensorFlow's event.proto and summary.proto that are written here.
constexpr uint32_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5;
constexpr uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2;
enum class Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

static_assert(std::endian::native == std::endian::little, "records and fixed fields are little-endian");

template <class Value>
std::string bytes_of(Value value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string varint(uint64_t value) {
  constexpr uint64_t kMore = 0x80;
  std::string bytes;
  for (; value >= kMore; value >>= 7) bytes += static_cast<char>(value | kMore);
  return bytes + static_cast<char>(value);
}

std::string field(uint32_t number, Wire wire, const std::string& value) {
  const std::string key = varint(uint64_t{number} << 3 | static_cast<uint32_t>(wire));
  return wire == Wire::kBytes ? key + varint(value.size()) + value : key + value;
}

// Masks the checksum, because a checksum of data that contains checksums would be weak.
uint32_t masked(uint32_t crc) {
  constexpr uint32_t kMask = 0xA282EAD8;
  return std::rotr(crc, 15) + kMask;
}

constexpr std::array<uint32_t, 256> crc_table() {
  constexpr uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kReversedPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

EventFile::EventFile(const std::string& path) : path_(path), file_(path, std::ios::binary | std::ios::trunc) {
  USER_CHECK(file_.good(), "{}: cannot be written", path_);
  write_record(field(kEventWallTime, Wire::kFixed64, bytes_of(0.0)) +
               field(kEventFileVersion, Wire::kBytes, "brain.Event:2"));
}

void EventFile::write(int64_t step, double wall_time, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += field(
        kSummaryValue, Wire::kBytes,
        field(kValueTag, Wire::kBytes, tag) + field(kValueSimple, Wire::kFixed32, bytes_of(static_cast<float>(value))));
  }
  write_record(field(kEventWallTime, Wire::kFixed64, bytes_of(wall_time)) +
               field(kEventStep, Wire::kVarint, varint(static_cast<uint64_t>(step))) +
               field(kEventSummary, Wire::kBytes, summary));
}

void EventFile::write_record(std::string_view event) {
  const std::string length = bytes_of(uint64_t{event.size()});
  file_ << length << bytes_of(masked(crc32c(length))) << event << bytes_of(masked(crc32c(event))) << std::flush;
  if (!file_.good()) throw std::runtime_error(str("{}: cannot be written: is the disk full?", path_));
}

}  // namespace stepc::train
