// Copies of batches to the emulated device. It finishes what is asynchronous only when the host waits, and notices when
// page-locked memory changes before that.
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tests/device/open_emulated_device.h"
#include "train/step/batches.h"

namespace stepc::train {
namespace {

TEST(BatchCopier, NeitherWaitsNorReadsWhatIsFilledAnew) {
  if (emulated_device() == nullptr) GTEST_SKIP() << "there is no emulated device in this build";
  const at::Device device("privateuseone:0");
  const BatchCopier to_device(device);
  const Batch batch = {at::arange(12).view({1, 3, 4}), at::arange(12, 24).view({1, 3, 4}), {}};

  const at::Tensor answer = at::zeros({}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
  answer.copy_(at::ones({}, at::kLong).to(device), /*non_blocking=*/true);
  const Batch there = to_device(batch);
  EXPECT_EQ(*answer.const_data_ptr<int64_t>(), -1) << "the host has waited for the device";
  EXPECT_EQ(there.tokens.device(), device);
  EXPECT_FALSE(there.documents.defined());

  batch.tokens.fill_(7);  // the next step's
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  EXPECT_EQ(*answer.const_data_ptr<int64_t>(), 1);
  EXPECT_TRUE(at::equal(there.tokens.to(at::kCPU), at::arange(12).view({1, 3, 4})));
  EXPECT_TRUE(at::equal(there.labels.to(at::kCPU), at::arange(12, 24).view({1, 3, 4})));
}

TEST(BatchCopier, LeavesABatchOfTheCpuWhereItIs) {
  const Batch batch = {at::arange(4).view({1, 1, 4}), at::arange(4).view({1, 1, 4}), at::zeros({1, 1, 4}, at::kLong)};
  const Batch same = BatchCopier(at::kCPU)(batch);
  EXPECT_TRUE(same.tokens.is_same(batch.tokens));
  EXPECT_TRUE(same.documents.is_same(batch.documents));
}

}  // namespace
}  // namespace stepc::train
