// A chat template, rendered with a small chat.
#include <nlohmann/json.hpp>

#include "data/chat/chat_template.h"
#include "data/chat/template_run.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  static const Json kMessages = {{{"role", "system"}, {"content", "s"}},
                                 {{"role", "user"}, {"content", "naïve?"}},
                                 {{"role", "assistant"}, {"content", " yes \n"}}};
  return fuzz_one([&] {
    const ChatTemplate chat(fuzz_text(data, size), {{"bos_token", std::string("<s>")}}, "template");
    for (const auto& [begin, end] : chat.render_for_training(kMessages).learned)
      if (begin >= end) std::abort();
  });
}
