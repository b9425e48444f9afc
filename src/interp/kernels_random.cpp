#include <array>
#include <cmath>
#include <numbers>

#include "interp/kernels.h"

namespace stepc {

namespace {

using Arrays = std::vector<Array>;
using Types = std::vector<TensorType>;

void set_number(Array& out, int64_t i, const Attrs& attrs, std::string_view name) {
  if (const auto* integer = std::get_if<int64_t>(attrs.find(name)))
    out.set(i, *integer);
  else
    out.set(i, attrs.get<double>(name));
}

Arrays full(const Arrays&, const Attrs& attrs, const Types& types) {
  Array out(types[0]);
  for (int64_t i = 0; i < out.count(); ++i) set_number(out, i, attrs, "value");
  return {out};
}
Arrays constant(const Arrays&, const Attrs& attrs, const Types& types) {
  Array out(types[0]);
  for (int64_t i = 0; i < out.count(); ++i) {
    if (out.is_real())
      out.set(i, attrs.get<std::vector<double>>("reals")[static_cast<size_t>(i)]);
    else
      out.set(i, attrs.get<Shape>("integers")[static_cast<size_t>(i)]);
  }
  return {out};
}
Arrays iota(const Arrays&, const Attrs& attrs, const Types& types) {
  const auto dim = static_cast<size_t>(attrs.get<int64_t>("dim"));
  const auto* start = std::get_if<int64_t>(attrs.find("start"));
  const auto* step = std::get_if<int64_t>(attrs.find("step"));
  Array out(types[0]);
  for_each_index(types[0].shape, [&](const Shape& index, int64_t i) {
    if (start != nullptr && step != nullptr)
      out.set(i, *start + *step * index[dim]);
    else
      out.set(i, attrs.number("start") + attrs.number("step") * static_cast<double>(index[dim]));
  });
  return {out};
}

// Philox 4x32 with 10 rounds (Salmon et al., SC 2011).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}
// The words of element i: key from the seed, counter from index, stream and step.
std::array<uint32_t, 4> draw(const Array& rng, const Attrs& attrs, int64_t i) {
  const auto seed = static_cast<uint64_t>(rng.integer(0));
  const auto index = static_cast<uint64_t>(i);
  return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                 static_cast<uint32_t>(attrs.get<int64_t>("stream")), static_cast<uint32_t>(rng.integer(1))},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}
double unit(uint32_t word) { return static_cast<double>(word >> 8) * 0x1p-24; }

Arrays random_uniform(const Arrays& in, const Attrs& attrs, const Types& types) {
  Array out(types[0]);
  for (int64_t i = 0; i < out.count(); ++i) out.set(i, unit(draw(in[0], attrs, i)[0]));
  return {out};
}
Arrays random_normal(const Arrays& in, const Attrs& attrs, const Types& types) {
  Array out(types[0]);
  for (int64_t i = 0; i < out.count(); ++i) {
    const auto words = draw(in[0], attrs, i);
    const double radius = std::sqrt(-2 * std::log(1 - unit(words[0])));
    out.set(i, radius * std::cos(2 * std::numbers::pi * unit(words[1])));
  }
  return {out};
}

}  // namespace

const KernelTable& random_kernels() {
  static const KernelTable kTable = {{"full", full},
                                     {"constant", constant},
                                     {"iota", iota},
                                     {"random_uniform", random_uniform},
                                     {"random_normal", random_normal}};
  return kTable;
}

}  // namespace stepc
