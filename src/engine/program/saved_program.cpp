#include "engine/program/saved_program.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/generator_snapshot.h"
#include "aten/virtual_memory.h"
#include "base/check.h"
#include "base/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_shards.h"
#include "checkpoint/sharing_files.h"
#include "checkpoint/tensors.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {

constexpr const char* kStateFile = "optimizer.safetensors";

bool is_in(const std::vector<OwnedKey>& keys, const OwnedKey& key) {
  return std::ranges::find(keys, key) != keys.end();
}

}  // namespace

std::vector<SavedTensor> saved_tensors(const Program& program) {
  std::vector<at::Tensor> tensors;
  program.append_tensors(tensors);
  std::vector<SavedTensor> out;
  for (size_t k = 0; k < program.keys().size(); ++k) {
    const OwnedKey& key = program.keys()[k];
    if (key.owner != Owner::kGradient && tensors[k].defined())
      out.push_back({key, program.is_of_model(key), tensors[k]});
  }
  return out;
}

std::vector<std::pair<std::string, at::Generator>> saved_generators(const Program& program) {
  std::vector<std::pair<std::string, at::Generator>> out = {{kGeneratorState, default_generator_of(at::kCPU)}};
  std::vector<at::Tensor> tensors;
  program.append_tensors(tensors);
  for (const auto& [key, generator] : device_generators(tensors)) out.emplace_back(kDeviceGeneratorState, generator);
  return out;
}

bool is_kept(const SavedTensor& tensor) {
  return tensor.is_of_model && tensor.key.owner == Owner::kParameter && !tensor.tensor.requires_grad() &&
         tensor.tensor.nbytes() >= SharingFiles::kLeastBytes;
}

void put_into(const at::Tensor& tensor, const at::Tensor& read) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  materialise(tensor);
  tensor.detach().copy_(read);
}

// ---- reading

SavedProgram::SavedProgram(const fs::path& checkpoint)
    : directory_(checkpoint), model_(checkpoint, kModelFiles), state_(checkpoint, kOptimizerFiles) {}

const TensorFiles::Tensor* SavedProgram::find(const SavedTensor& tensor, const TensorFiles*& files) const {
  files = tensor.is_of_model ? &model_ : &state_;
  return files->find(tensor.key.key);
}

std::vector<std::string> SavedProgram::names_of_state() const {
  std::vector<std::string> names;
  for (const TensorFiles::Tensor& tensor : state_.tensors())
    if (tensor.name != kGeneratorState && tensor.name != kDeviceGeneratorState) names.push_back(tensor.name);
  return names;
}

void SavedProgram::check(const Program& program, const std::vector<OwnedKey>& before) const {
  std::set<std::string> model, state;
  for (const SavedTensor& one : saved_tensors(program)) {
    (one.is_of_model ? model : state).insert(one.key.key);
    const TensorFiles* files = nullptr;
    const TensorFiles::Tensor* saved = find(one, files);
    USER_CHECK(saved != nullptr || !is_in(before, one.key), "{}: the {} '{}' of the program is missing",
               directory_.string(), name_of(one.key.owner), one.key.key);
    USER_CHECK(saved == nullptr || one.tensor.sizes() == c10::IntArrayRef(saved->shape),
               "{}: {} '{}' has the shape [{}], the program's is [{}]", directory_.string(), name_of(one.key.owner),
               one.key.key, fmt::join(saved->shape, ", "), fmt::join(one.tensor.sizes(), ", "));
  }
  for (const TensorFiles::Tensor& tensor : model_.tensors())
    USER_CHECK(model.contains(tensor.name), "{}: the program has no parameter or buffer '{}'", directory_.string(),
               tensor.name);
  for (const std::string& name : names_of_state())
    USER_CHECK(state.contains(name),
               "{}: the program has no '{}'; where its step makes that, call the step once before load()",
               directory_.string(), name);
}

void SavedProgram::load_generators(const Program& program) const {
  USER_CHECK(state_.find(kGeneratorState) != nullptr, "{}: the generator's state is missing", directory_.string());
  for (auto& [name, generator] : saved_generators(program))
    if (const TensorFiles::Tensor* state = state_.find(name)) generator.set_state(read_tensor(state_, *state));
}

Checkpoint find_checkpoint(const fs::path& from) {
  std::error_code ignored;
  if (fs::exists(from / kManifestName, ignored)) return read_checkpoint(from);
  std::optional<Checkpoint> latest = find_latest_checkpoint(from);
  USER_CHECK(latest, "{} is no checkpoint, and none is in it", from.string());
  return *std::move(latest);
}

void load_program(Program& program, const SavedProgram& saved) {
  program.refresh();
  program.adopt(saved.names_of_state());
  program.refresh();
  const std::vector<OwnedKey> before = program.keys();
  const bool has_all = std::ranges::all_of(saved.names_of_state(), [&](const std::string& name) {
    return std::ranges::any_of(before, [&](const OwnedKey& key) { return key.key == name; });
  });
  const bool made = !has_all && program.make_state();
  try {
    program.refresh();
    saved.check(program, before);
  } catch (...) {
    if (made) program.drop_state();
    program.refresh();
    throw;
  }
  for (const SavedTensor& one : saved_tensors(program)) {
    const TensorFiles* files = nullptr;
    if (const TensorFiles::Tensor* found = saved.find(one, files)) {
      put_into(one.tensor, read_tensor(*files, *found));
    } else if (is_virtual(one.tensor)) {
      materialise(one.tensor);
      one.tensor.fill_(*program.initial_value(one.key));
    }
  }
  saved.load_generators(program);
}

// ---- writing

fs::path save_program(Program& program, const fs::path& output, int64_t number, const Companions& companions) {
  program.refresh();
  NamedTensors trained, kept, state;
  for (const SavedTensor& one : saved_tensors(program)) {
    USER_CHECK(!is_virtual(one.tensor), "{} '{}' has no values to save: it was made in virtual()",
               name_of(one.key.owner), one.key.key);
    (!one.is_of_model ? state : is_kept(one) ? kept : trained).emplace_back(one.key.key, one.tensor);
  }
  for (const auto& [name, generator] : saved_generators(program)) state.emplace_back(name, generator.get_state());
  CheckpointWriter writer(output, {.step = number});
  SharingFiles sharing(system_files(), newest_directory(output));
  save_model_parts(writer.path(), {kept, trained}, sharing);
  save_tensors(writer.path() / kStateFile, state, {}, sharing);
  for (const auto& [name, text] : companions) write_file_synced(writer.path() / name, text, sharing);
  return writer.commit();
}

}  // namespace stepc
