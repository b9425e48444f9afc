#include "ops/batch_norm.h"

#include <algorithm>

#include "base/check.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;

// One call: x of (rows, channels, ...), everything else of (channels).
class BatchNorm {
 public:
  BatchNorm(GraphBuilder& b, const Graph& graph, const Node& node, const Ids& inputs, size_t x)
      : b_(b), graph_(graph), node_(node), inputs_(inputs), x_(*tensor(x)), dtype_(wide(b.dtype(x_))) {
    const Shape shape = b.shape(x_);
    channels_ = shape.at(1);
    for (size_t d = 0; d < shape.size(); ++d)
      if (d != 1) dims_.push_back(static_cast<int64_t>(d));
    along_.assign(shape.size(), 1);
    along_[1] = channels_;
    count_ = static_cast<double>(element_count(shape)) / static_cast<double>(std::max<int64_t>(channels_, 1));
  }

  // (x, weight, bias, running mean, running variance, training, momentum, eps) -> (y, mean, 1 / deviation)
  Ids forward() {
    const bool trains = flag(5);
    TensorId mean, variance;
    if (trains) {
      mean = b_.add("div", {b_.sum(wide_x(), dims_), real(count_)});
      const TensorId centred = b_.add("sub", {wide_x(), over_rows(mean)});
      variance = b_.add("div", {b_.sum(b_.add("mul", {centred, centred}), dims_), real(count_)});
    } else {
      mean = statistic(3), variance = statistic(4);
    }
    const TensorId inverse = inverse_deviation(variance, 7);
    TensorId y = b_.add("mul", {b_.add("sub", {wide_x(), over_rows(mean)}), over_rows(scaled(inverse, 1))});
    if (tensor(2)) y = b_.add("add", {y, over_rows(statistic(2))});
    Ids results = fresh({y, mean, inverse});
    for (uint32_t written : node_.aten->writes) {
      const bool is_mean = stands_at(3, written);
      INTERNAL_CHECK(is_mean || stands_at(4, written), "{} writes its input {}", node_.op, written);
      if (!trains) {  // the schema says that it writes, whatever it does
        results.push_back(inputs_[written]);
        continue;
      }
      // The running variance is that of a sample.
      const TensorId now = is_mean ? mean : b_.add("mul", {variance, real(count_ / (count_ - 1))});
      results.push_back(moved(inputs_[written], now));
    }
    return results;
  }

  // (gradient, x, weight, running mean, running variance, mean, 1 / deviation, training, eps, mask)
  // -> (x's gradient, weight's, bias's)
  Ids backward() {
    const bool trains = flag(7);
    const TensorId gradient = b_.cast(*tensor(0), dtype_);
    const TensorId mean = statistic(trains ? 5 : 3);
    const TensorId inverse = trains ? statistic(6) : inverse_deviation(statistic(4), 8);
    const TensorId normal = b_.add("mul", {b_.add("sub", {wide_x(), over_rows(mean)}), over_rows(inverse)});
    const TensorId sum = b_.sum(gradient, dims_);
    const TensorId product = b_.sum(b_.add("mul", {gradient, normal}), dims_);
    TensorId inside = gradient;
    if (trains) {
      const auto average = [&](TensorId x) { return over_rows(b_.add("div", {x, real(count_)})); };
      inside = b_.add("sub", {inside, average(sum)});
      inside = b_.add("sub", {inside, b_.add("mul", {normal, average(product)})});
    }
    return fresh({b_.add("mul", {inside, over_rows(scaled(inverse, 2))}), product, sum});
  }

 private:
  std::optional<TensorId> tensor(size_t argument) {
    const auto* value = std::get_if<ValueId>(&node_.aten->args.at(argument));
    return value != nullptr && value->valid() ? std::optional(inputs_[value->index()]) : std::nullopt;
  }
  [[nodiscard]] bool stands_at(size_t argument, uint32_t input) const {
    const auto* value = std::get_if<ValueId>(&node_.aten->args.at(argument));
    return value != nullptr && value->valid() && value->index() == input;
  }
  [[nodiscard]] bool flag(size_t argument) const { return std::get<bool>(node_.aten->args.at(argument)); }
  // A number of the program's, or one that the host reads.
  TensorId number(size_t argument) {
    if (const auto read = tensor(argument)) return b_.cast(*read, dtype_);
    const Arg& arg = node_.aten->args.at(argument);
    if (const auto* integer = std::get_if<int64_t>(&arg)) return real(static_cast<double>(*integer));
    return real(std::get<double>(arg));
  }
  TensorId real(double value) { return b_.full(value, dtype_); }
  TensorId wide_x() { return b_.cast(x_, dtype_); }
  TensorId statistic(size_t argument) {
    const auto given = tensor(argument);
    INTERNAL_CHECK(given, "{} without its argument {}", node_.op, argument);
    return b_.cast(*given, dtype_);
  }
  TensorId over_rows(TensorId x) { return b_.reshape(x, along_); }
  TensorId scaled(TensorId x, size_t weight) { return tensor(weight) ? b_.add("mul", {x, statistic(weight)}) : x; }
  TensorId inverse_deviation(TensorId variance, size_t eps) {
    return b_.add("rsqrt", {b_.add("add", {variance, number(eps)})});
  }
  // A running statistic, a step further.
  TensorId moved(TensorId running, TensorId now) {
    const TensorId share = number(6);
    const TensorId kept = b_.add("mul", {b_.cast(running, dtype_), b_.add("sub", {real(1), share})});
    return b_.cast(b_.add("add", {kept, b_.add("mul", {now, share})}), b_.dtype(running));
  }
  // Those results that the call has, in its dtypes. Outside of training it keeps no statistics: they are empty.
  Ids fresh(const Ids& all) {
    Ids results;
    for (size_t r = 0; r < all.size(); ++r) {
      const auto* value = std::get_if<ValueId>(&node_.aten->results.at(r));
      if (value == nullptr || !value->valid()) continue;
      const TensorType& type = graph_.type(node_.outputs[value->index()]);
      const bool is_empty = b_.shape(all[r]) != type.shape;
      results.push_back(is_empty ? b_.full(0, type.dtype, type.shape) : b_.cast(all[r], type.dtype));
    }
    return results;
  }

  GraphBuilder& b_;
  const Graph& graph_;
  const Node& node_;
  const Ids& inputs_;
  TensorId x_;
  DType dtype_;
  int64_t channels_ = 0;
  Shape dims_, along_;  // all but the channels; (1, channels, 1, ...)
  double count_ = 0;    // elements of a channel
};

}  // namespace

std::optional<Ids> batch_norm_in_core_ops(GraphBuilder& b, const Graph& graph, const Node& node, const Ids& inputs) {
  if (node.op == "aten::native_batch_norm") return BatchNorm(b, graph, node, inputs, 0).forward();
  if (node.op == "aten::native_batch_norm_backward") return BatchNorm(b, graph, node, inputs, 1).backward();
  return std::nullopt;
}

}  // namespace stepc
