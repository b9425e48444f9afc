// Strong ids: dense indices that cannot be mixed up. Id<Tag>{3} prints as 3 and indexes with .index().
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

#include <fmt/format.h>

namespace stepc {

template <class Tag>
struct Id {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t value = kNone;

  constexpr Id() = default;
  constexpr explicit Id(size_t index) : value(static_cast<uint32_t>(index)) {}
  [[nodiscard]] constexpr size_t index() const { return value; }
  [[nodiscard]] constexpr bool valid() const { return value != kNone; }
  constexpr auto operator<=>(const Id&) const = default;
};

}  // namespace stepc

template <class Tag>
struct fmt::formatter<stepc::Id<Tag>> : fmt::formatter<uint32_t> {
  template <class Context>
  auto format(const stepc::Id<Tag>& id, Context& context) const {
    return fmt::formatter<uint32_t>::format(id.value, context);
  }
};

template <class Tag>
struct std::hash<stepc::Id<Tag>> {
  size_t operator()(const stepc::Id<Tag>& id) const { return std::hash<uint32_t>()(id.value); }
};
