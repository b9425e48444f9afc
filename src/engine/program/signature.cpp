#include "engine/program/signature.h"

#include <algorithm>
#include <unordered_map>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "aten/constants.h"
#include "aten/memory_regions.h"
#include "base/text.h"

namespace stepc {

namespace {
constexpr const char* kShape = "shape: ";
constexpr const char* kArguments = "setting: arguments";

template <class T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string shape_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  std::string text = tensor.dim() == 0 ? "scalar" : str("{}", fmt::join(tensor.sizes(), "x"));
  if (!tensor.is_contiguous()) text += str(" strided {}", fmt::join(tensor.strides(), "x"));
  return text;
}

// Appends the settings that, beside the tensors, decide which kernels run and how.
void append_ambient(std::string& out) {
  const at::Context& context = at::globalContext();
  append(out, at::get_num_threads());
  for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) {
    append(out, at::autocast::is_autocast_enabled(device));
    append(out, at::autocast::get_autocast_dtype(device));
  }
  append(out, at::autocast::is_autocast_cache_enabled());
  append(out, c10::GradMode::is_enabled());
  append(out, c10::InferenceMode::is_enabled());
  append(out, c10::get_default_dtype_as_scalartype());
  append(out, context.deterministicAlgorithms());
  append(out, at::globalContext().deterministicFillUninitializedMemory());
  append(out, context.float32MatmulPrecision());
  append(out, context.userEnabledMkldnn());
  append(out, context.userEnabledFlashSDP());
  append(out, context.userEnabledMemEfficientSDP());
  append(out, context.userEnabledMathSDP());
  append(out, context.userEnabledCuDNNSDP());
  append(out, context.userEnabledCuDNN());
  append(out, context.benchmarkCuDNN());
  append(out, context.deterministicCuDNN());
  append(out, context.allowFP16ReductionCuBLAS());
  append(out, context.allowBF16ReductionCuBLAS());
}

// Which one of its kind a device is, -1 for that of the program, which decides nothing: each rank has one of its own.
c10::DeviceIndex number_beside(const std::vector<at::Tensor>& tensors, const c10::Device& device) {
  const auto of_program =
      std::ranges::find_if(tensors, [](const at::Tensor& one) { return one.defined() && !one.device().is_cpu(); });
  return of_program != tensors.end() && of_program->device() == device ? c10::DeviceIndex{-1} : device.index();
}
}  // namespace

std::string signature_of(const Program& program, const std::vector<at::Tensor>& tensors, const StepInput& input) {
  std::string out;
  out.reserve(512 + tensors.size());
  append_ambient(out);
  append(out, program.structure());
  program.append_host_state(out);
  const std::vector<OwnedKey>& keys = program.keys();
  for (size_t k = 0; k < keys.size(); ++k) {
    if (keys[k].owner == Owner::kParameter) out += tensors[k].requires_grad() ? 'g' : '-';
    if (keys[k].owner == Owner::kGradient) out += tensors[k].defined() ? 'd' : '-';
  }
  for (const at::Tensor& tensor : input.tensors) {
    append(out, tensor.defined());
    if (!tensor.defined()) continue;
    append(out, tensor.scalar_type());
    append(out, tensor.dim());
    append(out, tensor.requires_grad());
    append(out, tensor.device().type());
    if (!tensor.device().is_cpu()) append(out, number_beside(tensors, tensor.device()));
    append(out, tensor.layout());
    if (tensor.layout() != c10::Layout::Strided) continue;  // not captured: the recorder will say so
    for (int64_t size : tensor.sizes()) append(out, size);
    for (int64_t stride : tensor.strides()) append(out, stride);
  }
  // Appends which batch tensors overlap, and how. Their addresses are not part of the signature.
  if (input.tensors.size() > 1)
    for (const MemoryRegion& region : memory_regions(input.tensors)) {
      if (region.tensors.size() == 1) continue;
      append(out, region.tensors.size());
      for (size_t t : region.tensors) {
        append(out, t);
        append(out, span_of(input.tensors[t]).first - region.begin);
      }
    }
  return out + input.constants;
}

const std::string& SharedMemory::among(const Program& program, const std::vector<at::Tensor>& tensors) {
  const std::vector<OwnedKey>& keys = program.keys();
  bool is_same = memory_.size() == keys.size();
  memory_.resize(keys.size());
  for (size_t k = 0; k < keys.size(); ++k) {
    const at::Tensor& tensor = tensors[k];
    const bool counts = keys[k].owner != Owner::kGradient && tensor.defined() && tensor.has_storage();
    const void* memory = counts ? tensor.storage().unsafeGetStorageImpl() : nullptr;
    is_same = is_same && memory_[k] == memory;
    memory_[k] = memory;
  }
  if (is_same) return text_;
  text_.clear();
  std::unordered_map<const void*, size_t> first;
  for (size_t k = 0; k < keys.size(); ++k) {
    if (memory_[k] == nullptr) continue;
    const auto [found, is_new] = first.emplace(memory_[k], k);
    if (!is_new) text_ += str("{}={};", keys[k].key, keys[found->second].key);
  }
  return text_;
}

std::map<std::string, std::string> describe_signature(const Program& program, const std::vector<at::Tensor>& tensors,
                                                      const StepInput& input) {
  std::map<std::string, std::string> out;
  for (size_t t = 0; t < input.tensors.size(); ++t) {
    const std::string name = t < input.names.size() ? input.names[t] : str("batch {}", t);
    out[str("{}{}", kShape, name)] = shape_text(input.tensors[t]);
    if (input.tensors[t].defined()) out["type: " + name] = c10::toString(input.tensors[t].scalar_type());
  }
  out[kArguments] = input.constants;
  out["setting: threads"] = str("{}", at::get_num_threads());
  out["setting: autocast"] =
      at::autocast::is_autocast_enabled(at::kCPU) ? c10::toString(at::autocast::get_autocast_dtype(at::kCPU)) : "off";
  out["setting: grad mode"] = c10::GradMode::is_enabled() ? "on" : "off";
  out["setting: deterministic algorithms"] = at::globalContext().deterministicAlgorithms() ? "on" : "off";
  size_t frozen = 0;
  size_t gradients = 0;
  const std::vector<OwnedKey>& keys = program.keys();
  for (size_t k = 0; k < keys.size(); ++k) {
    if (keys[k].owner == Owner::kParameter && !tensors[k].requires_grad()) ++frozen;
    if (keys[k].owner == Owner::kGradient && tensors[k].defined()) ++gradients;
  }
  out["setting: frozen parameters"] = str("{}", frozen);
  out["setting: gradients before the step"] = str("{}", gradients);
  program.describe(out);
  return out;
}

std::string explain_change(const std::map<std::string, std::string>& before,
                           const std::map<std::string, std::string>& after) {
  const auto value_in = [](const auto& map, const std::string& what) {
    const auto found = map.find(what);
    return found == map.end() ? std::string("absent") : found->second;
  };
  for (const auto& [what, now] : after) {
    const std::string was = value_in(before, what);
    if (was == now || what == kArguments) continue;
    if (what.starts_with(Program::kPythonValue)) return str("{} {}", what.substr(Program::kPythonValue.size()), now);
    return str("new {} {} -> {}", what, was, now);
  }
  for (const auto& [what, was] : before)
    if (what.starts_with(Program::kPythonValue) && !after.contains(what))
      return str("{} is again what it was", what.substr(Program::kPythonValue.size()));
  for (const auto& [what, was] : before)
    if (what.starts_with(kShape) && !after.contains(what)) return str("new {} {} -> absent", what, was);
  if (const auto was = value_in(before, kArguments), now = value_in(after, kArguments); was != now)
    return str("new {} {} -> {}", kArguments, was, now);
  return "new structure of modules or optimizers, or other tensors share memory";
}

}  // namespace stepc
