// SignedStore: a c10d store whose values are signed with the ranks' secret, under names that cannot be guessed without
// the secret. It refuses every value without a valid signature.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/secret.h"

namespace stepc {

class SignedStore : public c10d::Store {
 public:
  SignedStore(c10::intrusive_ptr<c10d::Store> store, Secret secret);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& current,
                                  const std::vector<uint8_t>& wanted) override;
  // Throws UserError if the stored value is not signed.
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;  // numbers have no signature
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  const std::chrono::milliseconds& getTimeout() const noexcept override { return store_->getTimeout(); }
  void setTimeout(const std::chrono::milliseconds& timeout) override { store_->setTimeout(timeout); }

 private:
  [[nodiscard]] std::string name_of(const std::string& key) const { return secret_.sign("name " + key); }
  [[nodiscard]] std::vector<std::string> names_of(const std::vector<std::string>& keys) const;
  [[nodiscard]] std::vector<uint8_t> signed_value(const std::string& key, const std::vector<uint8_t>& value) const;
  [[nodiscard]] std::vector<uint8_t> checked(const std::string& key, const std::vector<uint8_t>& found) const;

  c10::intrusive_ptr<c10d::Store> store_;
  Secret secret_;
};

}  // namespace stepc
