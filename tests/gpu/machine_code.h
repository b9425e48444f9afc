// Machine code of CUDA C++, kept in a folder by the text that it is of: made once where NVRTC is, used where there is
// none.
#pragma once

#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "codegen/cuda_source.h"
#include "tests/codegen/nvrtc.h"

namespace stepc {

class MachineCode {
 public:
  MachineCode(std::filesystem::path folder, int architecture)
      : folder_(std::move(folder)), options_(cuda_options(architecture)) {
    std::filesystem::create_directories(folder_);
  }

  // UserError where it is neither kept nor can be made.
  [[nodiscard]] std::string of(const std::string& source) {
    const std::string key = str("{}\n", fmt::join(options_, " ")) + source;
    const std::string name = hash_text(hash_bytes(std::as_bytes(std::span(key)))) + ".cubin";
    used_.insert(name);
    if (std::filesystem::exists(folder_ / name)) return read_text(folder_ / name, uint64_t{1} << 28);
    USER_CHECK(nvrtc_.found(), "{} has no {} of {} and NVRTC is not here: make the bundle again", folder_.string(),
               name, fmt::join(options_, " "));
    const std::string code = nvrtc_.compile(source, options_).cubin;
    std::ofstream(folder_ / (name + ".part"), std::ios::binary) << code;
    std::filesystem::rename(folder_ / (name + ".part"), folder_ / name);
    return code;
  }

  // What texts of another time have left.
  void remove_unused() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (!used_.contains(entry.path().filename().string())) std::filesystem::remove(entry.path());
  }

 private:
  std::filesystem::path folder_;
  std::vector<std::string> options_;
  Nvrtc nvrtc_;
  std::set<std::string> used_;
};

}  // namespace stepc
