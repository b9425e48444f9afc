// The emulated device for tests in C++: the library beside the tests, opened once and never closed; nullptr: this build
// has none.
#pragma once

#include <filesystem>

#include <dlfcn.h>

namespace stepc {

inline void* emulated_device() {
  static void* const library = [] {
    const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    return ::dlopen((here / "libemulated_device.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
  }();
  return library;
}

}  // namespace stepc
