#include "codegen/machine_code.h"

#include <utility>

#include "base/check.h"
#include "codegen/cuda_source.h"
#include "codegen/nvrtc.h"

namespace stepc {

MachineCode::MachineCode(std::filesystem::path directory) : directory_(std::move(directory)), cache_(directory_) {}
MachineCode::~MachineCode() = default;

const Nvrtc& MachineCode::compiler() {
  const std::lock_guard lock(mutex_);
  if (compiler_ == nullptr) compiler_ = std::make_unique<Nvrtc>();
  return *compiler_;
}

bool MachineCode::has_compiler() { return compiler().found(); }

std::string MachineCode::of(const std::string& source, int architecture) {
  const std::vector<std::string> options = cuda_options(architecture);
  const std::string key = str("{}\n{}", fmt::join(options, " "), source);
  {
    const std::lock_guard lock(mutex_);
    used_.insert(cache_.path_of(key));
  }
  if (std::optional<std::string> kept = cache_.find(key).object) return std::move(*kept);
  USER_CHECK(has_compiler(), "'{}' does not hold {} of {}, and NVRTC, which makes it, is not here", directory_.string(),
             cache_.path_of(key).filename().string(), options.front());
  std::string code = compiler().compile(source, options).cubin;
  static_cast<void>(cache_.keep(key, code));
  return code;
}

void MachineCode::remove_unused() const {
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    if (!used_.contains(entry.path())) std::filesystem::remove(entry.path());
}

}  // namespace stepc
