// The fields of a config.json, described once for both directions: each call reads the field into the variable, or
// writes the variable under the field's name. Reading an absent field leaves the variable as it is (the family's
// default); what is present and out of range is a UserError that names the field and the value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace stepc::models {

class ConfigFields {
 public:
  ConfigFields() = default;                                                     // writes
  explicit ConfigFields(nlohmann::json source) : source_(std::move(source)) {}  // reads
  [[nodiscard]] bool reads() const { return source_.is_object(); }
  [[nodiscard]] const nlohmann::json& written() const { return written_; }
  [[nodiscard]] bool has(const std::string& name) const { return reads() && source_.contains(name); }

  // An integer from 1; `value` 0 means that the field has no default. Null is as absent.
  void size(const std::string& name, int64_t& value, int64_t highest);
  // An integer from 0, with a default.
  void count(const std::string& name, int64_t& value, int64_t highest);
  // Null is no value.
  void optional_size(const std::string& name, std::optional<int64_t>& value, int64_t highest);
  void number(const std::string& name, double& value, double low, double high);
  void optional_number(const std::string& name, std::optional<double>& value, double low, double high);
  void flag(const std::string& name, bool& value);
  void choice(const std::string& name, std::string& value, const std::vector<std::string>& known);
  // An id of the vocabulary; null is none.
  void token(const std::string& name, std::optional<int64_t>& value, int64_t vocab_size);
  // The same, one id or a list of them.
  void tokens(const std::string& name, std::vector<int64_t>& values, int64_t vocab_size);
  // A field that stepc implements for one value only; absent and null mean that value.
  void only(const std::string& name, const nlohmann::json& supported);
  // "layer_types": which layers slide.
  void sliding_layers(const std::string& name, std::vector<bool>& value, int64_t layers);

  // For fields with a form of their own. take() is null when the field is absent.
  [[nodiscard]] nlohmann::json take(const std::string& name) const;
  void put(const std::string& name, nlohmann::json value) { written_[name] = std::move(value); }

 private:
  nlohmann::json source_;
  nlohmann::json written_ = nlohmann::json::object();
};

}  // namespace stepc::models
