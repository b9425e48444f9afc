#include "comm/signed_store.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace stepc {

namespace {
constexpr size_t kSignatureBytes = 64;

std::string signed_text(const std::string& key, const std::vector<uint8_t>& value) {
  return str("value of {}: {}", key, std::string(value.begin(), value.end()));
}
}  // namespace

SignedStore::SignedStore(c10::intrusive_ptr<c10d::Store> store, Secret secret)
    : store_(std::move(store)), secret_(std::move(secret)) {}

c10::intrusive_ptr<c10d::Store> SignedStore::clone() {
  return c10::make_intrusive<SignedStore>(store_->clone(), secret_);
}

std::vector<std::string> SignedStore::names_of(const std::vector<std::string>& keys) const {
  std::vector<std::string> names;
  for (const std::string& key : keys) names.push_back(name_of(key));
  return names;
}

std::vector<uint8_t> SignedStore::signed_value(const std::string& key, const std::vector<uint8_t>& value) const {
  const std::string signature = secret_.sign(signed_text(key, value));
  std::vector<uint8_t> whole(signature.begin(), signature.end());
  whole.insert(whole.end(), value.begin(), value.end());
  return whole;
}

std::vector<uint8_t> SignedStore::checked(const std::string& key, const std::vector<uint8_t>& found) const {
  const size_t signed_by = std::min<size_t>(found.size(), kSignatureBytes);  // what is shorter is signed by nobody
  const std::string_view signature(reinterpret_cast<const char*>(found.data()), signed_by);
  std::vector<uint8_t> value(found.begin() + static_cast<std::ptrdiff_t>(signed_by), found.end());
  USER_CHECK(secret_.is_signed(signed_text(key, value), signature),
             "where the ranks meet, '{}' was said by somebody who does not have STEPC_SECRET", key);
  return value;
}

void SignedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  store_->set(name_of(key), signed_value(key, value));
}

std::vector<uint8_t> SignedStore::compareSet(const std::string& key, const std::vector<uint8_t>& current,
                                             const std::vector<uint8_t>& wanted) {
  const auto found = store_->compareSet(name_of(key), current.empty() ? current : signed_value(key, current),
                                        signed_value(key, wanted));
  return checked(key, found);
}

std::vector<uint8_t> SignedStore::get(const std::string& key) { return checked(key, store_->get(name_of(key))); }

int64_t SignedStore::add(const std::string& key, int64_t value) { return store_->add(name_of(key), value); }

bool SignedStore::deleteKey(const std::string& key) { return store_->deleteKey(name_of(key)); }

bool SignedStore::check(const std::vector<std::string>& keys) { return store_->check(names_of(keys)); }

void SignedStore::wait(const std::vector<std::string>& keys) { store_->wait(names_of(keys)); }

void SignedStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  store_->wait(names_of(keys), timeout);
}

}  // namespace stepc
