// The state of a random generator as a value: of the CPU's read, compared and written back without allocating. Depends
// on LibTorch internals: CPUGeneratorImpl's engine and its two cached normal samples are all its state.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>

namespace stepc {

struct GeneratorSnapshot {
  at::mt19937 engine;
  std::optional<float> next_float;
  std::optional<double> next_double;
  std::string of_device;  // of a device's generator: its state as PyTorch gives it, the rest is not used
};

// From which calls on a device draw that are given no other: a CUDA device has one of its own.
at::Generator default_generator_of(const c10::Device& device);

// The default generators of the devices that these tensors lie on, by key: "default:cuda:0".
std::vector<std::pair<std::string, at::Generator>> device_generators(const std::vector<at::Tensor>& tensors);

// Whether it is one of the CPU's.
bool is_cpu_generator(const at::Generator& generator);

GeneratorSnapshot read_generator(const at::Generator& generator);
void write_generator(at::Generator generator, const GeneratorSnapshot& snapshot);

// A number that another run of the program draws again: of a CPU's generator the next one; of a device's it follows
// from seed and offset, so that nothing waits for the device, and the offset goes on.
int64_t drawn_number(at::Generator generator);

// Whether `generator` is in the state `snapshot`.
bool is_in_state(const at::Generator& generator, const GeneratorSnapshot& snapshot);

// The state as bytes, the same on every machine, and back. Throws UserError when `bytes` are no such state.
std::string to_bytes(const GeneratorSnapshot& snapshot);
GeneratorSnapshot snapshot_from_bytes(std::string_view bytes);

}  // namespace stepc
