#include "base/module_scope.h"

#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(ModuleScope, JoinsTheOpenScopesAndClosesThemInReverse) {
  EXPECT_EQ(ModuleScope::current(), "");
  const ModuleScope model("model");
  {
    const ModuleScope layer("layers.0");
    const ModuleScope mlp("mlp");
    EXPECT_EQ(ModuleScope::current(), "model.layers.0.mlp");
  }
  EXPECT_EQ(ModuleScope::current(), "model");
}

TEST(ModuleScope, ClosesWhenAForwardThrows) {
  try {
    const ModuleScope scope("model");
    throw std::runtime_error("forward");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(ModuleScope::current(), "");
  }
}

TEST(ModuleScope, BelongsToItsThread) {
  const ModuleScope scope("model");
  std::string elsewhere = "unset";
  std::thread([&] { elsewhere = ModuleScope::current(); }).join();
  EXPECT_EQ(elsewhere, "");
}

}  // namespace
}  // namespace stepc
