#include "engine/ranks/batch_rows.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include <ATen/Functions.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/text.h"
#include "engine/compare/tensor_hash.h"
#include "passes/partition/means_by_rank.h"

namespace stepc {

namespace {

// How many guesses are tried as to which dimensions hold the batch's rows.
constexpr size_t kMostGuesses = 16;

// The name of a tensor of the batch.
std::string name_in(const StepInput& input, size_t tensor) {
  return tensor < input.names.size() && !input.names[tensor].empty() ? input.names[tensor] : str("{}", tensor);
}

std::string shapes_of(const StepInput& input) {
  std::string shapes;
  for (const at::Tensor& one : input.tensors)
    shapes += one.defined() ? str("[{}]", fmt::join(one.sizes(), ",")) : std::string("-");
  return shapes;
}

}  // namespace

BatchRows::BatchRows(const Parallel& parallel, const Strategy& strategy, std::shared_ptr<Ranks> ranks,
                     std::shared_ptr<Ranks> all)
    : parallel_(parallel),
      mesh_(strategy.mesh),
      means_by_rank_(strategy.means_by_rank),
      ranks_(std::move(ranks)),
      all_(std::move(all)),
      data_axes_(data_axes(strategy.mesh)) {}

void BatchRows::spread_over(const Mesh& mesh, std::shared_ptr<Ranks> ranks) {
  mesh_ = mesh;
  ranks_ = std::move(ranks);
  data_axes_ = data_axes(mesh);
}

std::optional<int64_t> BatchRows::rows_of(const StepInput& input, size_t tensor) const {
  if (parallel_.batch == Parallel::Batch::kGlobal || data_axes_.empty()) return std::nullopt;
  const auto given = [&](size_t t) { return parallel_.batch_dims.find(name_in(input, t)); };
  if (const auto dim = given(tensor); dim != parallel_.batch_dims.end()) return dim->second;
  if (const auto found = rows_.find(shapes_of(input)); found != rows_.end()) return found->second.at(tensor);
  const at::Tensor& one = input.tensors[tensor];
  if (!one.defined() || one.dim() == 0) return std::nullopt;
  const auto first =
      std::ranges::find_if(input.tensors, [](const at::Tensor& t) { return t.defined() && t.dim() > 0; });
  const auto dim = given(static_cast<size_t>(first - input.tensors.begin()));
  const int64_t rows = first->size(dim == parallel_.batch_dims.end() ? 0 : dim->second.value_or(0));
  return one.size(0) == rows ? std::optional<int64_t>(0) : std::nullopt;
}

void BatchRows::assume(const StepInput& input, const std::optional<Rows>& rows) {
  if (rows)
    rows_[shapes_of(input)] = *rows;
  else
    rows_.erase(shapes_of(input));
}

// Other guesses of the rows. The first tensor that has rows is assumed to be right.
std::vector<BatchRows::Rows> BatchRows::others(const StepInput& input) const {
  Rows likely;
  for (size_t t = 0; t < input.tensors.size(); ++t) likely.push_back(rows_of(input, t));
  const auto first =
      static_cast<size_t>(std::ranges::find_if(likely, &std::optional<int64_t>::has_value) - likely.begin());
  std::vector<Rows> guesses;
  const auto change_one = [&](const Rows& from, size_t begin) {
    for (size_t t = begin; t < from.size(); ++t) {
      if (!input.tensors[t].defined() || parallel_.batch_dims.contains(name_in(input, t))) continue;
      Rows guess = from;
      if (guess[t]) {
        guess[t] = std::nullopt;
        guesses.push_back(guess);
      }
      for (int64_t dim = 0; dim < input.tensors[t].dim(); ++dim) {
        if (input.tensors[t].size(dim) != input.tensors[first].size(*likely[first]) || likely[t] == dim) continue;
        guess[t] = dim;
        guesses.push_back(guess);
      }
    }
  };
  if (first == likely.size()) return {};
  change_one(likely, first + 1);
  for (size_t g = 0, ones = guesses.size(); g < ones; ++g) {
    size_t changed = 0;
    while (guesses[g][changed] == likely[changed]) ++changed;
    change_one(Rows(guesses[g]), changed + 1);
  }
  if (guesses.size() > kMostGuesses) guesses.resize(kMostGuesses);
  return guesses;
}

std::vector<at::Tensor> BatchRows::whole(const StepInput& input) const {
  std::vector<at::Tensor> out = input.tensors;
  if (means_by_rank_) return out;  // a rank's own rows are its batch
  for (size_t t = 0; t < out.size(); ++t)
    if (const auto dim = rows_of(input, t)) out[t] = gathered(out[t], *dim);
  return out;
}

at::Tensor BatchRows::gathered(const at::Tensor& rows, int64_t dim) const {
  RankGroup& group = ranks_->along(mesh_, data_axes_);
  const at::Tensor own = rows.detach().movedim(dim, 0).contiguous();
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes[0] *= group.ranks();
  const at::Tensor all = at::empty(sizes, own.options());
  group.all_gather(own, all);
  return all.movedim(0, dim).contiguous();
}

// Whether the plan takes the tensor of the batch as this rank passes it.
bool BatchRows::takes_as_given(const std::optional<PartOf>& part, const StepInput& input, size_t tensor) const {
  const auto dim = means_by_rank_ ? std::nullopt : rows_of(input, tensor);
  if (!dim || !part) return !dim && !part;
  const auto at = static_cast<size_t>(*dim);
  Sharding own_rows = Sharding::whole(part->shape.size());
  own_rows.dims[at] = canonical({{part->shape[at], data_axes_}}, mesh_);
  return part->sharding == own_rows;
}

// The parts of the batch that the plan takes, on this rank only.
std::vector<at::Tensor> BatchRows::for_plan(const Schedule& schedule, const StepInput& input) const {
  Parts parts;
  for (const ScheduleInput& one : schedule.inputs)
    if (one.kind == InputKind::kBatch) parts[std::stoul(one.key)] = one.part;
  return for_parts(parts, input);
}

std::vector<at::Tensor> BatchRows::for_parts(const Parts& parts, const StepInput& input) const {
  std::vector<at::Tensor> out = input.tensors;
  if (means_by_rank_) return out;
  for (const auto& [t, part] : parts) {
    const auto dim = rows_of(input, t);
    if (dim && !takes_as_given(part, input, t)) out[t] = gathered(out[t], *dim);
  }
  return out;
}

void BatchRows::check_dims(const StepInput& input) const {
  for (const auto& [name, dim] : parallel_.batch_dims) {
    size_t t = 0;
    while (t < input.tensors.size() && name_in(input, t) != name) ++t;
    if (t == input.tensors.size() || !dim || !input.tensors[t].defined()) continue;
    USER_CHECK(*dim < input.tensors[t].dim(), "batch_dims has {} for '{}', which has the shape [{}]", *dim, name,
               fmt::join(input.tensors[t].sizes(), ", "));
  }
}

// At a signature's first call, checks that ranks with the same rows, or with the whole batch, have equal tensors.
void BatchRows::check_shared(const StepInput& input) const {
  std::string hashes;
  for (size_t t = 0; t < input.tensors.size(); ++t) hashes += hash_text(hash_of(input.tensors[t])) + "\n";
  std::vector<std::vector<std::string>> all;
  for (const std::string& one : all_->exchange(hashes)) all.push_back(split(one, '\n'));
  for (size_t t = 0; t < input.tensors.size(); ++t) {
    const bool is_row = rows_of(input, t).has_value();
    for (int64_t r = 0; r < all_->ranks(); ++r) {
      int64_t first = 0;
      if (is_row) {  // of those at the same place along the data axes
        const auto at = coordinates_of(mesh_, r % mesh_.ranks());
        while (
            !std::ranges::all_of(data_axes_, [&](Axis axis) { return coordinates_of(mesh_, first)[axis] == at[axis]; }))
          ++first;
      }
      if (all[static_cast<size_t>(r)][t] == all[static_cast<size_t>(first)][t]) continue;
      user_error("batch '{}' differs between ranks {} and {}: {}", name_in(input, t), first, r,
                 is_row || (data_axes_.empty() && parallel_.batch == Parallel::Batch::kLocal)
                     ? "ranks along tp, cp and pp want the same rows; give each a sampler by its place along dp"
                 : parallel_.batch == Parallel::Batch::kGlobal
                     ? "with batch=\"global\" every rank gives the whole batch; \"local\" are rows of its own"
                     : "it has no rows, as many as the first tensor, so every rank wants the same");
    }
  }
}

// Refuses a step that writes to a tensor of its batch, unless the plan writes to the program's own memory.
void BatchRows::check_writes(const Graph& local, const StepInput& input, const std::vector<bool>& copied) const {
  for (const GraphOutput& output : local.outputs) {
    if (output.kind != GraphOutput::Kind::kUpdate || local.inputs[output.input].kind != InputKind::kBatch) continue;
    const size_t t = std::stoul(local.inputs[output.input].key);
    USER_CHECK(
        !copied[t] && takes_as_given(local.inputs[output.input].part, input, t),
        "this step cannot run on ranks: it writes to '{}' of its batch, of which each rank computes with a copy; "
        "write to a clone() of it",
        name_in(input, t));
  }
}

}  // namespace stepc
