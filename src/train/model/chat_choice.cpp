#include "train/model/chat_choice.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"

namespace stepc::train {

namespace fs = std::filesystem;

ChatTemplate choose_chat_template(const std::string& name, const fs::path& model_directory) {
  constexpr uint64_t kMaxConfigBytes = 16 << 20;
  if (name != "model") return ChatTemplate::named(name);
  const fs::path path = model_directory / "tokenizer_config.json";
  const fs::path jinja = model_directory / "chat_template.jinja";
  Json config = read_json(path, kMaxConfigBytes);
  if (fs::exists(jinja) && config.is_object()) config["chat_template"] = read_text(jinja, kMaxConfigBytes);
  USER_CHECK(!config.is_object() || config.contains("chat_template"),
             "{}: the model has no chat template; choose one of {}", path.string(),
             fmt::join(ChatTemplate::names(), ", "));
  return ChatTemplate::from_tokenizer_config(config.dump(), path.string());
}

}  // namespace stepc::train
