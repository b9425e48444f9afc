#include "engine/verify/remains.h"

#include <optional>
#include <span>

#include <ATen/Functions.h>

#include "base/hash.h"
#include "base/text.h"

namespace stepc {

namespace {

uint64_t state_hash(const at::Generator& generator) {
  const std::string state = to_bytes(read_generator(generator));
  return hash_bytes(std::as_bytes(std::span(state)));
}

std::string group_of(Owner owner, const std::string& key) {
  const bool state = owner == Owner::kOptimizerState || owner == Owner::kBuffer;
  return str("{}{}{}", name_of(owner), state ? " " : "", state ? key.substr(key.rfind('.') + 1) : "");
}

}  // namespace

std::vector<Named> Remains::of(const StepOutput& output, const std::vector<at::Tensor>& tensors,
                               const std::function<at::Tensor(const Rebinding&)>& rebound, bool by_bits) const {
  std::vector<Named> out;
  const auto add = [&](std::string what, std::string group, const at::Tensor& tensor, std::optional<Owner> owner = {},
                       const std::string& key = {}) {
    out.push_back(named(std::move(what), std::move(group), tensor, by_bits, owner, key));
  };
  const auto add_owned = [&](Owner owner, const std::string& key, const at::Tensor& tensor) {
    add(str("{} '{}'", name_of(owner), key), group_of(owner, key), tensor, owner, key);
  };
  for (size_t o = 0; o < output.tensors.size(); ++o)
    add(str("returned value {}", o), str("returned {}", o), output.tensors[o]);
  const std::vector<OwnedKey>& keys = program_.keys();
  for (size_t k = 0; k < count_; ++k) {
    const bool batch = k >= keys.size();
    if (batch)
      add(str("batch tensor {}", k - keys.size()), str("batch {}", k), tensors[k]);
    else if (keys[k].owner != Owner::kGradient)
      add_owned(keys[k].owner, keys[k].key, tensors[k]);
  }
  for (const Rebinding& rebinding : plan_.trace().rebindings)
    add_owned(rebinding.owner, rebinding.key, rebound(rebinding));
  if (!by_bits) return out;
  out.push_back({"random generator", "", {}, "", state_hash(at::detail::getDefaultCPUGenerator()), {}});
  for (const auto& [key, generator] : program_.generators())
    out.push_back({str("random generator '{}'", key), "", {}, "", state_hash(generator), {}});
  return out;
}

std::vector<Named> Remains::left_by(const StepResult& run, const std::vector<at::Tensor>& tensors, bool by_bits) const {
  size_t next = 0;
  const auto rebound = [&](const Rebinding&) { return run.rebindings[next++].tensor; };
  return of({run.outputs, {}}, tensors, rebound, by_bits);
}

}  // namespace stepc
