#include "engine/ranks/sharded_state.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "base/check.h"
#include "checkpoint/tensors.h"

namespace stepc {

namespace {

bool is_range(const std::vector<int64_t>& places) {
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i] != places[0] + static_cast<int64_t>(i)) return false;
  return !places.empty() && places[0] >= 0;
}

at::Tensor index_of(const std::vector<int64_t>& places, const c10::Device& device) {
  return at::tensor(places, at::kLong).to(device);
}

// Puts a rank's part where it belongs in the whole; padding is dropped.
void place(const at::Tensor& part, const PartOf& of, const Mesh& mesh, int64_t rank, const at::Tensor& whole) {
  at::Tensor from = part, to = whole;
  std::vector<std::pair<int64_t, at::Tensor>> scattered;
  for (size_t d = 0; d < of.shape.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    std::vector<int64_t> places = places_of(of.sharding.dims[d], of.shape[d], mesh, rank);
    std::vector<int64_t> kept;
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i] >= 0) kept.push_back(static_cast<int64_t>(i));
    if (kept.size() < places.size()) {
      std::erase(places, -1);
      from = from.index_select(dim, index_of(kept, from.device()));
    }
    if (places.empty()) return;
    if (is_range(places))
      to = to.narrow(dim, places[0], static_cast<int64_t>(places.size()));
    else
      scattered.emplace_back(dim, index_of(places, to.device()));
  }
  if (scattered.empty()) {
    to.copy_(from);
    return;
  }
  std::vector<at::indexing::TensorIndex> indices;
  for (int64_t d = 0; d < to.dim(); ++d) {
    const auto found = std::ranges::find(scattered, d, &std::pair<int64_t, at::Tensor>::first);
    const at::Tensor index = found == scattered.end()
                                 ? at::arange(to.size(d), at::TensorOptions(to.device()).dtype(at::kLong))
                                 : found->second;
    std::vector<int64_t> shape(static_cast<size_t>(to.dim()), 1);
    shape[static_cast<size_t>(d)] = index.numel();
    indices.emplace_back(index.view(shape));
  }
  to.index_put_(indices, from);
}

}  // namespace

at::Tensor part_of(const at::Tensor& whole, const Sharding& sharding, const Mesh& mesh, int64_t rank) {
  INTERNAL_CHECK(sharding.partial.empty(), "a part of a partial tensor");
  at::Tensor part = whole;
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    if (sharding.dims[d].empty()) continue;
    const auto dim = static_cast<int64_t>(d);
    std::vector<int64_t> places = places_of(sharding.dims[d], whole.size(dim), mesh, rank);
    std::ranges::replace(places, -1, whole.size(dim) - 1);
    part = is_range(places) ? part.narrow(dim, places[0], static_cast<int64_t>(places.size()))
                            : part.index_select(dim, index_of(places, part.device()));
  }
  return part;
}

ShardedState::ShardedState(Mesh mesh, std::shared_ptr<Ranks> ranks)
    : mesh_(std::move(mesh)), ranks_(std::move(ranks)) {}

void ShardedState::add(const Schedule& schedule) {
  INTERNAL_CHECK(schedule.mesh == mesh_, "a step of the mesh {}", to_text(schedule.mesh));
  for (const ScheduleInput& input : schedule.inputs) {
    if (!is_of_program(input.kind) || input.kind == InputKind::kBatch) continue;
    const std::optional<Owner> owner = owner_of(input.kind);
    USER_CHECK(owner && input.kind != InputKind::kIncoming && input.kind != InputKind::kHost,
               "the step takes {} '{}', and on several ranks it can take parameters, gradients, buffers, optimizer "
               "state and its batch alone",
               name_of(input.kind), input.key);
    const Operand& operand = schedule.operands[input.operand.index()];
    Part part;
    part.of = input.part ? *input.part : PartOf{operand.sizes, Sharding::whole(operand.sizes.size())};
    part.type = scalar_type_of(operand.dtype);
    if (schedule.buffers[operand.buffer.index()].space == Space::kDevice) part.device = c10::Device(schedule.device);
    part.sizes = operand.sizes;
    part.strides = operand.strides;
    const auto [known, is_new] = parts_.try_emplace({*owner, input.key}, part);
    const Part& before = known->second;
    USER_CHECK(is_new || (before.of == part.of && before.type == part.type && before.strides == part.strides &&
                          before.device == part.device),
               "{} '{}' lies on the ranks as {} in one part of the step, and as {} in another", name_of(input.kind),
               input.key, to_text(before.of.sharding, before.of.shape, mesh_),
               to_text(part.of.sharding, part.of.shape, mesh_));
  }
}

void ShardedState::take_memory(Part& part) {
  if (part.tensor.defined()) return;
  part.tensor = at::empty_strided(part.sizes, part.strides, at::TensorOptions(part.device).dtype(part.type));
  part.tensor.zero_();
}

void ShardedState::load() {
  for (auto& [name, part] : parts_) take_memory(part);
}

const ShardedState::Part& ShardedState::find(Owner owner, const std::string& key) const {
  const auto found = parts_.find({owner, key});
  INTERNAL_CHECK(found != parts_.end(), "the ranks hold no {} '{}'", name_of(owner), key);
  return found->second;
}

void ShardedState::put(Owner owner, const std::string& key, const at::Tensor& whole) {
  const auto found = parts_.find({owner, key});
  if (found == parts_.end()) return;
  Part& part = found->second;
  USER_CHECK(whole.sizes() == c10::IntArrayRef(part.of.shape), "{} '{}' has the shape [{}], the step wants [{}]",
             name_of(owner), key, fmt::join(whole.sizes(), ", "), fmt::join(part.of.shape, ", "));
  take_memory(part);
  part.tensor.copy_(part_of(whole, part.of.sharding, mesh_, ranks_->rank()));
}

void ShardedState::fill(Owner owner, const std::string& key, double number) {
  Part& part = parts_.at({owner, key});
  take_memory(part);
  part.tensor.fill_(number);
}

bool ShardedState::is_whole(Owner owner, const std::string& key, const at::Tensor& tensor) const {
  const Part& part = find(owner, key);
  return part.of.sharding.is_whole() && part.type == tensor.scalar_type() && part.device == tensor.device() &&
         tensor.sizes() == part.sizes && tensor.strides() == part.strides;
}

void ShardedState::put(Owner owner, const std::string& key, const TensorFiles& files,
                       const TensorFiles::Tensor& tensor) {
  const auto found = parts_.find({owner, key});
  if (found == parts_.end()) return;
  Part& part = found->second;
  USER_CHECK(tensor.shape == part.of.shape, "{} '{}' has the shape [{}], the step wants [{}]", name_of(owner), key,
             fmt::join(tensor.shape, ", "), fmt::join(part.of.shape, ", "));
  take_memory(part);
  // The smallest box that contains the part. The part is then cut from the box as from the whole.
  Box box{std::vector<int64_t>(tensor.shape.size()), tensor.shape};
  std::vector<std::vector<int64_t>> inside(tensor.shape.size());
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const Pieces& pieces = part.of.sharding.dims[d];
    if (pieces.empty() || tensor.shape[d] == 0) continue;
    inside[d] = places_of(pieces, tensor.shape[d], mesh_, ranks_->rank());
    std::ranges::replace(inside[d], -1, tensor.shape[d] - 1);
    const auto [least, most] = std::ranges::minmax(inside[d]);
    box.offsets[d] = least;
    box.sizes[d] = most - least + 1;
    for (int64_t& place : inside[d]) place -= least;
  }
  at::Tensor read = read_tensor(files, tensor, box);
  for (size_t d = 0; d < inside.size(); ++d) {
    const std::vector<int64_t>& places = inside[d];
    if (places.empty() || (is_range(places) && std::ssize(places) == read.size(static_cast<int64_t>(d)))) continue;
    read = read.index_select(static_cast<int64_t>(d), index_of(places, read.device()));
  }
  part.tensor.copy_(read);
}

namespace {

// A range of elements that are contiguous in the whole and in the part.
struct Range {
  int64_t whole = 0, part = 0, size = 0;
};

std::vector<Range> ranges_of(const Pieces& pieces, int64_t size, const Mesh& mesh, int64_t rank) {
  if (pieces.empty()) return {{0, 0, size}};
  std::vector<Range> ranges;
  const std::vector<int64_t> places = places_of(pieces, size, mesh, rank);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] < 0) continue;  // padding
    const auto at = static_cast<int64_t>(i);
    if (!ranges.empty() && ranges.back().whole + ranges.back().size == places[i] &&
        ranges.back().part + ranges.back().size == at)
      ++ranges.back().size;
    else
      ranges.push_back({places[i], at, 1});
  }
  return ranges;
}

}  // namespace

uint64_t ShardedState::Slice::elements() const {
  uint64_t elements = 1;
  for (const int64_t size : box.sizes) elements *= static_cast<uint64_t>(size);
  return elements;
}

std::vector<ShardedState::Slice> ShardedState::slices(Owner owner, const std::string& key, size_t turn) const {
  const std::vector<int64_t> same = holders(owner, key, ranks_->rank());
  if (same[turn % same.size()] != ranks_->rank()) return {};
  return held(owner, key);
}

std::vector<std::pair<Owner, std::string>> ShardedState::names() const {
  std::vector<std::pair<Owner, std::string>> names;
  for (const auto& [name, part] : parts_) names.push_back(name);
  return names;
}

std::vector<int64_t> ShardedState::holders(Owner owner, const std::string& key, int64_t rank) const {
  const PartOf& of = find(owner, key).of;
  INTERNAL_CHECK(of.sharding.partial.empty(), "who holds the same of partial sums was asked for");
  std::vector<Axis> repeated;
  for (Axis axis = 0; axis < mesh_.axes.size(); ++axis)
    if (!of.sharding.splits(axis)) repeated.push_back(axis);
  return group_of(mesh_, repeated, rank);
}

std::vector<ShardedState::Slice> ShardedState::held(Owner owner, const std::string& key) const {
  const PartOf& of = find(owner, key).of;
  std::vector<Slice> slices = {{of.shape, {{}, {}}, {}}};
  for (size_t d = 0; d < of.shape.size(); ++d) {
    std::vector<Slice> longer;
    for (const Slice& slice : slices)
      for (const Range& range : ranges_of(of.sharding.dims[d], of.shape[d], mesh_, ranks_->rank())) {
        Slice& one = longer.emplace_back(slice);
        one.box.offsets.push_back(range.whole);
        one.box.sizes.push_back(range.size);
        one.inside.push_back(range.part);
      }
    slices = std::move(longer);
  }
  return slices;
}

at::Tensor ShardedState::window(Owner owner, const std::string& key, const Slice& slice) const {
  at::Tensor window = part(owner, key);
  for (size_t d = 0; d < slice.inside.size(); ++d)
    window = window.narrow(static_cast<int64_t>(d), slice.inside[d], slice.box.sizes[d]);
  return window;
}

uint64_t ShardedState::element_bytes(Owner owner, const std::string& key) const {
  return c10::elementSize(find(owner, key).type);
}

uint64_t ShardedState::whole_bytes(Owner owner, const std::string& key) const {
  uint64_t bytes = element_bytes(owner, key);
  for (const int64_t size : find(owner, key).of.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

std::optional<std::vector<int64_t>> ShardedState::split_dims(Owner owner, const std::string& key) const {
  const PartOf& of = find(owner, key).of;
  std::vector<int64_t> dims(mesh_.axes.size(), -1);
  for (size_t d = 0; d < of.shape.size(); ++d) {
    const Pieces& pieces = of.sharding.dims[d];
    if (pieces.empty()) continue;
    std::vector<Axis> axes;
    for (const Piece& piece : pieces) axes.insert(axes.end(), piece.axes.begin(), piece.axes.end());
    // Over several axes DTensor rounds along each of them.
    const Piece once{of.shape[d], axes};
    if (pieces != canonical({once}, mesh_) || !std::ranges::is_sorted(axes) ||
        (axes.size() > 1 && !is_even(once, mesh_)))
      return std::nullopt;
    for (const Axis axis : axes) dims[axis] = static_cast<int64_t>(d);
  }
  return dims;
}

at::Tensor ShardedState::unpadded_part(Owner owner, const std::string& key) const {
  const PartOf& of = find(owner, key).of;
  at::Tensor unpadded = part(owner, key);
  for (size_t d = 0; d < of.shape.size(); ++d) {
    if (of.sharding.dims[d].empty()) continue;
    const std::vector<int64_t> places = places_of(of.sharding.dims[d], of.shape[d], mesh_, ranks_->rank());
    const auto own = std::ranges::count_if(places, [](int64_t place) { return place >= 0; });
    unpadded = unpadded.narrow(static_cast<int64_t>(d), 0, own);
  }
  return unpadded;
}

const at::Tensor& ShardedState::part(Owner owner, const std::string& key) const { return find(owner, key).tensor; }

at::Tensor ShardedState::whole(Owner owner, const std::string& key) const {
  const Part& part = find(owner, key);
  INTERNAL_CHECK(part.of.sharding.partial.empty(), "the whole of partial sums was asked for");
  if (part.of.sharding.is_whole()) return part.tensor.clone();
  std::vector<Axis> axes;
  for (Axis axis = 0; axis < mesh_.axes.size(); ++axis)
    if (part.of.sharding.splits(axis)) axes.push_back(axis);
  RankGroup& group = ranks_->along(mesh_, axes);
  std::vector<int64_t> sizes = part.sizes;
  sizes.insert(sizes.begin(), group.ranks());
  const at::Tensor all = at::empty(sizes, part.tensor.options());
  group.all_gather(part.tensor.contiguous(), all);
  at::Tensor whole = at::empty(part.of.shape, part.tensor.options());
  const std::vector<int64_t> members = group_of(mesh_, axes, ranks_->rank());
  for (size_t r = 0; r < members.size(); ++r) place(all[static_cast<int64_t>(r)], part.of, mesh_, members[r], whole);
  return whole;
}

void ShardedState::replace(Owner owner, const std::string& key, const at::Tensor& part) {
  const auto found = parts_.find({owner, key});
  if (found == parts_.end() || !part.defined()) return;
  found->second.tensor = part;
}

void ShardedState::clear(Owner owner) {
  for (auto& [name, part] : parts_)
    if (name.first == owner && part.tensor.defined()) part.tensor.zero_();
}

uint64_t ShardedState::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, part] : parts_) {
    uint64_t elements = 1;
    for (int64_t size : part.sizes) elements *= static_cast<uint64_t>(size);
    bytes += elements * c10::elementSize(part.type);
  }
  return bytes;
}

}  // namespace stepc
