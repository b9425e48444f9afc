#include "engine/verify/remains.h"

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

Named named_owned(const OwnedKey& key, const at::Tensor& tensor, bool by_bits) {
  return named(str("{} '{}'", name_of(key.owner), key.key), group_of(key.owner, key.key), tensor, by_bits, key.owner,
               key.key);
}

std::vector<Named> Remains::of(const StepOutput& output, const std::vector<at::Tensor>& tensors,
                               const std::function<at::Tensor(const Rebinding&)>& rebound, bool by_bits) const {
  std::vector<Named> out;
  const auto add = [&](std::string what, std::string group, const at::Tensor& tensor) {
    out.push_back(named(std::move(what), std::move(group), tensor, by_bits));
  };
  for (size_t o = 0; o < output.tensors.size(); ++o)
    add(str("returned value {}", o), str("returned {}", o), output.tensors[o]);
  const std::vector<OwnedKey>& keys = program_.keys();
  for (size_t k = 0; k < count_; ++k) {
    const bool batch = k >= keys.size();
    if (batch)
      add(str("batch tensor {}", k - keys.size()), str("batch {}", k), tensors[k]);
    else if (keys[k].owner != Owner::kGradient)
      out.push_back(named_owned(keys[k], tensors[k], by_bits));
  }
  for (const Rebinding& rebinding : plan_.trace().rebindings)
    out.push_back(named_owned({rebinding.owner, rebinding.key}, rebound(rebinding), by_bits));
  if (!by_bits) return out;
  out.push_back({"random generator", "", {}, "", state_hash(at::detail::getDefaultCPUGenerator()), {}});
  for (const auto& [key, generator] : program_.all_generators())
    out.push_back({str("random generator '{}'", key), "", {}, "", state_hash(generator), {}});
  return out;
}

std::vector<Named> Remains::left_by(const StepResult& run, const std::vector<at::Tensor>& tensors, bool by_bits) const {
  size_t next = 0;
  const auto rebound = [&](const Rebinding&) { return run.rebindings[next++].tensor; };
  return of({run.outputs, {}}, tensors, rebound, by_bits);
}

}  // namespace stepc
