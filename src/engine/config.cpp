#include "engine/config.h"

#include <charconv>

#include "base/check.h"
#include "base/text.h"

namespace stepc {

std::string_view name_of(Mode mode) {
  switch (mode) {
    case Mode::kEager:
      return "eager";
    case Mode::kExact:
      return "exact";
    case Mode::kFast:
      return "fast";
  }
  return "";
}

Mode parse_mode(std::string_view text) {
  for (const Mode mode : {Mode::kEager, Mode::kExact, Mode::kFast})
    if (name_of(mode) == text) return mode;
  user_error("mode is \"{}\"; it is one of \"fast\", \"exact\", \"eager\"", text);
}

std::string_view name_of(Capture capture) { return capture == Capture::kRun ? "run" : "virtual"; }

Capture parse_capture(std::string_view text) {
  for (const Capture capture : {Capture::kRun, Capture::kVirtual})
    if (name_of(capture) == text) return capture;
  user_error("capture is \"{}\"; it is \"run\" or \"virtual\"", text);
}

std::string_view name_of(PythonMode mode) {
  switch (mode) {
    case PythonMode::kAuto:
      return "auto";
    case PythonMode::kWatch:
      return "watch";
    case PythonMode::kTrace:
      return "trace";
    case PythonMode::kPure:
      return "pure";
  }
  return "";
}

PythonMode parse_python_mode(std::string_view text) {
  for (const PythonMode mode : {PythonMode::kAuto, PythonMode::kWatch, PythonMode::kTrace, PythonMode::kPure})
    if (name_of(mode) == text) return mode;
  user_error("python is \"{}\"; it is one of \"auto\", \"watch\", \"trace\", \"pure\"", text);
}

bool parse_pace(std::string_view text) {
  if (text == "auto" || text == "off") return text == "auto";
  user_error("pace is \"{}\"; it is \"auto\" or \"off\"", text);
}

Fp8Recipe parse_fp8_recipe(std::string_view text) {
  if (const std::optional<Fp8Recipe> recipe = fp8_recipe_from_name(text)) return *recipe;
  user_error("fp8_recipe is \"{}\"; it is \"tensorwise\" or \"rowwise\"", text);
}

Verify parse_verify(std::string_view text) {
  if (text == "off") return Verify::off();
  if (text == "first") return Verify::first();
  if (text == "always") return Verify::always();
  constexpr std::string_view kEvery = "every:";
  int64_t interval = 0;
  if (text.starts_with(kEvery)) {
    const std::string_view digits = text.substr(kEvery.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), interval);
    if (error == std::errc() && end == digits.data() + digits.size() && interval > 0) return Verify::every(interval);
  }
  user_error("verify is \"{}\"; it is one of \"off\", \"first\", \"always\", \"every:N\" with N at least 1", text);
}

std::string to_text(const Verify& verify) {
  if (verify.kind == Verify::Kind::kOff) return "off";
  if (verify.kind == Verify::Kind::kFirst) return "first";
  return verify.interval == 1 ? "always" : str("every:{}", verify.interval);
}

void check(const Config& config) {
  USER_CHECK(config.max_plans >= 1, "Config::max_plans is {}: at least one plan must be kept", config.max_plans);
  USER_CHECK(config.max_recordings >= 2, "Config::max_recordings is {}: a plan needs two recordings that agree",
             config.max_recordings);
  USER_CHECK(!config.fp8 || config.mode == Mode::kFast,
             "mode is \"{}\", which runs the step's calls as they are, and precision is \"fp8\", which multiplies in "
             "float8 instead: choose one",
             name_of(config.mode));
  const bool is_alone = config.parallel && config.parallel->axes.empty() && !config.parallel->is_searched;
  USER_CHECK(!is_alone || config.mode == Mode::kFast || config.parallel->micro_batches == 1,
             "mode is \"{}\", which runs the step's calls as they are, and micro_batches = {} cuts them: choose one",
             name_of(config.mode), config.parallel->micro_batches);
  USER_CHECK(!config.parallel || config.mode == Mode::kFast,
             "mode is \"{}\", which runs calls of one device, and parallel spreads the step over several: choose one",
             name_of(config.mode));
  for (const OpRule& rule : config.op_rules)
    USER_CHECK(find_rule(config.op_rules, rule.op) == &rule, "Config::op_rules has two rules for {}", rule.op);
}

}  // namespace stepc
