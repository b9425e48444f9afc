// NVRTC, where a CUDA toolkit is or PyTorch's wheel has brought one: loaded when it is asked for, so that nothing links
// to it.
#pragma once

#include <string>
#include <vector>

#include <dlfcn.h>
#include <link.h>

#include "base/check.h"

namespace stepc {

class Nvrtc {
 public:
  Nvrtc() {
    for (const std::string& name : places())
      if (library_ == nullptr) library_ = dlopen(name.c_str(), RTLD_NOW);
  }
  [[nodiscard]] bool found() const { return library_ != nullptr; }

  [[nodiscard]] std::string version() const {
    int major = 0;
    int minor = 0;
    call<int(int*, int*)>("nvrtcVersion")(&major, &minor);
    return str("{}.{} ", major, minor);
  }
  struct Compiled {
    std::string cubin, log;
  };
  // Machine code of `source`; InternalError with the compiler's words.
  [[nodiscard]] Compiled compile(const std::string& source, const std::vector<std::string>& options) const {
    using Program = void*;
    Program program = nullptr;
    call<int(Program*, const char*, const char*, int, const char* const*, const char* const*)>("nvrtcCreateProgram")(
        &program, source.c_str(), "kernel.cu", 0, nullptr, nullptr);
    std::vector<const char*> words;
    for (const std::string& option : options) words.push_back(option.c_str());
    const int result = call<int(Program, int, const char* const*)>("nvrtcCompileProgram")(
        program, static_cast<int>(words.size()), words.data());
    const std::string log = text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog");
    INTERNAL_CHECK(result == 0, "NVRTC: {}\n{}", log, source);
    Compiled out{text(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN"), log};
    call<int(Program*)>("nvrtcDestroyProgram")(&program);
    return out;
  }

 private:
  // The wheels have it near the CUDA runtime that PyTorch has loaded.
  static std::vector<std::string> places() {
    std::vector<std::string> out;
    const auto look = [](dl_phdr_info* loaded, size_t, void* found) {
      const std::string path = loaded->dlpi_name;
      const size_t name = path.rfind("/libcudart.so");
      if (name == std::string::npos) return 0;
      for (const char* place : {"/libnvrtc.so.13", "/libnvrtc.so.12", "/../../cuda_nvrtc/lib/libnvrtc.so.12"})
        static_cast<std::vector<std::string>*>(found)->push_back(path.substr(0, name) + place);
      return 0;
    };
    dl_iterate_phdr(look, &out);
    for (const char* place : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so",
                              "/usr/local/cuda/lib/libnvrtc.so"})
      out.emplace_back(place);
    return out;
  }

  template <class F>
  F* call(const char* name) const {
    void* found = dlsym(library_, name);
    INTERNAL_CHECK(found != nullptr, "NVRTC has no {}", name);
    return reinterpret_cast<F*>(found);  // NOLINT: what dlsym gives
  }
  [[nodiscard]] std::string text(void* program, const char* size_name, const char* name) const {
    size_t size = 0;
    call<int(void*, size_t*)>(size_name)(program, &size);
    std::string out(size, '\0');
    call<int(void*, char*)>(name)(program, out.data());
    return out;
  }

  void* library_ = nullptr;
};

}  // namespace stepc
