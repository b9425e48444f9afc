#include "aten/generator_snapshot.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include "base/check.h"
#include "base/hash.h"

namespace stepc {

namespace {
// The engine holds nothing but its plain data; engine() and data() would copy its 2.5 KB twice for every comparison.
static_assert(sizeof(at::mt19937) == sizeof(at::mt19937_data_pod));
const at::mt19937_data_pod& data_of(const at::mt19937& engine) {
  return reinterpret_cast<const at::mt19937_data_pod&>(engine);
}

at::CPUGeneratorImpl* impl_of(const at::Generator& generator) {
  return at::check_generator<at::CPUGeneratorImpl>(generator);
}

bool same_data(const at::mt19937_data_pod& a, const at::mt19937_data_pod& b) {
  return a.left_ == b.left_ && a.next_ == b.next_ && a.seed_ == b.seed_ && a.seeded_ == b.seeded_ &&
         std::memcmp(a.state_.data(), b.state_.data(), sizeof a.state_) == 0;
}

std::string state_of_device(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}
const std::string kOfDevice = "device:";  // before its bytes

template <class T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
void take(std::string_view& bytes, T& value) {
  USER_CHECK(bytes.size() >= sizeof value, "a random generator's state is cut short");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
}
}  // namespace

bool is_cpu_generator(const at::Generator& generator) {
  return generator.defined() && dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl()) != nullptr;
}

at::Generator default_generator_of(const c10::Device& device) {
  return at::globalContext().defaultGenerator(device.is_cuda() ? device : c10::Device(at::kCPU));
}

std::vector<std::pair<std::string, at::Generator>> device_generators(const std::vector<at::Tensor>& tensors) {
  std::vector<std::pair<std::string, at::Generator>> out;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.is_cuda()) continue;
    std::string key = "default:" + tensor.device().str();
    if (std::ranges::find(out, key, &std::pair<std::string, at::Generator>::first) != out.end()) continue;
    out.emplace_back(std::move(key), default_generator_of(tensor.device()));
  }
  return out;
}

GeneratorSnapshot read_generator(const at::Generator& generator) {
  if (!is_cpu_generator(generator)) {
    GeneratorSnapshot snapshot;
    snapshot.of_device = state_of_device(generator);
    return snapshot;
  }
  at::CPUGeneratorImpl* impl = impl_of(generator);
  return {impl->engine(), impl->next_float_normal_sample(), impl->next_double_normal_sample(), {}};
}

void write_generator(at::Generator generator, const GeneratorSnapshot& snapshot) {
  if (!snapshot.of_device.empty()) {
    const at::Tensor state = at::empty({static_cast<int64_t>(snapshot.of_device.size())}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), snapshot.of_device.data(), snapshot.of_device.size());
    const std::lock_guard lock(generator.mutex());
    return generator.set_state(state);
  }
  const std::lock_guard lock(generator.mutex());
  at::CPUGeneratorImpl* impl = impl_of(generator);
  impl->set_engine(snapshot.engine);
  impl->set_next_float_normal_sample(snapshot.next_float);
  impl->set_next_double_normal_sample(snapshot.next_double);
}

int64_t drawn_number(at::Generator generator) {
  if (is_cpu_generator(generator)) return at::randint(INT64_MAX, {}, generator, at::kLong).item<int64_t>();
  constexpr uint64_t kDraw = 4;  // by which a device's kernels let it go on
  const std::lock_guard lock(generator.mutex());
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + kDraw);
  const uint64_t words[] = {generator.current_seed(), offset};
  return static_cast<int64_t>(hash_bytes(std::as_bytes(std::span(words))) >> 1);
}

bool is_in_state(const at::Generator& generator, const GeneratorSnapshot& snapshot) {
  if (!snapshot.of_device.empty()) return state_of_device(generator) == snapshot.of_device;
  at::CPUGeneratorImpl* impl = impl_of(generator);
  return same_data(data_of(impl->engine()), data_of(snapshot.engine)) &&
         impl->next_float_normal_sample() == snapshot.next_float &&
         impl->next_double_normal_sample() == snapshot.next_double;
}

std::string to_bytes(const GeneratorSnapshot& snapshot) {
  if (!snapshot.of_device.empty()) return kOfDevice + snapshot.of_device;
  const at::mt19937_data_pod& data = data_of(snapshot.engine);
  std::string out;
  put(out, data.seed_);
  put(out, data.left_);
  put(out, data.seeded_);
  put(out, data.next_);
  for (const uint32_t word : data.state_) put(out, word);
  put(out, snapshot.next_float.has_value());
  put(out, snapshot.next_float.value_or(0));
  put(out, snapshot.next_double.has_value());
  put(out, snapshot.next_double.value_or(0));
  return out;
}

GeneratorSnapshot snapshot_from_bytes(std::string_view bytes) {
  if (bytes.starts_with(kOfDevice)) {
    GeneratorSnapshot of_device;
    of_device.of_device = bytes.substr(kOfDevice.size());
    return of_device;
  }
  at::mt19937_data_pod data;
  take(bytes, data.seed_);
  take(bytes, data.left_);
  take(bytes, data.seeded_);
  take(bytes, data.next_);
  for (uint32_t& word : data.state_) take(bytes, word);
  // The engine reads state_[next_] without a check.
  USER_CHECK(data.next_ <= data.state_.size() && data.left_ >= 0,
             "a random generator's state points outside of itself");
  GeneratorSnapshot snapshot;
  snapshot.engine.set_data(data);
  bool there = false;
  float next_float = 0;
  double next_double = 0;
  take(bytes, there);
  take(bytes, next_float);
  if (there) snapshot.next_float = next_float;
  take(bytes, there);
  take(bytes, next_double);
  if (there) snapshot.next_double = next_double;
  USER_CHECK(bytes.empty(), "a random generator's state is too long");
  return snapshot;
}

}  // namespace stepc
