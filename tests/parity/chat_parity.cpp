// Renders chats for tests/parity/test_chat_templates.py. `chat_parity DIR`: for every DIR/*/chats.json, a list of
// {messages, add_generation_prompt}, with the template of tokenizer_config.json beside it or, without one, the built-in
// template that has the folder's name -> DIR/*/ours.json, a list of {text, learned} or {error}.
#include <cstdio>
#include <exception>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "data/chat/chat_template.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxBytes = 100 << 20;

Json rendered(const fs::path& directory, const Json& chat) {
  try {
    const fs::path config = directory / "tokenizer_config.json";
    const ChatTemplate chat_template =
        fs::exists(config) ? ChatTemplate::from_tokenizer_config(read_text(config, kMaxBytes), "tokenizer_config.json")
                           : ChatTemplate::named(directory.filename().string());
    Json result = {{"text", chat_template.render(chat["messages"], chat["add_generation_prompt"].get<bool>())}};
    if (!chat["add_generation_prompt"].get<bool>())
      for (const auto& [begin, end] : chat_template.render_for_training(chat["messages"]).learned)
        result["learned"].push_back({begin, end});
    return result;
  } catch (const UserError& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace
}  // namespace stepc

int main(int argc, char** argv) {
  using namespace stepc;
  try {
    for (const auto& entry : std::filesystem::directory_iterator(argc == 2 ? argv[1] : ".")) {
      Json ours = Json::array();
      for (const Json& chat : read_json(entry.path() / "chats.json", kMaxBytes)) ours.push_back(rendered(entry, chat));
      write_file_synced(entry.path() / "ours.json", ours.dump());
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "chat_parity: %s\n", error.what());
    return 1;
  }
}
