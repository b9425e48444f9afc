// Shared code of the readers of a Target's text: every error names the line and the key. Private to target_text.cpp,
// gpu_text.cpp, named_target.cpp and cluster.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <toml++/toml.h>

#include "base/check.h"
#include "base/files.h"
#include "cost/target.h"

namespace stepc::target_text {

inline std::string_view pass_name(bool backward) { return backward ? "backward" : "forward"; }

// Throws UserError with the line for invalid TOML.
toml::table parse(std::string_view text);
// "target, line 3: threads = 0", for the beginning of a message.
std::string place(const std::string& key, const toml::node& node);
double number_of(const std::string& key, const toml::node& node, double lowest, double highest);
double rate_of(const std::string& key, const toml::node& node);
double seconds_of(const std::string& key, const toml::node& node);
// All work but that of links takes so many times as long.
void slow_down(Target& target, double times);
[[noreturn]] void unknown_key(const std::string& key, const toml::node& node, const std::vector<std::string>& known);

// Applies `parse` to the file's text; its errors then name the file.
template <class Parse>
auto read_file(const std::string& path, const Parse& parse) {
  constexpr uint64_t kMostText = uint64_t{1} << 20;
  try {
    return parse(read_text(path, kMostText));
  } catch (const UserError& error) {
    user_error("{}: {}", path, error.what());
  }
}

// A table in which every key is required and no other key is allowed.
class TableReader {
 public:
  TableReader(std::string name, const toml::node& node);
  [[nodiscard]] bool has(const std::string& key) const { return table_->contains(key); }
  double rate(const std::string& key) { return rate_of(key, get(key)); }
  double seconds(const std::string& key) { return target_text::seconds_of(key, get(key)); }
  std::string op(const std::string& key);
  std::string text(const std::string& key);  // printable, of one line
  int64_t size(const std::string& key);
  KernelOwner owner() {
    return one_of("kernel", {"blocked", "library"}) == "blocked" ? KernelOwner::kBlocked : KernelOwner::kLibrary;
  }
  std::string one_of(const std::string& key, const std::vector<std::string>& names);
  bool backward() { return one_of("pass", {"forward", "backward"}) == "backward"; }
  DType dtype() { return *dtype_from_name(one_of("dtype", {"f32", "bf16", "f16", "f64", "f8e4m3"})); }
  const toml::node& get(const std::string& key);
  [[noreturn]] void refuse(const std::string& why) const;
  void end() const;

 private:
  std::string name_;
  const toml::node& node_;
  const toml::table* table_;
  std::vector<std::string> read_;
};

// The rows replace the present ones: a target that has some rows has all.
template <class Row, class Read>
void read_rows(const std::string& list, const toml::node& node, std::vector<Row>& rows, const Read& read) {
  const toml::array* array = node.as_array();
  if (array == nullptr || array->empty()) user_error("{}: must be a list of tables, [[{}]]", place(list, node), list);
  rows.clear();
  for (const toml::node& one : *array) {
    TableReader reader(list, one);
    rows.push_back(read(reader));
    reader.end();
  }
}

// Reads a Target whose text says device = "cuda" (gpu_text.cpp).
Target read_gpu(const toml::table& table);
std::string gpu_text(const Target& target);
// Sets the fields that follow from others.
void complete_gpu(Target& target);

}  // namespace stepc::target_text
