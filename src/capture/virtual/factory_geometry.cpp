#include "capture/virtual/factory_geometry.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>

#include "aten/memory_regions.h"

namespace stepc {

namespace {

c10::ScalarType type_of_fill(const c10::IValue& value) {
  if (value.isBool()) return at::kBool;
  if (value.isInt()) return at::kLong;
  return c10::typeMetaToScalarType(c10::get_default_dtype());
}

std::vector<int64_t> strides_for(const std::vector<int64_t>& sizes, c10::MemoryFormat format) {
  switch (format) {
    case c10::MemoryFormat::ChannelsLast:
      return c10::get_channels_last_strides_2d(sizes);
    case c10::MemoryFormat::ChannelsLast3d:
      return c10::get_channels_last_strides_3d(sizes);
    default: {
      const auto strides = c10::contiguous_strides(sizes);
      return {strides.begin(), strides.end()};
    }
  }
}

}  // namespace

std::optional<FactoryGeometry> factory_geometry(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(stack, arguments.size());
  FactoryGeometry geometry;
  at::Tensor like;
  std::optional<std::vector<int64_t>> sizes;
  std::optional<std::vector<int64_t>> strides;
  std::optional<c10::ScalarType> dtype;
  std::optional<c10::ScalarType> filled;
  auto format = c10::MemoryFormat::Preserve;
  std::optional<c10::Device> device;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    const c10::IValue& value = values[i];
    if (value.isNone()) continue;
    if (name == "self") like = value.toTensor();
    if (name == "size") sizes = value.toIntVector();
    if (name == "stride") strides = value.toIntVector();
    if (name == "dtype") dtype = value.toScalarType();
    if (name == "fill_value") filled = type_of_fill(value);
    if (name == "memory_format") format = value.toMemoryFormat();
    if (name == "device") device = value.toDevice();
    if (name == "layout" && value.toLayout() != c10::Layout::Strided) return std::nullopt;
  }
  if (!sizes.has_value() && !like.defined()) return std::nullopt;
  geometry.device = device.value_or(like.defined() ? like.device() : geometry.device);
  if (!is_planned(geometry.device)) return std::nullopt;
  const std::string& op_name = op.schema().name();
  if (like.defined()) {
    geometry.dtype = dtype.value_or(like.scalar_type());
  } else if (op_name == "aten::randint" || op_name == "aten::randperm") {
    geometry.dtype = dtype.value_or(at::kLong);
  } else {
    geometry.dtype = dtype.value_or(filled.value_or(c10::typeMetaToScalarType(c10::get_default_dtype())));
  }
  geometry.sizes = sizes.has_value() ? *sizes : like.sizes().vec();
  if (strides.has_value()) {
    geometry.strides = *strides;
  } else if (!sizes.has_value() && format == c10::MemoryFormat::Preserve) {
    geometry.strides = like.is_non_overlapping_and_dense() ? like.strides().vec()
                                                           : at::infer_dense_strides(like.sizes(), like.strides());
  } else {
    geometry.strides = strides_for(geometry.sizes, format);
  }
  geometry.bytes = at::detail::computeStorageNbytes(geometry.sizes, geometry.strides, c10::elementSize(geometry.dtype));
  return geometry;
}

}  // namespace stepc
