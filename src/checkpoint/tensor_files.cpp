#include "checkpoint/tensor_files.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <system_error>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/model_shards.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
constexpr const char* kInfoKey = "DCP_SHARDING_INFO";
constexpr const char* kOffsetsKey = "saved_offsets";
constexpr const char* kShapeKey = "shape";
constexpr const char* kEnding = ".safetensors";

using Dims = std::vector<int64_t>;

// Of at most 64 dimensions, the first few.
std::string shown_dims(const Dims& dims) {
  constexpr size_t kShown = 6;
  const std::span<const int64_t> first(dims.data(), std::min(dims.size(), kShown));
  return str("[{}{}]", fmt::join(first, ", "), dims.size() > kShown ? ", ..." : "");
}

uint64_t elements_of(const Dims& sizes) {
  uint64_t elements = 1;
  for (const int64_t size : sizes) elements *= static_cast<uint64_t>(size);
  return elements;
}

Dims dims_of(const Json& entry, const char* key, size_t rank, const std::string& what) {
  const Json& list = json_array(entry, key, what);
  USER_CHECK(list.size() == rank, "{}: {} has {} entries, the slice {} dimensions", what, key, list.size(), rank);
  Dims dims;
  for (const Json& item : list) {
    USER_CHECK(item.is_number_unsigned() && item.get<uint64_t>() <= uint64_t{INT64_MAX},
               "{}: {}: {} is no whole number", what, key, shown(item));
    dims.push_back(item.get<int64_t>());
  }
  return dims;
}

// Slices come from cuts through whole dimensions: they are the cells of a grid. In the order of their offsets, the last
// dimension fastest, each cell must be there once. Sizes are bounded by the tensor's and so cannot overflow.
void check_cover(const TensorFiles::Tensor& tensor, const std::string& what) {
  const size_t rank = tensor.shape.size();
  std::vector<Dims> cuts(rank);
  for (const TensorFiles::Slice& slice : tensor.slices)
    for (size_t d = 0; d < rank; ++d) cuts[d].push_back(slice.box.offsets[d]);
  uint64_t cells = 1;
  for (size_t d = 0; d < rank; ++d) {
    std::sort(cuts[d].begin(), cuts[d].end());
    cuts[d].erase(std::unique(cuts[d].begin(), cuts[d].end()), cuts[d].end());
    USER_CHECK(cuts[d][0] == 0, "{}: no file has its elements before {} of dimension {}: a slice is missing", what,
               cuts[d][0], d);
    cuts[d].push_back(tensor.shape[d]);
    cells *= cuts[d].size() - 1;  // at most slices ^ rank, and stopped at the first that is too large
    USER_CHECK(cells <= tensor.slices.size(), "{}: its slices leave a hole: {} of {} or more are there", what,
               tensor.slices.size(), cells);
  }
  for (size_t i = 0; i < tensor.slices.size(); ++i) {
    const Box& box = tensor.slices[i].box;
    USER_CHECK(i == 0 || box.offsets != tensor.slices[i - 1].box.offsets, "{}: two slices overlap at {}", what,
               shown_dims(box.offsets));
    for (size_t d = 0; d < rank; ++d) {
      const auto next = std::upper_bound(cuts[d].begin(), cuts[d].end() - 1, box.offsets[d]);
      const int64_t end = box.offsets[d] + box.sizes[d];
      USER_CHECK(end == *next, "{}: the slice at {} ends at {} of dimension {}, and the next begins at {}: {}", what,
                 shown_dims(box.offsets), end, d, *next, end < *next ? "there is a hole" : "they overlap");
    }
  }
  USER_CHECK(cells == tensor.slices.size(), "{}: {} slices where {} cover it: they overlap", what, tensor.slices.size(),
             cells);
}

std::vector<fs::path> slice_files(const fs::path& directory, std::string_view which) {
  std::vector<std::pair<std::string, fs::path>> found;
  std::error_code ignored;
  for (fs::directory_iterator entry(directory, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    const auto file = parse_slice_file(name);
    if (file && file->which == which) found.emplace_back(name, entry->path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [name, path] : found) paths.push_back(std::move(path));
  return paths;
}

// One number of a name, with at least five digits.
std::optional<int64_t> take_number(std::string_view& text, bool at_end) {
  const size_t digits = at_end ? text.size() - std::min(text.size(), text.find_last_not_of("0123456789") + 1)
                               : text.find_first_not_of("0123456789");
  if (digits == std::string_view::npos || digits < 5) return std::nullopt;
  const std::string_view number = at_end ? text.substr(text.size() - digits) : text.substr(0, digits);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || value < 1) return std::nullopt;
  if (at_end)
    text.remove_suffix(digits);
  else
    text.remove_prefix(digits);
  return value;
}

bool take(std::string_view& text, std::string_view part, bool at_end) {
  if (at_end ? !text.ends_with(part) : !text.starts_with(part)) return false;
  if (at_end)
    text.remove_suffix(part.size());
  else
    text.remove_prefix(part.size());
  return true;
}

}  // namespace

std::string beginning_of_slice_files(int64_t rank) { return str("shard-{:05}-", rank + 1); }

std::string name_of(const SliceFile& file) {
  return str("{}{}-{:05}-of-{:05}{}", beginning_of_slice_files(file.rank), file.which, file.number + 1, file.count,
             kEnding);
}

std::optional<SliceFile> parse_slice_file(const std::string& name) {
  std::string_view rest = name;
  if (!take(rest, "shard-", false) || !take(rest, kEnding, true)) return std::nullopt;
  const auto rank = take_number(rest, false);
  if (!rank || !take(rest, "-", false)) return std::nullopt;
  const auto count = take_number(rest, true);
  if (!count || !take(rest, "-of-", true)) return std::nullopt;
  const auto number = take_number(rest, true);
  if (!number || !take(rest, "-", true)) return std::nullopt;
  SliceFile file{*rank - 1, std::string(rest), *number - 1, *count};
  return name_of(file) == name ? std::optional(file) : std::nullopt;
}

SafetensorsMetadata metadata_of_slices(const std::vector<std::string>& names, const std::vector<Box>& boxes,
                                       const std::vector<std::vector<int64_t>>& shapes, const std::string& mesh) {
  nlohmann::ordered_json info = nlohmann::ordered_json::object();
  for (size_t i = 0; i < names.size(); ++i) info[names[i]] = {{kOffsetsKey, boxes[i].offsets}, {kShapeKey, shapes[i]}};
  return {{kInfoKey, info.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}, {kMeshKey, mesh}};
}

uint64_t TensorFiles::Tensor::bytes() const { return elements_of(shape) * static_cast<uint64_t>(size_of(dtype)); }

TensorFiles::TensorFiles(const fs::path& directory, std::string_view which) {
  const fs::path single = directory / str("{}{}", which, kEnding);
  std::error_code ignored;
  const bool has_index = which == kModelFiles && fs::exists(directory / kIndexName, ignored);
  std::vector<fs::path> slices;
  if (!fs::exists(single, ignored) && !has_index) slices = slice_files(directory, which);
  if (!slices.empty()) {
    for (const fs::path& path : slices) readers_.emplace_back(path);
    for (size_t file = 0; file < readers_.size(); ++file) add_slices(file);
    for (Tensor& tensor : tensors_) {
      std::sort(tensor.slices.begin(), tensor.slices.end(),
                [](const Slice& a, const Slice& b) { return a.box.offsets < b.box.offsets; });
      check_cover(tensor, str("{}: tensor {}", directory.string(), in_quotes(tensor.name)));
    }
    std::sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  } else {
    if (has_index)
      readers_ = open_safetensors_model(directory);
    else
      readers_.emplace_back(single);
    for (size_t file = 0; file < readers_.size(); ++file)
      for (const TensorInfo& info : readers_[file].tensors())
        tensors_.push_back({info.name, info.dtype, info.shape, {{file, &info, {Dims(info.shape.size()), info.shape}}}});
  }
  by_name_.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
}

void TensorFiles::add_slices(size_t file) {
  const SafetensorsReader& reader = readers_[file];
  const std::string path = reader.path().string();
  const auto text = reader.metadata().find(kInfoKey);
  USER_CHECK(text != reader.metadata().end(), "{}: its __metadata__ lacks {}, which says of what it has slices", path,
             kInfoKey);
  const Json table = parse_json(text->second, path);
  USER_CHECK(table.is_object() && table.size() == reader.tensors().size(), "{}: {} has {} entries, the file {} tensors",
             path, kInfoKey, table.size(), reader.tensors().size());
  for (const TensorInfo& info : reader.tensors()) {
    const std::string what = str("{}: tensor {}", path, in_quotes(info.name));
    const Json& entry = json_object(table, info.name, str("{}: {}", path, kInfoKey));
    const size_t rank = info.shape.size();
    const Dims offsets = dims_of(entry, kOffsetsKey, rank, what), shape = dims_of(entry, kShapeKey, rank, what);
    for (size_t d = 0; d < rank; ++d)
      USER_CHECK(info.shape[d] <= shape[d] && offsets[d] <= shape[d] - info.shape[d],
                 "{}: a slice of {} at {} lies outside of its tensor of {}", what, shown_dims(info.shape),
                 shown_dims(offsets), shown_dims(shape));
    USER_CHECK(elements_of(info.shape) > 0 || info.shape == shape, "{}: an empty slice of a tensor of {}", what,
               shown_dims(shape));
    const auto [known, is_new] = by_name_.try_emplace(info.name, tensors_.size());
    if (is_new) tensors_.push_back({info.name, info.dtype, shape, {}});
    Tensor& tensor = tensors_[known->second];
    USER_CHECK(tensor.shape == shape && tensor.dtype == info.dtype,
               "{}: is {} of {} here, and {} of {} in another file", what, name_of(info.dtype), shown_dims(shape),
               name_of(tensor.dtype), shown_dims(tensor.shape));
    tensor.slices.push_back({file, &info, {offsets, info.shape}});
  }
}

const TensorFiles::Tensor* TensorFiles::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

namespace {

// Where in memory of a box's size, row by row, elements lie: strides, in elements.
Dims strides_of(const Dims& sizes) {
  Dims strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  return strides;
}

struct Copy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  Dims from_strides, to_strides, sizes;
  size_t item_bytes = 0;

  void run(size_t dim, int64_t from_at, int64_t to_at) const {
    // Rows that lie one after the other on both sides go at once.
    if (dim + 1 >= sizes.size()) {
      const auto bytes = (sizes.empty() ? 1 : static_cast<size_t>(sizes[dim])) * item_bytes;
      std::memcpy(to + static_cast<size_t>(to_at) * item_bytes, from + static_cast<size_t>(from_at) * item_bytes,
                  bytes);
      return;
    }
    for (int64_t i = 0; i < sizes[dim]; ++i) run(dim + 1, from_at + i * from_strides[dim], to_at + i * to_strides[dim]);
  }
};

}  // namespace

void TensorFiles::read(const Tensor& tensor, const Box& box, std::span<std::byte> to) const {
  const auto item_bytes = static_cast<size_t>(size_of(tensor.dtype));
  const size_t rank = tensor.shape.size();
  INTERNAL_CHECK(box.offsets.size() == rank && box.sizes.size() == rank, "a box of another rank");
  INTERNAL_CHECK_EQ(to.size(), elements_of(box.sizes) * item_bytes, "tensor {}", tensor.name);
  if (to.empty()) return;
  for (const Slice& slice : tensor.slices) {
    Copy copy{.to = to.data(),
              .from_strides = strides_of(slice.box.sizes),
              .to_strides = strides_of(box.sizes),
              .sizes = Dims(rank),
              .item_bytes = item_bytes};
    int64_t from_at = 0, to_at = 0;
    bool meets = true;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t begin = std::max(box.offsets[d], slice.box.offsets[d]);
      const int64_t end = std::min(box.offsets[d] + box.sizes[d], slice.box.offsets[d] + slice.box.sizes[d]);
      meets = meets && begin < end;
      copy.sizes[d] = end - begin;
      from_at += (begin - slice.box.offsets[d]) * copy.from_strides[d];
      to_at += (begin - box.offsets[d]) * copy.to_strides[d];
    }
    if (!meets) continue;
    copy.from = readers_[slice.file].bytes(*slice.info).data();
    // Some rows at a time, so that the file's own pages do not stand in memory beside all that is read of them.
    constexpr uint64_t kMost = 1 << 20;
    const int64_t rows = rank == 0 ? 1 : copy.sizes[0];
    const uint64_t row_bytes = elements_of(copy.sizes) * item_bytes / static_cast<uint64_t>(rows);
    const int64_t at_once = static_cast<int64_t>(std::max<uint64_t>(1, kMost / row_bytes));
    for (int64_t row = 0; row < rows; row += at_once) {
      if (rank > 0) copy.sizes[0] = std::min(at_once, rows - row);
      const int64_t from_row = rank == 0 ? 0 : row * copy.from_strides[0];
      const int64_t to_row = rank == 0 ? 0 : row * copy.to_strides[0];
      copy.run(0, from_at + from_row, to_at + to_row);
      readers_[slice.file].let_go(*slice.info);
    }
  }
}

}  // namespace stepc
