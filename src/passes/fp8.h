// fp8: linear layers multiply in float8, as torchao's dynamic scaling does: of an operand its largest element says the
// scale that brings it to the largest number of float8, and the product is scaled back. Inputs and weights become e4m3;
// gradients e5m2 with one scale for a tensor, e4m3 with scales a row. A linear layer is the product of a matrix and a
// parameter in the forward pass; with it go the products of its two gradients. Left as they are: an output layer (its
// results go to a softmax, it shares its weight with an embedding, or its parameter is an `lm_head` or `output`), and
// matrices with dimensions that 16 does not divide, which no kernel takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ir/graph.h"

namespace stepc {

enum class Fp8Recipe : uint8_t {
  kTensorwise,  // a scale for each tensor
  kRowwise,     // of a product a scale for each row of the left matrix and each column of the right one
};
std::string_view name_of(Fp8Recipe recipe);
std::optional<Fp8Recipe> fp8_recipe_from_name(std::string_view name);

Graph fp8(Graph graph, Fp8Recipe recipe);

}  // namespace stepc
