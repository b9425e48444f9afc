#include "engine/verify_replay.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "base/hash.h"

namespace stepc {

namespace {

uint64_t hash_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const at::Tensor dense = tensor.detach().resolve_conj().resolve_neg().contiguous();
  return hash_bytes({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
}

at::Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }
void set_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

struct Named {
  std::string what;
  uint64_t hash = 0;
};

// What the step may have changed: all that the program keeps from step to step, whether or not a schema declares the
// write, and those batch tensors that are declared written.
std::vector<size_t> written_externals(const Trace& trace) {
  std::vector<bool> written(trace.storages.size(), false);
  for (const Call& call : trace.calls)
    for (ValueId value : call.writes) written[trace.values[value.index()].storage.index()] = true;
  std::vector<size_t> out;
  for (size_t e = 0; e < trace.externals.size(); ++e)
    if (trace.externals[e].owner != Owner::kBatch ||
        written[trace.values[trace.externals[e].value.index()].storage.index()])
      out.push_back(e);
  return out;
}

}  // namespace

Verification verify_replay(Executable& executable, const std::vector<at::Tensor>& externals,
                           const std::function<std::vector<OwnedTensor>()>& list_owned,
                           const std::function<std::vector<at::Tensor>()>& step) {
  const Trace& trace = executable.trace();
  const std::vector<size_t> written = written_externals(trace);
  Verification verification;
  std::vector<at::Tensor> snapshot;
  at::Tensor generator_before;
  std::vector<Named> replayed;
  {
    const c10::AutoGradMode no_grad(false);
    for (size_t e : written) {
      snapshot.push_back(externals[e].detach().clone());
      verification.snapshot_bytes += snapshot.back().nbytes();
    }
    generator_before = generator_state();
    const StepResult result = executable.run(externals);
    verification.memory = result.memory;
    for (size_t o = 0; o < result.outputs.size(); ++o)
      replayed.push_back({str("returned value {}", o), hash_of(result.outputs[o])});
    for (size_t e : written)
      replayed.push_back(
          {str("{} '{}'", name_of(trace.externals[e].owner), trace.externals[e].key), hash_of(externals[e])});
    for (const auto& [key, gradient] : result.gradients)
      replayed.push_back({str("gradient of '{}'", key), hash_of(gradient)});
    replayed.push_back({"random generator", hash_of(generator_state())});
    for (size_t i = 0; i < written.size(); ++i) externals[written[i]].detach().copy_(snapshot[i]);
    snapshot.clear();
    set_generator_state(generator_before);
  }

  // `externals` may hold gradients that the step is about to drop; eager sees the same references as without us.
  verification.outputs = step();
  for (at::Tensor& output : verification.outputs)
    if (output.defined()) output = output.detach();

  const c10::AutoGradMode no_grad(false);
  size_t next = 0;
  const auto compare = [&](const at::Tensor& tensor) {
    if (verification.difference.empty() && replayed[next].hash != hash_of(tensor))
      verification.difference = replayed[next].what;
    ++next;
  };
  for (const at::Tensor& output : verification.outputs) compare(output);
  for (size_t e : written) compare(externals[e]);
  const std::vector<OwnedTensor> owned = list_owned();
  for (const GradientOut& gradient : trace.gradients) {
    for (const OwnedTensor& one : owned)
      if (one.owner == Owner::kGradient && one.key == gradient.key) compare(one.tensor);
  }
  compare(generator_state());
  INTERNAL_CHECK_EQ(next, replayed.size(), "eager and replay leave different sets of tensors");
  return verification;
}

}  // namespace stepc
