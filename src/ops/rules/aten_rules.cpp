#include "ops/rules/aten_rules.h"

#include <algorithm>

#include "base/check.h"

namespace stepc {

namespace {

// b: rows of the batch, c: channels. Weights and biases stay whole; their gradients are sums over the rows. Pooling,
// padding and resizing work on each channel of each row: what they take without a batch dimension has fewer
// dimensions than are named here, and no rule. A max pool's indices count within a channel.
constexpr std::string_view kOne1d = "b c _ -> b c _";
constexpr std::string_view kOne2d = "b c _ _ -> b c _ _";
constexpr std::string_view kOne3d = "b c _ _ _ -> b c _ _ _";
constexpr std::string_view kTwo1d = "b c _, b c _ -> b c _";  // (gradient, x)
constexpr std::string_view kTwo2d = "b c _ _, b c _ _ -> b c _ _";
constexpr std::string_view kTwo3d = "b c _ _ _, b c _ _ _ -> b c _ _ _";
constexpr std::string_view kMax2d = "b c _ _ -> b c _ _, b c _ _";
constexpr std::string_view kMax3d = "b c _ _ _ -> b c _ _ _, b c _ _ _";
constexpr std::string_view kMaxBackward2d = "b c _ _, b c _ _, b c _ _ -> b c _ _";
constexpr std::string_view kAlongTheRow = "b -> b, b";  // (values, their places along the row)
constexpr std::string_view kMaxBackward3d = "b c _ _ _, b c _ _ _, b c _ _ _ -> b c _ _ _";

constexpr AtenRule kRules[] = {
    {"aten::convolution", "b, , -> b"},
    {"aten::convolution_backward", "b, b, -> b, , ; b: sum"},

    {"aten::native_group_norm", "b, , -> b, b, b", 3},
    {"aten::native_group_norm_backward", "b, b, b, b, -> b, , ; b: sum", 5},

    {"aten::max_pool2d_with_indices", kMax2d},
    {"aten::max_pool2d_with_indices_backward", kMaxBackward2d},
    {"aten::max_pool3d_with_indices", kMax3d},
    {"aten::max_pool3d_with_indices_backward", kMaxBackward3d},
    {"aten::adaptive_max_pool2d", kMax2d},
    {"aten::adaptive_max_pool2d_backward", kMaxBackward2d},
    {"aten::adaptive_max_pool3d", kMax3d},
    {"aten::adaptive_max_pool3d_backward", kMaxBackward3d},
    {"aten::avg_pool2d", kOne2d},
    {"aten::avg_pool2d_backward", kTwo2d},
    {"aten::avg_pool3d", kOne3d},
    {"aten::avg_pool3d_backward", kTwo3d},
    {"aten::_adaptive_avg_pool2d", kOne2d},
    {"aten::_adaptive_avg_pool2d_backward", kTwo2d},
    {"aten::_adaptive_avg_pool3d", kOne3d},
    {"aten::_adaptive_avg_pool3d_backward", kTwo3d},

    {"aten::upsample_nearest1d", kOne1d},
    {"aten::upsample_nearest1d_backward", kOne1d, 2},
    {"aten::upsample_nearest2d", kOne2d},
    {"aten::upsample_nearest2d_backward", kOne2d, 2},
    {"aten::upsample_nearest3d", kOne3d},
    {"aten::upsample_nearest3d_backward", kOne3d, 2},
    {"aten::upsample_linear1d", kOne1d},
    {"aten::upsample_linear1d_backward", kOne1d, 2},
    {"aten::upsample_bilinear2d", kOne2d},
    {"aten::upsample_bilinear2d_backward", kOne2d, 2},
    {"aten::upsample_bicubic2d", kOne2d},
    {"aten::upsample_bicubic2d_backward", kOne2d, 2},
    {"aten::upsample_trilinear3d", kOne3d},
    {"aten::upsample_trilinear3d_backward", kOne3d, 2},

    {"aten::reflection_pad1d", kOne1d},
    {"aten::reflection_pad1d_backward", kTwo1d},
    {"aten::reflection_pad2d", kOne2d},
    {"aten::reflection_pad2d_backward", kTwo2d},
    {"aten::replication_pad1d", kOne1d},
    {"aten::replication_pad1d_backward", kTwo1d},
    {"aten::replication_pad2d", kOne2d},
    {"aten::replication_pad2d_backward", kTwo2d},

    {.op = "aten::cummax", .dims = kAlongTheRow, .along_argument = 1},
    {.op = "aten::cummin", .dims = kAlongTheRow, .along_argument = 1},
    {.op = "aten::sort", .dims = kAlongTheRow, .along_argument = 1},
    {.op = "aten::sort.stable", .dims = kAlongTheRow, .along_argument = 2},
    {.op = "aten::topk", .dims = kAlongTheRow, .along_argument = 2},
};

const AtenRule* find_rule(std::string_view op) {
  const auto* const found = std::ranges::find(kRules, op, &AtenRule::op);
  return found == std::end(kRules) ? nullptr : found;
}

// The names of the dimensions of what `value` stands for, by those of the leading ones; false: it has fewer.
bool put_names(DimNames::Names names, TensorId tensor, const Graph& graph, std::vector<DimNames::Names>& into) {
  const size_t rank = graph.shape(tensor).size();
  if (names.size() > rank) return false;
  names.resize(rank, "_");
  into.push_back(std::move(names));
  return true;
}

}  // namespace

std::span<const AtenRule> aten_rules() { return kRules; }

std::optional<DimNames> aten_dim_names(const Graph& graph, const Node& node) {
  const AtenRule* rule = find_rule(node.op);
  if (rule == nullptr || !node.aten || !node.aten->writes.empty()) return std::nullopt;
  const DimNames all = parse_dim_names(rule->dims);
  DimNames dims;
  dims.combined = all.combined;
  const auto name = [&](const std::vector<Arg>& args, const std::vector<DimNames::Names>& names,
                        const std::vector<TensorId>& tensors, std::vector<DimNames::Names>& into) {
    size_t next = 0;
    for (const Arg& arg : args) {
      const auto* value = std::get_if<ValueId>(&arg);
      if (std::holds_alternative<std::vector<ValueId>>(arg)) return false;
      if (value == nullptr && !std::holds_alternative<std::monostate>(arg)) continue;
      const size_t place = next++;
      if (value == nullptr || !value->valid()) continue;  // left out
      if (place >= names.size() || !put_names(names[place], tensors[value->index()], graph, into)) return false;
    }
    return true;
  };
  const AtenCall& call = *node.aten;
  const bool fits = name(call.args, all.operands, node.inputs, dims.operands) &&
                    name(call.results, all.results, node.outputs, dims.results);
  if (!fits) return std::nullopt;
  if (rule->along_argument) {
    const auto* along = std::get_if<int64_t>(&call.args.at(*rule->along_argument));
    if (along == nullptr) return std::nullopt;
    for (auto* tensors : {&dims.operands, &dims.results})
      for (DimNames::Names& names : *tensors) {
        const int64_t dim = *along < 0 ? *along + std::ssize(names) : *along;
        if (dim < 0 || dim >= std::ssize(names)) return std::nullopt;
        names[static_cast<size_t>(dim)].assign(1, '_');
      }
  }
  return dims;
}

AtenCall local_aten_call(const Graph& graph, const Node& node, const std::vector<Shape>& operands,
                         const std::vector<Shape>& results) {
  AtenCall call = *node.aten;
  const AtenRule* rule = find_rule(node.op);
  if (rule != nullptr && rule->rows_argument) {
    Arg& sizes = call.args.at(*rule->rows_argument);
    if (std::holds_alternative<int64_t>(sizes)) {
      sizes = operands.at(0).at(0);
    } else {
      INTERNAL_CHECK(std::holds_alternative<Shape>(sizes), "argument {} of {} holds no sizes", *rule->rows_argument,
                     node.op);
      sizes = results.at(0);
    }
  }
  // What lay channels-last does so as a shard; what lay in another way comes contiguous, which every kernel takes.
  const auto fit = [&](std::vector<std::pair<uint32_t, Shape>>& layouts, const std::vector<TensorId>& wholes,
                       const std::vector<Shape>& locals) {
    std::vector<std::pair<uint32_t, Shape>> out;
    for (const auto& [place, strides] : layouts) {
      const Shape& whole = graph.shape(wholes[place]);
      if (locals[place] == whole)
        out.emplace_back(place, strides);
      else if (strides == channels_last_strides(whole))
        out.emplace_back(place, channels_last_strides(locals[place]));
    }
    layouts = std::move(out);
  };
  fit(call.layouts, node.inputs, operands);
  fit(call.result_layouts, node.outputs, results);
  return call;
}

}  // namespace stepc
