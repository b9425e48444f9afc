#include "train/run/part_messages.h"

#include <algorithm>
#include <limits>
#include <string>

#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "base/files.h"

namespace stepc::train {

namespace {

constexpr const char* kWhat = "a snapshot's copy";
constexpr uint64_t kPiece = uint64_t{64} << 20;
constexpr uint64_t kMostText = 16 << 20;

at::Tensor tensor_of(std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())},
                       at::TensorOptions(at::kByte));
}

int next(int& count) { return count = count == std::numeric_limits<int>::max() ? 0 : count + 1; }

}  // namespace

PartMessages::PartMessages(const Ranks& ranks)
    : group_(ranks.apart("snapshots")),
      sent_(static_cast<size_t>(ranks.ranks())),
      received_(static_cast<size_t>(ranks.ranks())) {}

void PartMessages::send_bytes(std::span<const std::byte> bytes, int64_t to) {
  for (uint64_t at = 0; at < bytes.size(); at += kPiece)
    group_
        ->begin_send(kWhat, tensor_of(bytes.subspan(at, std::min(kPiece, bytes.size() - at))), to,
                     next(sent_.at(static_cast<size_t>(to))))
        .end();
}

void PartMessages::receive_bytes(std::span<std::byte> bytes, int64_t from) {
  for (uint64_t at = 0; at < bytes.size(); at += kPiece)
    group_
        ->begin_receive(kWhat, tensor_of(bytes.subspan(at, std::min(kPiece, bytes.size() - at))), from,
                        next(received_.at(static_cast<size_t>(from))))
        .end();
}

void PartMessages::send(const std::filesystem::path& directory, const ManifestFiles& files, int64_t to) {
  const std::string text = to_text(files);
  const uint64_t size = text.size();
  send_bytes(std::as_bytes(std::span(&size, 1)), to);
  send_bytes(std::as_bytes(std::span(text)), to);
  for (const auto& [name, file] : files) {
    const MappedFile mapped(directory / name);
    USER_CHECK(mapped.bytes().size() == file.bytes, "{}: it was changed", (directory / name).string());
    send_bytes(mapped.bytes(), to);
  }
}

ManifestFiles PartMessages::receive(SlotFiles& into, int64_t from) {
  uint64_t size = 0;
  receive_bytes(std::as_writable_bytes(std::span(&size, 1)), from);
  USER_CHECK(size <= kMostText, "snapshots: rank {} sends the names of its files in {} bytes", from, size);
  std::string text(size, '\0');
  receive_bytes(std::as_writable_bytes(std::span(text)), from);
  ManifestFiles files = parse_manifest_files(text);
  for (const auto& [name, file] : files) receive_bytes(into.make(name, file.bytes), from);
  return files;
}

}  // namespace stepc::train
