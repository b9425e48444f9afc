// Where a model's tensors lie: the CPU's memory, or a device's that this PyTorch knows.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "aten/device_facts.h"

namespace stepc::train {

inline constexpr const char* kAutoDevice = "auto";

// "auto", "cpu", "cuda", "cuda:1". A UserError that begins with `what` ("train.device") where no such device is here.
// It is the calling thread's current one from then on. `local_rank`: without a number, the device of that number.
at::Device use_device(const std::string& what, const std::string& name, int64_t local_rank = 0);

// The GPU that "auto" decides about: nullopt where no NVIDIA driver is loaded.
std::optional<DeviceFacts> first_gpu();
// The beginnings of the names of cards on which `stepc train` has run with eager's results: the table "What has run on
// a GPU" of docs/gpu.md.
inline constexpr std::array<std::string_view, 1> kProvenCards = {"NVIDIA H100"};
// Where "auto" trains: on a proven card, otherwise on the CPU.
std::string default_device(const std::optional<DeviceFacts>& gpu,
                           std::span<const std::string_view> proven = kProvenCards);
// A line where a run on `device` leaves that GPU alone; else empty.
std::string unused_gpu(const at::Device& device, const std::optional<DeviceFacts>& gpu);

// A UserError where the device is known to have less memory free.
void check_device_memory(const std::string& what, const at::Device& device, uint64_t needed_bytes);

}  // namespace stepc::train
