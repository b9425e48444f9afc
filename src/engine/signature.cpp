#include "engine/signature.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include "aten/constants.h"
#include "base/text.h"

namespace stepc {

namespace {
template <class T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string type_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  std::string text = str("{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
  if (!tensor.is_contiguous()) text += str("({})", fmt::join(tensor.strides(), ", "));
  return text;
}
}  // namespace

std::string signature_of(const Program& program, const std::vector<OwnedTensor>& owned) {
  std::string out;
  out.reserve(256 + owned.size());
  append(out, at::get_num_threads());
  append(out, at::autocast::is_autocast_enabled(at::kCPU));
  append(out, at::autocast::get_autocast_dtype(at::kCPU));
  append(out, at::autocast::is_autocast_cache_enabled());
  append(out, c10::GradMode::is_enabled());
  append(out, at::globalContext().deterministicAlgorithms());
  append(out, at::globalContext().float32MatmulPrecision());
  append(out, at::globalContext().userEnabledMkldnn());
  program.append_host_state(out);
  std::vector<const void*> batch_memory;
  for (const OwnedTensor& one : owned) {
    if (one.owner == Owner::kParameter) out += one.tensor.requires_grad() ? 'g' : '-';
    if (one.owner == Owner::kGradient) out += one.tensor.defined() ? 'd' : '-';
    if (one.owner != Owner::kBatch) continue;
    append(out, one.tensor.defined());
    if (!one.tensor.defined()) continue;
    append(out, one.tensor.scalar_type());
    append(out, one.tensor.dim());
    append(out, one.tensor.requires_grad());
    for (int64_t size : one.tensor.sizes()) append(out, size);
    for (int64_t stride : one.tensor.strides()) append(out, stride);
    // Which batch tensors share memory: the index of the first that has the same storage.
    const void* memory = one.tensor.storage().unsafeGetStorageImpl();
    size_t first = 0;
    while (first < batch_memory.size() && batch_memory[first] != memory) ++first;
    batch_memory.push_back(memory);
    append(out, first);
  }
  return out;
}

std::map<std::string, std::string> describe_signature(const std::vector<OwnedTensor>& owned) {
  std::map<std::string, std::string> out;
  out["threads"] = str("{}", at::get_num_threads());
  out["autocast"] =
      at::autocast::is_autocast_enabled(at::kCPU) ? c10::toString(at::autocast::get_autocast_dtype(at::kCPU)) : "off";
  out["grad mode"] = c10::GradMode::is_enabled() ? "on" : "off";
  out["deterministic algorithms"] = at::globalContext().deterministicAlgorithms() ? "on" : "off";
  size_t frozen = 0;
  size_t gradients = 0;
  for (const OwnedTensor& one : owned) {
    if (one.owner == Owner::kParameter && !one.tensor.requires_grad()) ++frozen;
    if (one.owner == Owner::kGradient && one.tensor.defined()) ++gradients;
    if (one.owner == Owner::kBatch) out["batch " + one.key] = type_text(one.tensor);
  }
  out["frozen parameters"] = str("{}", frozen);
  out["gradients before the step"] = str("{}", gradients);
  return out;
}

std::string explain_change(const std::map<std::string, std::string>& before,
                           const std::map<std::string, std::string>& after) {
  for (const auto& [what, now] : after) {
    const auto found = before.find(what);
    const std::string was = found == before.end() ? "absent" : found->second;
    if (was == now) continue;
    return str("new {}: {} {} -> {}", what.starts_with("batch") ? "shape" : "setting", what, was, now);
  }
  return "new training flags, optimizer settings or memory layout";
}

}  // namespace stepc
