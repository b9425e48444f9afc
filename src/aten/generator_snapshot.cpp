#include "aten/generator_snapshot.h"

#include <cstring>
#include <mutex>

#include "base/check.h"

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

GeneratorSnapshot read_generator(const at::Generator& generator) {
  at::CPUGeneratorImpl* impl = impl_of(generator);
  return {impl->engine(), impl->next_float_normal_sample(), impl->next_double_normal_sample()};
}

void write_generator(at::Generator generator, const GeneratorSnapshot& snapshot) {
  const std::lock_guard lock(generator.mutex());
  at::CPUGeneratorImpl* impl = impl_of(generator);
  impl->set_engine(snapshot.engine);
  impl->set_next_float_normal_sample(snapshot.next_float);
  impl->set_next_double_normal_sample(snapshot.next_double);
}

bool is_in_state(const at::Generator& generator, const GeneratorSnapshot& snapshot) {
  at::CPUGeneratorImpl* impl = impl_of(generator);
  return same_data(data_of(impl->engine()), data_of(snapshot.engine)) &&
         impl->next_float_normal_sample() == snapshot.next_float &&
         impl->next_double_normal_sample() == snapshot.next_double;
}

std::string to_bytes(const GeneratorSnapshot& snapshot) {
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
