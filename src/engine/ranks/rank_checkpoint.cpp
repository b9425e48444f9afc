// A checkpoint of a step on ranks: the program's tensors by their keys, in slices.
#include <optional>

#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/virtual_memory.h"
#include "base/check.h"
#include "base/files.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/sharing_files.h"
#include "engine/ranks/consensus.h"
#include "engine/ranks/program_parts.h"
#include "engine/ranks/saved_slices.h"

namespace stepc {

// Whether the ranks still hold the tensor; the program may have replaced it since.
bool ProgramParts::is_held(const Key& key, const at::Tensor& tensor) const {
  const auto held = held_.find(key);
  return held != held_.end() && tensor.storage().unsafeGetStorageImpl() == held->second;
}

std::filesystem::path ProgramParts::save(const std::filesystem::path& output, int64_t number,
                                         const Companions& companions) {
  const bool is_first = ranks_->rank() == 0;
  std::string at;
  std::optional<CheckpointWriter> writer;
  enter_together(*ranks_, "step.save()");
  together(*ranks_, [&] {
    program_.refresh();
    if (is_first) at = writer.emplace(output, TrainerState{.step = number}).path();
  });
  at = ranks_->exchange(at)[0];
  ManifestFiles own;
  together(*ranks_, [&] {
    SharingFiles sharing(system_files(), newest_directory(output));
    write_own_slices(at, sharing);
    const std::string beginning = beginning_of_slice_files(ranks_->rank());
    if (!is_first)
      for (const auto& [name, text] : companions)
        write_file_synced(std::filesystem::path(at) / (beginning + name), text, sharing);
    own = hash_files(at, beginning);
  });
  ManifestFiles written;
  for (const std::string& files : ranks_->exchange(to_text(own))) written.merge(parse_manifest_files(files));
  std::string final;
  together(*ranks_, [&] {
    if (!is_first) return;
    for (const auto& [name, text] : companions) write_file_synced(writer->path() / name, text);
    final = writer->commit(written, to_text(stages_.mesh));
  });
  return ranks_->exchange(final)[0];
}

// Rank 0 writes the tensors that all ranks have whole and that no step has taken.
void ProgramParts::write_own_slices(const std::filesystem::path& directory, FileSystem& files) {
  SavedSlices in_parts[2];
  std::vector<std::pair<std::string, at::Tensor>> whole[2];
  for (const SavedTensor& one : saved_tensors(program_)) {
    const size_t which = one.is_of_model ? 0 : 1;
    const Key key{one.key.owner, one.key.key};
    if (is_held(key, one.tensor)) {
      const auto on = stages_of_.find(key);  // of several stages the first saves
      if (on == stages_of_.end() || on->second.front() == stages_.own)
        in_parts[which].push_back({one.key.key, one.key.owner, one.key.key, 0, {}, is_kept(one)});
    } else if (!is_virtual(one.tensor)) {
      whole[which].emplace_back(one.key.key, one.tensor.detach());
    } else {
      USER_CHECK(program_.initial_value(one.key), "{} '{}' has no values to save: call the step before",
                 name_of(one.key.owner), one.key.key);
    }
  }
  for (const auto& [name, generator] : saved_generators(program_)) whole[1].emplace_back(name, generator.get_state());
  for (const size_t which : {0, 1}) {
    SavedSlices slices = slices_of(state_, in_parts[which]);
    NamedTensors tensors = windows(state_, slices);
    if (ranks_->rank() == 0)
      for (const auto& [name, tensor] : whole[which]) {
        slices.push_back(slice_of_whole(name, tensor.sizes().vec()));
        tensors.emplace_back(name, tensor);
      }
    write_slices(directory, which == 0 ? kModelFiles : kOptimizerFiles, *ranks_, stages_.mesh, slices, tensors,
                 std::nullopt, files);
  }
}

std::vector<ProgramParts::HeldTensor> ProgramParts::held_tensors() {
  std::vector<HeldTensor> held;
  std::string in_no_words;  // by tensor, whether this rank's part is of no dimensions
  program_.refresh();
  for (const SavedTensor& one : saved_tensors(program_)) {
    HeldTensor& tensor = held.emplace_back(HeldTensor{one.key.key, one.is_of_model, one.tensor.detach()});
    const bool is_kept_here = is_held({one.key.owner, one.key.key}, one.tensor);
    tensor.is_own = !is_kept_here || state_.has(one.key.owner, one.key.key);
    if (is_kept_here && tensor.is_own) {
      tensor.split = state_.split_dims(one.key.owner, one.key.key);
      if (tensor.split) tensor.part = state_.unpadded_part(one.key.owner, one.key.key);
    } else if (!is_kept_here) {
      USER_CHECK(!is_virtual(one.tensor), "{} '{}' has no values yet: call the step before", name_of(one.key.owner),
                 one.key.key);
    }
    in_no_words += tensor.is_own && is_kept_here && !tensor.split ? '1' : '0';
  }
  if (stages_.count == 1) return held;
  const std::vector<std::string> all = ranks_->exchange(in_no_words);
  for (size_t t = held.size(); t-- > 0;)
    if (!held[t].is_own && std::ranges::none_of(all, [&](const std::string& one) { return one[t] == '1'; }))
      held.erase(held.begin() + static_cast<ptrdiff_t>(t));
  return held;
}

Checkpoint ProgramParts::load(const std::filesystem::path& from, const AcceptFn& accept) {
  std::string at;
  Checkpoint checkpoint;
  std::shared_ptr<SavedProgram> saved;
  bool made = false;
  enter_together(*ranks_, "step.load()");
  together(*ranks_, [&] {
    if (ranks_->rank() == 0) at = std::filesystem::absolute(find_checkpoint(from).directory);  // every hash is checked
  });
  at = ranks_->exchange(at)[0];
  try {
    together(*ranks_, [&] {
      checkpoint = read_checkpoint(at, CheckedBy::kSizes);
      saved = std::make_shared<SavedProgram>(checkpoint.directory);
      program_.refresh();
      if (accept) accept(checkpoint.directory);
      program_.adopt(saved->names_of_state());
      program_.refresh();
      const std::vector<OwnedKey> before = program_.keys();
      made = program_.make_state();
      program_.refresh();
      program_.adopt(saved->names_of_state());  // of what was made
      program_.refresh();
      saved->check(program_, before);
    });
  } catch (...) {
    if (made) program_.drop_state();
    program_.refresh();
    throw;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const SavedTensor& one : saved_tensors(program_)) {
    const Key key{one.key.owner, one.key.key};
    const TensorFiles* files = nullptr;
    const TensorFiles::Tensor* found = saved->find(one, files);
    if (found == nullptr) continue;
    if (is_held(key, one.tensor))
      state_.put(key.first, key.second, *files, *found);
    else if (is_virtual(one.tensor))
      saved_[key] = saved;
    else
      put_into(one.tensor, read_tensor(*files, *found));
  }
  saved->load_generators(program_);
  return checkpoint;
}

}  // namespace stepc
