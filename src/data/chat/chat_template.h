// Chat messages as the text that a model is trained on, by a template: a built-in one, or the Jinja template of a
// tokenizer_config.json where it fits the subset of data/chat/template_syntax.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/template_run.h"

namespace stepc {

// Text and the byte ranges of it that are learned from.
struct RenderedChat {
  std::string text;
  std::vector<std::pair<size_t, size_t>> learned;
};

class ChatTemplate {
 public:
  // "chatml", "llama2", "llama3", "zephyr", "mistral", "gemma"; another name is a UserError that lists them.
  static ChatTemplate named(std::string_view name);
  static std::vector<std::string> names();
  // The field chat_template with the special tokens beside it.
  static ChatTemplate from_tokenizer_config(std::string_view json, std::string_view what);
  // `special_tokens`: "bos_token" and its like, as the template sees them.
  ChatTemplate(std::string_view jinja, std::vector<std::pair<std::string, TemplateValue>> special_tokens,
               std::string what);

  // `messages`: a list of objects with "role" and "content".
  [[nodiscard]] std::string render(const Json& messages, bool add_generation_prompt) const;
  // Learned is what the template encloses in {% generation %}, where it has such marks. Elsewhere it is what the
  // assistant says: from the end of the prompt that the template makes of the messages before, to the end of that
  // message. Messages of which neither can be told are refused.
  [[nodiscard]] RenderedChat render_for_training(const Json& messages) const;

  // What the template puts behind what the assistant says, such as <|im_end|>, without white space around it; empty if
  // it puts nothing there.
  [[nodiscard]] std::string end_of_turn() const;

  [[nodiscard]] uint64_t hash() const { return hash_; }

 private:
  // Where the first `count` messages end in `text`, which is all of them.
  [[nodiscard]] std::optional<size_t> end_of_first(const std::string& text, const Json& messages, size_t count,
                                                   int depth = 0) const;
  // Where the answer `index` begins in it.
  [[nodiscard]] std::optional<size_t> begin_of_answer(const std::string& text, const Json& messages,
                                                      size_t index) const;
  [[nodiscard]] TemplateOutput run(const Json& messages, size_t count, bool add_generation_prompt) const;
  [[nodiscard]] std::string render_first(const Json& messages, size_t count, bool add_generation_prompt) const {
    return run(messages, count, add_generation_prompt).text;
  }

  std::shared_ptr<const std::vector<TemplateNode>> nodes_;
  std::vector<std::pair<std::string, TemplateValue>> special_tokens_;
  std::string what_;
  bool has_marks_ = false;  // {% generation %} somewhere
  uint64_t hash_ = 0;
};

}  // namespace stepc
