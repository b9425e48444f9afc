// Cuts a workspace into 64-byte aligned pieces. The same code runs without memory to find out how much is needed, so a
// size and its use cannot drift apart. Internal to blocked/.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepc::blocked {

class Workspace {
 public:
  explicit Workspace(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <class T>
  T* take(int64_t count) {
    constexpr size_t kAlignment = 64;
    T* piece = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

}  // namespace stepc::blocked
