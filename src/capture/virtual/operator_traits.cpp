#include "capture/virtual/operator_traits.h"

#include <algorithm>
#include <string_view>

#include <ATen/core/enum_tag.h>

#include "aten/operators.h"
#include "capture/virtual/shape_kernels.h"

namespace stepc {

namespace {

template <size_t kCount>
bool is_one_of(std::string_view name, const std::string_view (&names)[kCount]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Views that their schema does not declare, and questions about shapes and strides.
constexpr std::string_view kUndeclaredViews[] = {"aten::_unsafe_view", "aten::unsafe_split.Tensor",
                                                 "aten::unsafe_split_with_sizes", "aten::unsafe_chunk",
                                                 "aten::_fused_sdp_choice"};

// Arguments that a kernel changes although its schema does not say so.
struct UndeclaredWrites {
  std::string_view name;
  size_t first, last;
};
constexpr UndeclaredWrites kUndeclaredWrites[] = {{"aten::native_batch_norm", 3, 4},
                                                  {"aten::batch_norm_update_stats", 1, 2}};

constexpr std::string_view kLikeFactories[] = {
    "aten::empty_like",       "aten::zeros_like", "aten::ones_like",    "aten::full_like",
    "aten::rand_like",        "aten::randn_like", "aten::randint_like", "aten::randint_like.low_dtype",
    "aten::new_empty",        "aten::new_zeros",  "aten::new_ones",     "aten::new_full",
    "aten::new_empty_strided"};

// Operators without the tag whose kernel reads values on the host.
constexpr std::string_view kUntaggedReads[] = {"aten::is_nonzero", "aten::_is_all_true",  "aten::_is_any_true",
                                               "aten::allclose",   "aten::_assert_async", "aten::_assert_async.msg"};

// Tagged, but what shapes their results is among their numbers.
constexpr std::string_view kTaggedWithoutReads[] = {"aten::_ctc_loss"};

bool is_tensor_type(const c10::Argument& argument) {
  return argument.type()->str().find("Tensor") != std::string::npos;
}

bool is_undeclared_write(std::string_view name, size_t index) {
  return std::any_of(std::begin(kUndeclaredWrites), std::end(kUndeclaredWrites), [&](const UndeclaredWrites& writes) {
    return writes.name == name && writes.first <= index && index <= writes.last;
  });
}

int argument_returned_as(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

OperatorTraits traits_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OperatorTraits traits;
  traits.name = name_of(op);
  bool aliases = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    traits.takes_tensors = traits.takes_tensors || is_tensor_type(argument);
    aliases = aliases || argument.alias_info() != nullptr;
    if ((argument.alias_info() != nullptr && argument.alias_info()->isWrite()) || is_undeclared_write(traits.name, i))
      traits.writes.push_back(i);
    if (argument.is_out()) traits.outs.push_back(i);
  }
  for (const c10::Argument& result : schema.returns()) traits.returned.push_back(argument_returned_as(schema, result));
  if (op.hasTag(at::Tag::inplace_view)) traits.writes.clear();
  traits.metadata_only = (aliases && traits.writes.empty()) || is_one_of(traits.name, kUndeclaredViews);
  traits.fills = !traits.takes_tensors || is_one_of(traits.name, kLikeFactories);
  traits.draws = op.hasTag(at::Tag::nondeterministic_seeded);
  const bool tagged = op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
  traits.reads_values = tagged ? !is_one_of(traits.name, kTaggedWithoutReads) : is_one_of(traits.name, kUntaggedReads);
  traits.shapes = find_shape_kernel(op);
  if (traits.shapes == nullptr) traits.slow_shapes = find_slow_shape_kernel(op);
  return traits;
}

bool really_draws(const OperatorTraits& traits, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!traits.draws) return false;
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(stack, arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    if (name == "dropout_p" && values[i].isDouble() && values[i].toDouble() == 0) return false;
    if ((name == "train" || name == "training") && values[i].isBool() && !values[i].toBool()) return false;
    if (name == "self" && values[i].isTensor() && values[i].toTensor().numel() == 0) return false;
    if (name == "p" && traits.name == "aten::native_dropout" && values[i].toDouble() == 0) return false;
  }
  return true;
}

}  // namespace stepc
