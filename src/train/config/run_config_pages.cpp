// The whole table of run.toml as text.
#include "base/text.h"
#include "train/config/run_config_keys.h"

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

std::string default_toml() {
  const RunConfig defaults;
  std::string text =
      "# Every key of run.toml and its default. What is marked as required has none: what stands there is an "
      "example.\n";
  std::string section;
  for (const Key& key : run_config_keys()) {
    if (section_of(key) != section) text += str("\n[{}]\n", section_of(key));
    section = section_of(key);
    text += str("# {}\n# {}{}\n", key.help, key.allowed.required ? "required: " : "", allowed_text(key));
    text += str("{} = {}\n", bare_name(key), key.allowed.required ? key.allowed.example : value_text(key, defaults));
  }
  return text;
}

std::string config_page() {
  const RunConfig defaults;
  std::string text =
      "# Configuration\n\n"
      "A run is described by one TOML file, `run.toml` here. Every key may also be given on the command line as\n"
      "`--section.key=value`, which counts more; paths are relative to the current directory. A key that is not known, "
      "a\n"
      "wrong type or a value out of range is refused with file and line.\n\n"
      "    stepc config --defaults > run.toml     # every key, its default and its meaning\n"
      "    stepc train run.toml --train.steps=500\n\n"
      "This page is printed by `stepc config --page` from the table in `src/train/config/run_config_keys.cpp`.\n";
  std::string section;
  for (const Key& key : run_config_keys()) {
    if (section_of(key) != section)
      text += str("\n## [{}]\n\n| key | default | what | allowed |\n|---|---|---|---|\n", section_of(key));
    section = section_of(key);
    const std::string given = key.allowed.required ? "required" : str("`{}`", value_text(key, defaults));
    text += str("| `{}` | {} | {} | {} |\n", bare_name(key), given, key.help, allowed_text(key));
  }
  return text;
}

}  // namespace stepc::train
