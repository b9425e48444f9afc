// The buffers of one program in one piece of memory, as a device is given it: apart from each other, with bytes around
// each that nobody may write, and no better aligned than the mapping asks for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "codegen/gpu_mapping.h"

namespace stepc {

class DeviceImage {
 public:
  // `buffers`: the inputs' and outputs' bytes, of which only the inputs' count. `in_place`: outputs lie where the
  // program lets them lie on an input.
  DeviceImage(const GpuProgram& program, const std::vector<std::span<uint8_t>>& buffers, bool in_place)
      : program_(program), shares_(buffers.size()), places_(buffers.size(), 0) {
    if (in_place) pair_up();
    for (size_t b = 0; b < buffers.size(); ++b) {
      sizes_.push_back(buffers[b].size());
      if (shares_[b]) continue;
      places_[b] = kGuard + round_up(bytes_.size(), kApart) + kAlignment;
      bytes_.resize(places_[b], kUntouched);
      if (is_output(b))
        bytes_.resize(places_[b] + sizes_[b], kUnwritten);
      else
        bytes_.insert(bytes_.end(), buffers[b].begin(), buffers[b].end());
    }
    for (size_t b = 0; b < buffers.size(); ++b)
      if (shares_[b]) places_[b] = places_[*shares_[b]];
    scratch_ = kGuard + round_up(bytes_.size(), kApart) + kScratchAlignment;
    bytes_.resize(scratch_, kUntouched);
    bytes_.resize(scratch_ + scratch_bytes(), kUnwritten);
    bytes_.resize(round_up(bytes_.size() + kGuard, kApart), kUntouched);
  }

  [[nodiscard]] const std::vector<uint8_t>& bytes() const { return bytes_; }
  // Of a kernel, where the image lies at `base`.
  [[nodiscard]] std::vector<void*> arguments(uint64_t base) const {
    std::vector<void*> out;
    const auto add = [&](size_t place) { out.push_back(reinterpret_cast<void*>(base + place)); };  // NOLINT: a device's
    for (size_t place : places_) add(place);
    add(scratch_);
    return out;
  }

  // What kernels have written, of each output.
  [[nodiscard]] std::vector<std::vector<uint8_t>> outputs(const std::vector<uint8_t>& after) const {
    std::vector<std::vector<uint8_t>> out;
    for (size_t b = 0; b < sizes_.size(); ++b) {
      const auto begin = after.begin() + static_cast<ptrdiff_t>(places_[b]);
      if (is_output(b)) out.emplace_back(begin, begin + static_cast<ptrdiff_t>(sizes_[b]));
    }
    return out;
  }
  // The first byte that they had no right to write, in words; empty: none.
  [[nodiscard]] std::string problem_of(const std::vector<uint8_t>& after) const {
    std::vector<uint8_t> allowed = bytes_;
    const auto allow = [&](size_t place, size_t count) { std::copy_n(&after[place], count, &allowed[place]); };
    for (size_t b = 0; b < sizes_.size(); ++b)
      if (is_output(b) && sizes_[b] != 0) allow(places_[b], sizes_[b]);
    if (scratch_bytes() != 0) allow(scratch_, scratch_bytes());
    if (allowed == after) return {};
    const auto at = static_cast<size_t>(std::ranges::mismatch(allowed, after).in1 - allowed.begin());
    std::string out = str("byte {} is written: {:#x} for {:#x}; buffers of", at, after[at], allowed[at]);
    for (size_t b = 0; b < sizes_.size(); ++b) out += str(" b{}: {} at {};", b, sizes_[b], places_[b]);
    return out + str(" scratch: {} at {}", scratch_bytes(), scratch_);
  }

 private:
  static constexpr size_t kGuard = 512;
  static constexpr size_t kApart = 256;
  static constexpr size_t kAlignment = 16;
  static constexpr size_t kScratchAlignment = 64;
  static constexpr uint8_t kUntouched = 0xA5;  // between buffers
  static constexpr uint8_t kUnwritten = 0xEE;

  static size_t round_up(size_t bytes, size_t by) { return (bytes + by - 1) / by * by; }
  [[nodiscard]] size_t scratch_bytes() const { return static_cast<size_t>(program_.loops.scratch_bytes); }
  [[nodiscard]] bool is_output(size_t buffer) const {
    return program_.loops.buffers[buffer].kind == LoopBuffer::Kind::kOutput;
  }
  void pair_up() {
    std::vector<bool> is_taken(places_.size(), false);
    for (const auto& [input, output] : program_.loops.in_place) {
      if (is_taken[input] || is_taken[output]) continue;
      is_taken[input] = is_taken[output] = true;
      shares_[output] = input;
    }
  }

  const GpuProgram& program_;
  std::vector<std::optional<size_t>> shares_;  // the input on which an output lies
  std::vector<size_t> places_, sizes_;         // by buffer
  size_t scratch_ = 0;
  std::vector<uint8_t> bytes_;
};

}  // namespace stepc
