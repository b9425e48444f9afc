// The fields "normalizer", "pre_tokenizer", "decoder", "post_processor" and "added_tokens" of tokenizer.json.
#include <optional>

#include "base/check.h"
#include "base/text.h"
#include "data/tokenize/json/json_parts.h"
#include "data/tokenize/json/json_section.h"

namespace stepc {

namespace {
// {"String": "..."} or {"Regex": "..."}.
struct Pattern {
  std::string text;
  bool is_regex = false;
};

Pattern read_pattern(const Json& json, const std::string& what) {
  const JsonSection section(json, what, {"String", "Regex"});
  Pattern pattern;
  pattern.is_regex = json.contains("Regex");
  pattern.text = section.text(pattern.is_regex ? "Regex" : "String");
  USER_CHECK(!pattern.text.empty(), "{} is empty", what);
  return pattern;
}

NormalizerStep read_normalizer_step(const Json& json, const std::string& what) {
  const std::string& type = json_string(json, "type", what);
  const auto fields = [&](std::initializer_list<std::string_view> known) { return JsonSection(json, what, known); };
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    fields({"type"});
    if (type == "NFC") return UnicodeForm::kNfc;
    if (type == "NFD") return UnicodeForm::kNfd;
    return type == "NFKC" ? UnicodeForm::kNfkc : UnicodeForm::kNfkd;
  }
  if (type == "Prepend") return PrependStep{fields({"type", "prepend"}).text("prepend")};
  if (type == "Strip") {
    const JsonSection section = fields({"type", "strip_left", "strip_right"});
    return StripStep{section.flag("strip_left", true), section.flag("strip_right", true)};
  }
  if (type == "Replace") {
    const std::string with = fields({"type", "pattern", "content"}).text("content");
    const Pattern pattern = read_pattern(json_member(json, "pattern", what), what + ".pattern");
    if (!pattern.is_regex) return ReplaceStep{pattern.text, with};
    USER_CHECK(pattern.text == " {2,}", "{}: pattern {} is not supported, of regular expressions only \" {{2,}}\"",
               what, in_quotes(pattern.text));
    return SquashSpacesStep{with};
  }
  USER_CHECK(type == "Precompiled", "{}: type {} is not supported", what, in_quotes(type));
  const auto map = decode_base64(fields({"type", "precompiled_charsmap"}).text("precompiled_charsmap"));
  USER_CHECK(map.has_value(), "{}: \"precompiled_charsmap\" is not base64", what);
  return std::make_shared<const PrecompiledMap>(*map, what);
}

MetaspaceCut read_metaspace(const Json& json, const std::string& what) {
  const JsonSection section(json, what,
                            {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  MetaspaceCut cut;
  cut.mark = section.text("replacement");
  USER_CHECK(!cut.mark.empty(), "{}: \"replacement\" is empty", what);
  cut.split = section.flag("split", true);
  // Files of old say add_prefix_space.
  const std::string otherwise = section.flag("add_prefix_space", true) ? "always" : "never";
  const std::string scheme = section.text_or_null("prepend_scheme").value_or(otherwise);
  USER_CHECK(scheme == "always" || scheme == "first" || scheme == "never",
             "{}: prepend_scheme {} is not supported, only \"always\", \"first\" and \"never\"", what,
             in_quotes(scheme));
  using Prepend = MetaspaceCut::Prepend;
  cut.prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
  return cut;
}

ByteLevelCut read_byte_level(const Json& json, const std::string& what) {
  const JsonSection section(json, what, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  return {section.flag("use_regex", true) ? WordPattern::kGpt2 : WordPattern::kNone,
          section.flag("add_prefix_space", true)};
}

ByteLevelCut::Digits read_digits(const Json& json, const std::string& what) {
  const JsonSection section(json, what, {"type", "individual_digits"});
  using Digits = ByteLevelCut::Digits;
  return section.flag("individual_digits", false) ? Digits::kSingle : Digits::kRuns;
}

// A split by one of the known patterns; SpaceCut for the split after each space.
WordCut read_split(const Json& json, const std::string& what) {
  const JsonSection section(json, what, {"type", "pattern", "behavior", "invert"});
  section.only("invert", {false});
  const Pattern pattern = read_pattern(json_member(json, "pattern", what), what + ".pattern");
  if (!pattern.is_regex && pattern.text == " ") {
    section.only("behavior", {"MergedWithPrevious"});
    return SpaceCut();
  }
  section.only("behavior", {"Isolated"});
  const auto known = pattern.is_regex ? word_pattern_of(pattern.text) : std::nullopt;
  USER_CHECK(known.has_value(), "{}: pattern {} is not supported, only those of GPT-2, Llama 3, Qwen and Bloom", what,
             in_quotes(pattern.text));
  return ByteLevelCut{*known, false};
}
}  // namespace

std::vector<NormalizerStep> read_normalizer(const Json& json, const std::string& what) {
  std::vector<NormalizerStep> steps;
  for_each_step(json, what, "normalizers",
                [&](const Json& step, const std::string& name) { steps.push_back(read_normalizer_step(step, name)); });
  return steps;
}

// One that is supported alone, or: a split followed by ByteLevel, WhitespaceSplit followed by Metaspace, Digits
// followed by ByteLevel alone or behind a split.
WordCut read_pre_tokenizer(const Json& json, const std::string& what) {
  WordCut cut = WholeCut();
  std::optional<ByteLevelCut::Digits> digits;
  size_t seen = 0;
  std::string last;
  for_each_step(json, what, "pretokenizers", [&](const Json& step, const std::string& name) {
    const std::string& type = json_string(step, "type", name);
    if (type == "Digits" && seen == 0 && !digits) {
      digits = read_digits(step, name);
      return;
    }
    const bool first = seen++ == 0;
    if (type == "Metaspace" && (first || (seen == 2 && last == "WhitespaceSplit"))) {
      MetaspaceCut metaspace = read_metaspace(step, name);
      metaspace.at_white_space = !first;
      cut = metaspace;
    } else if (type == "WhitespaceSplit" && first) {
      const JsonSection known_fields(step, name, {"type"});
    } else if (type == "Split" && first) {
      cut = read_split(step, name);
    } else if (type == "ByteLevel" && first) {
      cut = read_byte_level(step, name);
    } else if (type == "ByteLevel" && seen == 2 && last == "Split" && std::holds_alternative<ByteLevelCut>(cut)) {
      const JsonSection section(step, name, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      section.only("use_regex", {false});
      section.only("add_prefix_space", {false});
    } else {
      user_error("{}: type {} is not supported{}", name, in_quotes(type), first ? "" : " in this place");
    }
    last = type;
  });
  USER_CHECK(last != "WhitespaceSplit", "{}: \"WhitespaceSplit\" is supported before \"Metaspace\" only", what);
  const bool byte_level = !std::holds_alternative<ByteLevelCut>(cut) || last == "ByteLevel";
  USER_CHECK(byte_level, "{}: a split by this pattern is supported before \"ByteLevel\" only", what);
  auto* by_bytes = std::get_if<ByteLevelCut>(&cut);
  USER_CHECK(!digits || by_bytes, "{}: \"Digits\" is supported before \"ByteLevel\" only", what);
  if (digits) by_bytes->digits = *digits;
  return cut;
}

std::vector<DecoderStep> read_decoder(const Json& json, const std::string& what) {
  std::vector<DecoderStep> steps;
  for_each_step(json, what, "decoders", [&](const Json& step, const std::string& name) {
    const std::string& type = json_string(step, "type", name);
    const auto fields = [&](std::initializer_list<std::string_view> known) { return JsonSection(step, name, known); };
    if (type == "ByteLevel") {
      fields({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      steps.emplace_back(ByteLevelDecode());
    } else if (type == "Metaspace") {
      const MetaspaceCut cut = read_metaspace(step, name);
      steps.emplace_back(MetaspaceDecode{cut.mark, cut.prepend != MetaspaceCut::Prepend::kNever});
    } else if (type == "Replace") {
      const std::string with = fields({"type", "pattern", "content"}).text("content");
      const Pattern pattern = read_pattern(json_member(step, "pattern", name), name + ".pattern");
      USER_CHECK(!pattern.is_regex, "{}: a regular expression is not supported here", name);
      steps.emplace_back(ReplaceDecode{pattern.text, with});
    } else if (type == "ByteFallback") {
      fields({"type"});
      steps.emplace_back(ByteFallbackDecode());
    } else if (type == "Fuse") {
      fields({"type"});
      steps.emplace_back(FuseDecode());
    } else if (type == "Strip") {
      constexpr int64_t kMost = 16;
      const std::string& content = fields({"type", "content", "start", "stop"}).text("content");
      USER_CHECK(content.size() == 1, "{}: \"content\" is {}, stepc supports one ASCII character", name,
                 in_quotes(content));
      steps.emplace_back(StripDecode{content[0], static_cast<int>(json_int(step, "start", name, 0, kMost)),
                                     static_cast<int>(json_int(step, "stop", name, 0, kMost))});
    } else {
      user_error("{}: type {} is not supported", name, in_quotes(type));
    }
  });
  return steps;
}

std::pair<std::vector<int32_t>, std::vector<int32_t>> read_post_processor(const Json& json, const std::string& what) {
  std::pair<std::vector<int32_t>, std::vector<int32_t>> around;
  bool has_template = false;
  for_each_step(json, what, "processors", [&](const Json& step, const std::string& name) {
    const std::string& type = json_string(step, "type", name);
    // This one changes character offsets only, which stepc does not give.
    if (type == "ByteLevel") {
      const JsonSection known_fields(step, name, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      return;
    }
    USER_CHECK(type == "TemplateProcessing" && !has_template, "{}: type {} is not supported", name, in_quotes(type));
    has_template = true;
    const JsonSection section(step, name, {"type", "single", "pair", "special_tokens"});
    bool after_text = false;
    for (const Json& piece : json_array(step, "single", name)) {
      if (piece.is_object() && piece.contains("Sequence")) {
        USER_CHECK(!after_text, "{}: \"single\" has its text twice", name);
        after_text = true;
        continue;
      }
      const std::string& token = json_string(json_member(piece, "SpecialToken", name + ".single"), "id", name);
      const Json& special = json_object(json_object(step, "special_tokens", name), token, name + ".special_tokens");
      const Json& ids = json_array(special, "ids", name + ".special_tokens");
      for (const Json& id : ids) {
        const Json wrapped = {{"ids", id}};
        (after_text ? around.second : around.first)
            .push_back(static_cast<int32_t>(json_int(wrapped, "ids", name + ".special_tokens", 0, kMaxTokenId)));
      }
    }
    USER_CHECK(after_text, "{}: \"single\" has no text", name);
  });
  return around;
}

AddedToken read_added_token(const Json& json, const std::string& what) {
  const JsonSection section(json, what, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.special = section.flag("special", false);
  token.single_word = section.flag("single_word", false);
  token.lstrip = section.flag("lstrip", false);
  token.rstrip = section.flag("rstrip", false);
  token.normalized = section.flag("normalized", !token.special);
  token.content = section.text("content");
  USER_CHECK(!token.content.empty(), "{}: \"content\" is empty", what);
  token.id = static_cast<int32_t>(json_int(json, "id", what, 0, kMaxTokenId));
  return token;
}

}  // namespace stepc
