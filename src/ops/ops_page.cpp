// docs/ops.md, printed from the table.
#include "ops/op_def.h"
#include "ops/rules/aten_rules.h"

namespace stepc {

namespace {
std::string_view name_of(AttrKind kind) {
  switch (kind) {
    case AttrKind::kBool:
      return "bool";
    case AttrKind::kInt:
      return "int";
    case AttrKind::kReal:
      return "real";
    case AttrKind::kNumber:
      return "number";
    case AttrKind::kDType:
      return "dtype";
    case AttrKind::kInts:
      return "ints";
    case AttrKind::kReals:
      return "reals";
    case AttrKind::kWord:
      return "word";
  }
  return "?";
}

std::string operands_text(const OpDef& op) {
  if (op.max_inputs == kMany) return str("{}+", op.min_inputs);
  return op.min_inputs == op.max_inputs ? str("{}", op.min_inputs) : str("{}-{}", op.min_inputs, op.max_inputs);
}

std::string attrs_text(const OpDef& op) {
  std::vector<std::string> parts;
  for (const AttrDef& attr : op.attrs)
    parts.push_back(attr.otherwise ? str("`{}` {} = {}", attr.name, name_of(attr.kind), to_text(*attr.otherwise))
                                   : str("`{}` {}", attr.name, name_of(attr.kind)));
  return str("{}", fmt::join(parts, ", "));
}

std::string traits_text(const OpDef& op) {
  constexpr std::pair<Trait, std::string_view> kNames[] = {{Trait::kCommutative, "commutative"},
                                                           {Trait::kView, "view"},
                                                           {Trait::kReduction, "reduction"},
                                                           {Trait::kConstant, "constant"},
                                                           {Trait::kRandom, "random"},
                                                           {Trait::kComposite, "composite"},
                                                           {Trait::kOverwrites, "overwrites"},
                                                           {Trait::kSplat, "splat"},
                                                           {Trait::kSameBytes, "same bytes"},
                                                           {Trait::kBroadcast, "broadcast"},
                                                           {Trait::kContraction, "contraction"},
                                                           {Trait::kSelects, "selects"},
                                                           {Trait::kRecomputes, "recomputes"},
                                                           {Trait::kLinear, "linear"},
                                                           {Trait::kScales, "scales"}};
  std::vector<std::string_view> parts;
  for (const auto& [trait, name] : kNames)
    if (op.has(trait)) parts.push_back(name);
  if (op.kernel != OwnKernel::kNone) parts.push_back("own kernel");
  if (op.index_use) parts.push_back("indexed");
  return str("{}", fmt::join(parts, ", "));
}
std::string meaning_text(const OpDef& op) {
  if (!op.summary.empty()) return std::string(op.summary);
  return op.body == nullptr ? std::string() : str("`{}`", formula_text(scalar_expr(op.body)));
}
// What tests/python/test_fast.py finds opaque in the steps of its models, held to this list there.
constexpr std::string_view kOpaqueCalls[] = {
    "convolution",
    "convolution_backward",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "native_batch_norm",
    "native_batch_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "randint.low",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
};
}  // namespace

std::string ops_page() {
  size_t count = 0;
  for (const OpFamily& family : op_families()) count += family.ops.size();
  std::string out = str(
      "# Ops\n\nThe {} ops of a Graph, printed from the op table by `irtool --ops`. An ATen call that no row of the "
      "ATen map\ncovers stays in the Graph as an opaque node under its own name.\n",
      count);
  for (const OpFamily& family : op_families()) {
    out +=
        str("\n## {}\n\n{}\n\n| op | operands | results | attributes | traits | what it gives "
            "|\n|---|---|---|---|---|---|\n",
            family.name, family.summary);
    for (const OpDef& op : family.ops)
      out += str("| `{}` | {} | {} | {} | {} | {} |\n", op.name, operands_text(op),
                 op.outputs == kMany   ? "one each"
                 : op.outputs == kHalf ? "half as many"
                                       : str("{}", op.outputs),
                 attrs_text(op), traits_text(op), meaning_text(op));
  }
  out +=
      "\n## Calls that stay opaque\n\nIn the steps of the models in the tests, all of them of convolutional networks "
      "and "
      "diffusion: Llama, Qwen, OLMo, GPT-2,\nBloom, GLM, Gemma, BERT, T5, ViT and Swin have none. They run as the ATen "
      "calls that they are.\n\n";
  for (std::string_view name : kOpaqueCalls) out += str("- `aten::{}`\n", name);
  out +=
      "\n## How opaque calls are split\n\nThe named dimensions of their tensor arguments and results may be split over "
      "ranks, as `stepc.op_rule` names those of\na program's own operators; b are the rows of a batch, c channels. "
      "Batch norm couples the rows: where a batch is split\nit becomes core ops, with the statistics of all ranks' "
      "rows. Any other opaque call is split nowhere.\n\n| call | dimensions |\n|---|---|\n";
  for (const AtenRule& rule : aten_rules()) out += str("| `{}` | `{}` |\n", rule.op, rule.dims);
  return out;
}

}  // namespace stepc
