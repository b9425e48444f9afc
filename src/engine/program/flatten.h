// A batch or a step's result as a flat list of tensors, and back. Covers tensors, vectors, arrays, pairs, tuples,
// optionals and string maps of them, nested; a struct takes part by a member `auto fields() { return std::tie(a, b);
// }`.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stepc {

namespace detail {
template <class T, class = void>
struct HasFields : std::false_type {};
template <class T>
struct HasFields<T, std::void_t<decltype(std::declval<T&>().fields())>> : std::true_type {};
}  // namespace detail

// Calls f(at::Tensor&) for every tensor in `value`, in order.
template <class F>
void for_each_tensor_in(at::Tensor& value, F&& f) {
  f(value);
}
template <class T, class F>
void for_each_tensor_in(std::vector<T>& value, F&& f);
template <class T, size_t n, class F>
void for_each_tensor_in(std::array<T, n>& value, F&& f);
template <class A, class B, class F>
void for_each_tensor_in(std::pair<A, B>& value, F&& f);
template <class... T, class F>
void for_each_tensor_in(std::tuple<T...>& value, F&& f);
template <class T, class F>
void for_each_tensor_in(std::optional<T>& value, F&& f);
template <class T, class F>
void for_each_tensor_in(std::map<std::string, T>& value, F&& f);

template <class T, class F>
requires(detail::HasFields<T>::value) void for_each_tensor_in(T& value, F&& f) {
  std::apply([&](auto&... field) { (for_each_tensor_in(field, f), ...); }, value.fields());
}
template <class T, class F>
void for_each_tensor_in(std::vector<T>& value, F&& f) {
  for (T& element : value) for_each_tensor_in(element, f);
}
template <class T, size_t n, class F>
void for_each_tensor_in(std::array<T, n>& value, F&& f) {
  for (T& element : value) for_each_tensor_in(element, f);
}
template <class A, class B, class F>
void for_each_tensor_in(std::pair<A, B>& value, F&& f) {
  for_each_tensor_in(value.first, f);
  for_each_tensor_in(value.second, f);
}
template <class... T, class F>
void for_each_tensor_in(std::tuple<T...>& value, F&& f) {
  std::apply([&](auto&... element) { (for_each_tensor_in(element, f), ...); }, value);
}
template <class T, class F>
void for_each_tensor_in(std::optional<T>& value, F&& f) {
  if (value.has_value()) for_each_tensor_in(*value, f);
}
template <class T, class F>
void for_each_tensor_in(std::map<std::string, T>& value, F&& f) {
  for (auto& [key, element] : value) for_each_tensor_in(element, f);
}

// The tensors of `value`, in order. Returns handles; copies no data.
template <class T>
std::vector<at::Tensor> tensors_in(const T& value) {
  std::vector<at::Tensor> out;
  for_each_tensor_in(const_cast<T&>(value), [&](at::Tensor& tensor) { out.push_back(tensor); });
  return out;
}

}  // namespace stepc
