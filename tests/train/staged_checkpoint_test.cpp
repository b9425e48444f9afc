#include "train/step/staged_checkpoint.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace stepc::train {
namespace {

TEST(StagedCheckpoint, KeepsWhatWasCopiedWhileTheOriginalsChange) {
  at::Tensor weight = at::ones({3, 4}).t(), master = at::full({5}, 2.0), moment = at::full({5}, 3.0);
  const NamedTensors weights = {{"w", weight}, {"m", master}};
  const NamedTensors state = {{"m.master", master}, {"m.moment", moment}};
  StagedCheckpoint staged(weights, state);
  EXPECT_EQ(staged.bytes(), 4U * (12 + 5 + 5));  // the master weights once
  EXPECT_EQ(staged_bytes(weights, state), staged.bytes());
  staged.copy(weights, state);
  for (at::Tensor* tensor : {&weight, &master, &moment}) tensor->zero_();
  EXPECT_TRUE(at::equal(staged.weights()[0].second, at::ones({4, 3})));
  EXPECT_TRUE(at::equal(staged.weights()[1].second, at::full({5}, 2.0)));
  EXPECT_TRUE(at::equal(staged.state()[0].second, at::full({5}, 2.0)));
  EXPECT_TRUE(at::equal(staged.state()[1].second, at::full({5}, 3.0)));
  EXPECT_EQ(staged.state()[1].first, "m.moment");
  EXPECT_THROW(staged.copy(weights, {}), InternalError);
}

}  // namespace
}  // namespace stepc::train
