// Runs fuzz targets on seeds that are damaged by rule, and on files made hostile: none may crash, hang over a second,
// throw anything but a UserError of one line, or, where it refuses, ask for much more memory than its input has. The
// random numbers are seeded, so a failure comes again. Linking this counts what the whole program allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stepc {

using FuzzTarget = int (*)(const uint8_t*, size_t);

inline constexpr size_t kMebibyte = 1 << 20;

// 1 when the target refuses the input, 0 when it takes it. A refusal may allocate twice the input and `spare_bytes`.
int run_target(FuzzTarget target, const std::string& input, size_t spare_bytes);

// Every seed must be taken as it is, and at least `least_refused` of the damaged ones refused.
void seeded_run(FuzzTarget target, const std::vector<std::string>& seeds, int rounds, size_t spare_bytes,
                int least_refused);

using Files = std::vector<std::string>;

// Of a good file of text: cut anywhere, a byte that is no text anywhere; and what is no such file at all.
Files broken(const std::string& good, size_t stride);
// JSON, which has a member of this name, with another value for the first one.
std::string with_value(const std::string& json, const std::string& name, const std::string& value);
// All of them, each for little memory.
void expect_refused(FuzzTarget target, const Files& files);

}  // namespace stepc
