// Upper bounds of what a config.json may say: far above any model, and low enough that no product of sizes leaves
// int64_t.
#pragma once

#include <cstdint>

namespace stepc::models {

constexpr int64_t kMaxVocab = int64_t{1} << 26;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxPositions = int64_t{1} << 30;
constexpr int64_t kMaxTablePositions = int64_t{1} << 20;  // of learned positions: rows of a matrix
constexpr double kMaxDropout = 0.99;

}  // namespace stepc::models
