// Any bytes as text: a byte-level tokenizer gives them back, every split covers them.
#include "data/tokenize/unicode_form.h"
#include "data/tokenize/word_split.h"
#include "data/tokenizer.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  static const Tokenizer kTokenizer(parse_tokenizer_json(make_byte_tokenizer_json(), "t"), "t");
  return fuzz_one([&] {
    const std::string_view text = fuzz_text(data, size);
    if (kTokenizer.decode(kTokenizer.encode(text)) != text) std::abort();
    for (const auto pattern : {WordPattern::kGpt2, WordPattern::kLlama3, WordPattern::kQwen, WordPattern::kBloom}) {
      for (size_t at = 0; at < text.size();) {
        const size_t end = word_end(pattern, text, at);
        if (end <= at || end > text.size()) std::abort();
        at = end;
      }
    }
    for (const auto form : {UnicodeForm::kNfc, UnicodeForm::kNfd, UnicodeForm::kNfkc, UnicodeForm::kNfkd}) {
      const std::string once = normalized(text, form);
      if (normalized(once, form) != once) std::abort();
    }
  });
}
