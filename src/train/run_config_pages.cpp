// The whole table of run.toml as text.
#include "base/text.h"
#include "train/run_config_keys.h"

namespace stepc::train {

std::string to_toml(const RunConfig& config) {
  std::string text;
  std::string section;
  for (const Key& key : run_config_keys()) {
    if (section_of(key) != section) text += str("{}[{}]\n", text.empty() ? "" : "\n", section_of(key));
    section = section_of(key);
    text += str("{} = {}\n", bare_name(key), value_text(key, config));
  }
  return text;
}

std::string keys_help() {
  const RunConfig defaults;
  std::string text;
  std::string section;
  for (const Key& key : run_config_keys()) {
    if (section_of(key) != section) {
      section = section_of(key);
      text += str("[{}]\n", section);
    }
    const std::string given = key.allowed.required ? "required" : value_text(key, defaults);
    text += str("  {:<14} {:<12} {}\n{:30}({})\n", bare_name(key), given, key.help, "", allowed_text(key));
  }
  return text;
}

}  // namespace stepc::train
