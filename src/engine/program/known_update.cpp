#include "engine/program/known_update.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "aten/constants.h"
#include "base/log.h"

namespace stepc {

namespace {
constexpr int64_t kConstant = -1;
// A step count for probing, at which a bias correction is far from 1.
constexpr double kProbedCount = 3;
// Learning costs two runs of the host code. If the options change their form again and again, the host code just runs.
constexpr int64_t kLearnedAtFirst = 8;
constexpr int64_t kReplaysToLearn = 16;

bool is_same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

// The real numbers among the supplied ones: only these may be functions of options.
std::vector<double> elements_of(const c10::IValue& number) {
  std::vector<double> out;
  const auto add = [&](const c10::IValue& one) {
    if (one.isDouble()) out.push_back(one.toDouble());
  };
  if (number.isList())
    for (const c10::IValue& one : number.toListRef()) add(one);
  else if (number.isTensor() && number.toTensor().scalar_type() == c10::kDouble)
    out.push_back(*number.toTensor().const_data_ptr<double>());
  else
    add(number);
  return out;
}

// `number` with other elements, of the same type.
c10::IValue with_elements(const c10::IValue& number, const std::vector<double>& elements) {
  if (number.isTensor()) return tensor_of(WrappedNumber{elements.front()});
  if (!number.isList()) return elements.front();
  c10::List<c10::IValue> list = number.toList().copy();
  for (size_t e = 0; e < elements.size(); ++e) list.set(e, elements[e]);
  return list;
}

size_t size_of_list(const c10::IValue& number) { return number.isList() ? number.toListRef().size() : 1; }

// Whether both are of one type and agree in everything but their elements, which are compared separately.
bool is_of_kind(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind() || size_of_list(a) != size_of_list(b)) return false;
  const size_t elements = elements_of(a).size();
  if (elements != elements_of(b).size()) return false;
  if (elements == size_of_list(a)) return true;
  if (a.isTensor()) return wrapped_number_of(a.toTensor()) == wrapped_number_of(b.toTensor());
  if (a.isInt()) return a.toInt() == b.toInt();
  if (a.isBool()) return a.toBool() == b.toBool();
  return false;  // complex, or lists of integers: nobody's options
}

// Whether the tensor is a step counter with memory of its own: shared memory may hold other counters too.
bool is_counter(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::Layout::Strided && tensor.device().is_cpu() && tensor.dim() == 0 &&
         (tensor.scalar_type() == c10::kFloat || tensor.scalar_type() == c10::kDouble) &&
         tensor.storage().nbytes() == tensor.nbytes();
}

double value_of(const at::Tensor& counter) {
  return counter.scalar_type() == c10::kFloat ? *counter.const_data_ptr<float>() : *counter.const_data_ptr<double>();
}

// The counter's next value, added in the counter's own type.
double next(const at::Tensor& counter) {
  return counter.scalar_type() == c10::kFloat ? *counter.const_data_ptr<float>() + 1.0F
                                              : *counter.const_data_ptr<double>() + 1.0;
}

void set(const at::Tensor& counter, double value) {
  if (counter.scalar_type() == c10::kFloat)
    *counter.mutable_data_ptr<float>() = static_cast<float>(value);
  else
    *counter.mutable_data_ptr<double>() = value;
}
}  // namespace

// The step count after the update, on which all counters must agree. 1 without counters; nullopt if the counters
// differ.
std::optional<double> KnownUpdate::count_of(const std::vector<at::Tensor>& tensors) const {
  std::optional<double> count;
  for (size_t place : counters_) {
    if (place >= tensors.size() || !is_counter(tensors[place])) return std::nullopt;
    const double one = next(tensors[place]);
    if (!is_same(one, count.value_or(one))) return std::nullopt;
    count = one;
  }
  return count.value_or(1);
}

bool KnownUpdate::replay(Program& program, const std::vector<at::Tensor>& tensors,
                         const std::function<void(const HostSupply&, bool is_new)>& supply) {
  if (form_ == 0) return false;
  const std::optional<double> count = count_of(tensors);
  if (!count) return false;
  const std::optional<HostNumbers> now = program.host_numbers(key_, *count);
  if (!now || now->form != form_) return false;
  for (Source& source : sources_) {
    bool is_new = false;
    for (size_t e = 0; e < source.numbers.size(); ++e) {
      if (source.numbers[e] == kConstant) continue;
      const double number = now->numbers[static_cast<size_t>(source.numbers[e])];
      is_new = is_new || !is_same(number, source.elements[e]);
      source.elements[e] = number;
    }
    if (is_new) source.supplied.number = with_elements(source.supplied.number, source.elements);
    supply(source.supplied, is_new || is_stale_);
  }
  for (size_t place : counters_) {
    set(tensors[place], *count);
    tensors[place].unsafeGetTensorImpl()->bump_version();
  }
  is_stale_ = false;
  ++replays_;
  return true;
}

std::optional<std::vector<HostSupply>> KnownUpdate::probe(Program& program, const std::vector<at::Tensor>& tensors,
                                                          const RunFn& run, HostNumbers& numbers) {
  std::vector<HostSupply> supplied;
  std::vector<double> counts;
  for (size_t place : counters_) counts.push_back(value_of(tensors[place]));
  const auto put_back = [&] {
    for (size_t c = 0; c < counters_.size(); ++c) set(tensors[counters_[c]], counts[c]);
  };
  bool fits = false;
  try {
    for (size_t place : counters_) set(tensors[place], kProbedCount - 1);
    std::optional<HostNumbers> computed;
    const std::string difference =
        run([&] { computed = program.run_probe(key_, counters_.empty() ? 1 : kProbedCount); },
            [&](CallId call, size_t arg, const c10::IValue& number) {
              supplied.push_back({call, arg, number});
            });
    fits = difference.empty() && computed &&
           std::ranges::all_of(counters_, [&](size_t place) { return value_of(tensors[place]) == kProbedCount; });
    if (fits) numbers = *computed;
  } catch (const std::exception&) {
    fits = false;
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  if (!fits) return std::nullopt;
  return supplied;
}

std::string KnownUpdate::learn(Program& program, const std::vector<at::Tensor>& tensors, const RunFn& run,
                               const SupplyFn& supply) {
  form_ = 0;
  const std::optional<double> count = count_of(tensors);
  const bool is_worth_it = !is_lost_ && learned_ < kLearnedAtFirst + replays_ / kReplaysToLearn;
  const std::optional<HostNumbers> now =
      count && is_worth_it ? program.host_numbers(key_, *count) : std::optional<HostNumbers>();
  const auto host_code = [&] { program.run_event(key_); };
  if (!now) return run(host_code, supply);
  ++learned_;
  HostNumbers probed;
  const auto others = probe(program, tensors, run, probed);
  std::vector<HostSupply> supplied;
  std::string difference = run(host_code, [&](CallId call, size_t arg, const c10::IValue& number) {
    supplied.push_back({call, arg, number});
    supply(call, arg, number);
  });
  if (!difference.empty()) return difference;
  const bool counts =
      std::ranges::all_of(counters_, [&](size_t place) { return is_same(value_of(tensors[place]), *count); });
  sources_.clear();
  is_lost_ = !others || others->size() != supplied.size() || !counts || probed.form != now->form;
  for (size_t s = 0; s < supplied.size() && !is_lost_; ++s) {
    const c10::IValue &here = supplied[s].number, &there = (*others)[s].number;
    is_lost_ = !is_of_kind(here, there);
    if (is_lost_) break;
    Source source{supplied[s], elements_of(here), {}};
    const std::vector<double>& elements = source.elements;
    const std::vector<double> other_elements = elements_of(there);
    for (size_t e = 0; e < elements.size() && !is_lost_; ++e) {
      int64_t which = kConstant;
      for (size_t n = 0; n < now->numbers.size() && which == kConstant; ++n)
        if (is_same(probed.numbers[n], other_elements[e]) && is_same(now->numbers[n], elements[e]))
          which = static_cast<int64_t>(n);
      is_lost_ = which == kConstant && !is_same(elements[e], other_elements[e]);
      source.numbers.push_back(which);
    }
    sources_.push_back(std::move(source));
  }
  if (is_lost_)
    log().info("{} passes other numbers than those that are known of it: its own code runs at every replay", key_);
  else
    form_ = now->form;
  is_stale_ = false;
  return {};
}

}  // namespace stepc
