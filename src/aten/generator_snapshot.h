// The state of a CPU random generator as a value: read, compared and written back without allocating. Depends on
// LibTorch internals: CPUGeneratorImpl's engine and its two cached normal samples are all its state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>

namespace stepc {

struct GeneratorSnapshot {
  at::mt19937 engine;
  std::optional<float> next_float;
  std::optional<double> next_double;
};

// Whether a Trace can hold this generator's state: it is a CPU generator.
bool is_cpu_generator(const at::Generator& generator);

GeneratorSnapshot read_generator(const at::Generator& generator);
void write_generator(at::Generator generator, const GeneratorSnapshot& snapshot);

// Whether `generator` is in the state `snapshot`.
bool is_in_state(const at::Generator& generator, const GeneratorSnapshot& snapshot);

// The state as bytes, the same on every machine, and back. Throws UserError when `bytes` are no such state.
std::string to_bytes(const GeneratorSnapshot& snapshot);
GeneratorSnapshot snapshot_from_bytes(std::string_view bytes);

}  // namespace stepc
