#include "ops/aten_map/aten_map.h"

#include <gtest/gtest.h>

#include "ops/op_def.h"

namespace stepc {
namespace {

std::string row_name(std::string_view op) {
  const AtenMatch match = find_aten_row(op);
  return match.row == nullptr ? "" : str("{}{}", match.foreach ? "each " : "", match.row->name);
}

TEST(AtenMap, InPlaceOutAndForeachFormsFindTheirRow) {
  EXPECT_EQ(row_name("aten::add.Tensor"), "add.Tensor");
  EXPECT_EQ(row_name("aten::add_.Tensor"), "add.Tensor");
  EXPECT_EQ(row_name("aten::add.out"), "add.Tensor");
  EXPECT_EQ(row_name("aten::mm.out"), "mm");
  EXPECT_EQ(row_name("aten::sum.IntList_out"), "sum.dim_IntList");
  EXPECT_EQ(row_name("aten::_foreach_mul_.Scalar"), "each mul.Scalar");
  EXPECT_EQ(row_name("aten::_foreach_add_.List"), "each add.Tensor");
  EXPECT_EQ(row_name("aten::_foreach_addcdiv_.ScalarList"), "each addcdiv.Scalar");
  EXPECT_EQ(row_name("aten::_foreach_sqrt"), "each sqrt");
  EXPECT_EQ(row_name("aten::_fused_adamw_"), "_fused_adamw_");
  EXPECT_EQ(row_name("aten::_amp_foreach_non_finite_check_and_unscale_"), "_amp_foreach_non_finite_check_and_unscale_");
  EXPECT_EQ(row_name("aten::zero_"), "zero");
  EXPECT_EQ(row_name("aten::frobnicate"), "");
  EXPECT_EQ(row_name("mylib::add.Tensor"), "");
}

TEST(AtenMap, KnowsWhatDraws) {
  for (const char* op : {"aten::native_dropout", "aten::bernoulli_.float", "aten::randn_like", "aten::normal_",
                         "aten::multinomial", "aten::uniform_"})
    EXPECT_TRUE(draws_random(op)) << op;
  for (const char* op : {"aten::native_dropout_backward", "aten::add.Tensor", "aten::linalg_vector_norm"})
    EXPECT_FALSE(draws_random(op)) << op;
}

// What promoted() says of arguments of the given types; numbers are i64 3 or f64 0.5.
class Promotion : public ::testing::Test {
 protected:
  DType of(const std::vector<TensorType>& tensors, std::vector<Arg> numbers = {}) {
    std::vector<Arg> args;
    std::vector<TensorId> ids;
    for (const TensorType& type : tensors) {
      args.emplace_back(ValueId(ids.size()));
      ids.push_back(builder_.graph().add_input({InputKind::kBatch, str("{}", count_++), {}, {}, 0}, type));
    }
    for (Arg& number : numbers) args.push_back(std::move(number));
    const AtenMapper::Environment environment = {[ids](ValueId id) { return ids[id.index()]; }, {}, {}, {}};
    std::vector<size_t> all;
    for (size_t i = 0; i < args.size(); ++i) all.push_back(i);
    return AtenMapper(builder_, environment, args, {}).promoted(all);
  }
  static TensorType tensor(DType dtype) { return {dtype, {2}}; }
  static TensorType scalar(DType dtype) { return {dtype, {}}; }

 private:
  GraphBuilder builder_;
  int count_ = 0;
};

// As torch.result_type says.
TEST_F(Promotion, FollowsPyTorch) {
  EXPECT_EQ(of({tensor(DType::kBF16), tensor(DType::kF16)}), DType::kF32);
  EXPECT_EQ(of({tensor(DType::kBF16), tensor(DType::kF32)}), DType::kF32);
  EXPECT_EQ(of({tensor(DType::kBF16), scalar(DType::kF64)}), DType::kBF16) << "a 0-dim tensor of the same kind";
  EXPECT_EQ(of({tensor(DType::kI64), scalar(DType::kF64)}), DType::kF64) << "of a higher kind";
  EXPECT_EQ(of({tensor(DType::kBF16)}, {Arg(0.5)}), DType::kBF16);
  EXPECT_EQ(of({tensor(DType::kI32)}, {Arg(int64_t{3})}), DType::kI32);
  EXPECT_EQ(of({tensor(DType::kI32)}, {Arg(0.5)}), DType::kF32) << "the default dtype";
  EXPECT_EQ(of({tensor(DType::kBool)}, {Arg(int64_t{3})}), DType::kI64);
  EXPECT_EQ(of({scalar(DType::kF64)}, {Arg(WrappedNumber{0.5})}), DType::kF64);
  EXPECT_EQ(of({tensor(DType::kU8), tensor(DType::kI8)}), DType::kI16);
  EXPECT_EQ(of({tensor(DType::kI64), tensor(DType::kBF16)}), DType::kBF16);
}

}  // namespace
}  // namespace stepc
