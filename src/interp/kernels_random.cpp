#include "interp/kernels.h"
#include "ops/philox.h"

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

philox::Draw draw_of(const Array& rng, const Attrs& attrs) {
  return {rng.integer(0), rng.integer(1), attrs.get<int64_t>("stream")};
}
int64_t place_of(const Arrays& in, int64_t i) { return in.size() > 1 ? in[1].integer(i) : i; }
Arrays random_uniform(const Arrays& in, const Attrs& attrs, const Types& types) {
  Array out(types[0]);
  for (int64_t i = 0; i < out.count(); ++i) out.set(i, draw_of(in[0], attrs).uniform(place_of(in, i)));
  return {out};
}
Arrays random_normal(const Arrays& in, const Attrs& attrs, const Types& types) {
  Array out(types[0]);
  for (int64_t i = 0; i < out.count(); ++i) out.set(i, draw_of(in[0], attrs).normal(place_of(in, i)));
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
