#include "data/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/hash.h"

namespace stepc {

namespace {
constexpr size_t kMaxTemplateBytes = 1 << 20;

struct BuiltIn {
  std::string_view name, bos, eos, jinja;
};

// Written for stepc after the formats that the model families document.
constexpr std::array<BuiltIn, 6> kBuiltIns = {{
    {"chatml", "", "<|im_end|>",
     R"({% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %})"
     R"({% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"},
    {"llama2", "<s>", "</s>",
     R"({% set ns = namespace(system='') %}{% for message in messages %})"
     R"({% if message.role == 'system' %}{% set ns.system = '<<SYS>>\n' + message.content + '\n<</SYS>>\n\n' %})"
     R"({% elif message.role == 'user' %}{{ bos_token + '[INST] ' + ns.system + message.content + ' [/INST]' }}{% set ns.system = '' %})"
     R"({% else %}{{ ' ' + message.content + ' ' + eos_token }}{% endif %}{% endfor %})"},
    {"llama3", "<|begin_of_text|>", "<|eot_id|>",
     R"({{ bos_token }}{% for message in messages %})"
     R"({{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}{% endfor %})"
     R"({% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})"},
    {"zephyr", "<s>", "</s>",
     R"({% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + eos_token + '\n' }}{% endfor %})"
     R"({% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %})"},
    {"mistral", "<s>", "</s>",
     R"({{ bos_token }}{% for message in messages %})"
     R"({% if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }})"
     R"({% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }})"
     R"({% else %}{{ raise_exception('only the roles user and assistant are known') }}{% endif %}{% endfor %})"},
    {"gemma", "<bos>", "<eos>",
     R"({{ bos_token }}{% for message in messages %})"
     R"({% if message.role == 'system' %}{{ raise_exception('the role system is not known') }}{% endif %})"
     R"({{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' + message.content | trim + '<end_of_turn>\n' }}{% endfor %})"
     R"({% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %})"},
}};

// A special token stands as text or as an object with "content"; null is none.
void add_special_token(const Json& json, const std::string& key,
                       std::vector<std::pair<std::string, TemplateValue>>& tokens) {
  const auto found = json.find(key);
  if (found == json.end()) return;
  const Json& token = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  if (token.is_string()) tokens.emplace_back(key, token.get<std::string>());
}

void check_messages(const Json& messages) {
  USER_CHECK(messages.is_array() && !messages.empty(), "the messages must be a list of at least one");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string what = str("message {}", i + 1);
    json_string(messages[i], "role", what);
    json_string(messages[i], "content", what);
  }
}

bool has_generation(const std::vector<TemplateNode>& nodes) {
  return std::ranges::any_of(nodes, [](const TemplateNode& node) {
    return node.kind == TemplateNode::Kind::kGeneration || has_generation(node.body) || has_generation(node.otherwise);
  });
}
}  // namespace

ChatTemplate::ChatTemplate(std::string_view jinja, std::vector<std::pair<std::string, TemplateValue>> special_tokens,
                           std::string what)
    : special_tokens_(std::move(special_tokens)), what_(std::move(what)) {
  USER_CHECK(jinja.size() <= kMaxTemplateBytes, "{}: a template of {}, at most {} are read", what_,
             human_bytes(jinja.size()), human_bytes(kMaxTemplateBytes));
  nodes_ = std::make_shared<const std::vector<TemplateNode>>(parse_template(jinja, what_));
  has_marks_ = has_generation(*nodes_);
  std::string all(jinja);
  if (has_marks_) all += '\0';  // caches of versions that did not heed the marks hold other labels
  for (const auto& [name, token] : special_tokens_) all += '\0' + name + '\0' + printed(token);
  hash_ = hash_bytes(std::as_bytes(std::span(all)));
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> names;
  for (const BuiltIn& known : kBuiltIns) names.emplace_back(known.name);
  return names;
}

ChatTemplate ChatTemplate::named(std::string_view name) {
  for (const BuiltIn& known : kBuiltIns)
    if (known.name == name)
      return {known.jinja,
              {{"bos_token", std::string(known.bos)}, {"eos_token", std::string(known.eos)}},
              str("chat template {}", name)};
  user_error("unknown chat template {}; the built-in ones are {}", in_quotes(name), fmt::join(names(), ", "));
}

ChatTemplate ChatTemplate::from_tokenizer_config(std::string_view text, std::string_view what) {
  const Json json = parse_json(text, what);
  const std::string& jinja = json_string(json, "chat_template", what);
  std::vector<std::pair<std::string, TemplateValue>> tokens;
  for (const auto* key : {"bos_token", "eos_token", "pad_token", "unk_token"}) add_special_token(json, key, tokens);
  return {jinja, std::move(tokens), str("{}: chat_template", what)};
}

TemplateOutput ChatTemplate::run(const Json& messages, size_t count, bool add_generation_prompt) const {
  auto variables = special_tokens_;
  TemplateValue::List list;
  for (size_t i = 0; i < count; ++i) list.push_back(TemplateValue::from_json(messages[i]));
  variables.emplace_back("messages", TemplateValue::list(std::move(list)));
  variables.emplace_back("add_generation_prompt", add_generation_prompt);
  return run_template(*nodes_, variables, what_);
}

std::string ChatTemplate::render(const Json& messages, bool add_generation_prompt) const {
  check_messages(messages);
  return render_first(messages, messages.size(), add_generation_prompt);
}

std::string ChatTemplate::end_of_turn() const {
  const std::string said = "what the assistant says";
  const Json messages =
      Json::array({{{"role", "user"}, {"content", "a question"}}, {{"role", "assistant"}, {"content", said}}});
  const std::string text = render(messages, /*add_generation_prompt=*/false);
  const size_t at = text.rfind(said);
  return at == std::string::npos ? std::string() : std::string(trim(std::string_view(text).substr(at + said.size())));
}

// Some templates write an answer in another way once others follow it (Qwen 3 leaves out what the assistant thought),
// so the text up to it alone is not the beginning of the whole. What follows it is then found from the other side: as
// what the chat without that answer has behind the messages before it.
std::optional<size_t> ChatTemplate::end_of_first(const std::string& text, const Json& messages, size_t count,
                                                 int depth) const {
  constexpr int kMostInARow = 8;  // answers, each of which takes another rendering
  if (count == messages.size()) return text.size();
  const std::string alone = render_first(messages, count, false);
  if (text.starts_with(alone)) return alone.size();
  if (count <= 1 || depth == kMostInARow) return std::nullopt;
  Json others = messages;
  others.erase(count - 1);
  const std::string without_it = render_first(others, others.size(), false);
  const auto end = end_of_first(without_it, others, count - 1, depth + 1);
  if (!end) return std::nullopt;
  const std::string_view rest = std::string_view(without_it).substr(*end);
  if (rest.empty() || !text.ends_with(rest)) return std::nullopt;
  return text.size() - rest.size();
}

std::optional<size_t> ChatTemplate::begin_of_answer(const std::string& text, const Json& messages, size_t index) const {
  const std::string prompt = render_first(messages, index, true);
  if (text.starts_with(prompt)) return prompt.size();
  const std::string before = render_first(messages, index, false);
  const auto end = end_of_first(text, messages, index);
  if (!end || !prompt.starts_with(before)) return std::nullopt;
  const std::string_view opening = std::string_view(prompt).substr(before.size());
  if (!std::string_view(text).substr(*end).starts_with(opening)) return std::nullopt;
  return *end + opening.size();
}

RenderedChat ChatTemplate::render_for_training(const Json& messages) const {
  check_messages(messages);
  TemplateOutput whole = run(messages, messages.size(), false);
  RenderedChat chat = {std::move(whole.text), std::move(whole.generated)};
  if (has_marks_) return chat;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"] != "assistant") continue;
    USER_CHECK(i > 0, "{}: the assistant speaks first, before there is a prompt", what_);
    const auto begin = begin_of_answer(chat.text, messages, i);
    const auto end = end_of_first(chat.text, messages, i + 1);
    USER_CHECK(begin && end && *begin <= *end,
               "{}: its text of the first {} messages is not the beginning of the whole, so the assistant's part "
               "cannot be told; {{% generation %}} marks in the template would tell it",
               what_, i + 1);
    if (*end > *begin) chat.learned.emplace_back(*begin, *end);
  }
  return chat;
}

}  // namespace stepc
