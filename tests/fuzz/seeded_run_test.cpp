// The fuzz targets of text, tokens and text forms: see seeded_run.h.
#include "tests/fuzz/seeded_run.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/files.h"
#include "cost/named_target.h"
#include "data/shard/token_shard.h"
#include "data/source/document.h"
#include "data/tokenizer_json.h"
#include "plan/plan_graph.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/schedule/schedules.h"

extern "C" {
int chat_template_fuzz(const uint8_t* data, size_t size);
int jsonl_fuzz(const uint8_t* data, size_t size);
int parquet_fuzz(const uint8_t* data, size_t size);
int schedule_text_fuzz(const uint8_t* data, size_t size);
int token_shard_fuzz(const uint8_t* data, size_t size);
int tokenize_text_fuzz(const uint8_t* data, size_t size);
int tokenizer_json_fuzz(const uint8_t* data, size_t size);
}

namespace stepc {
namespace {

TEST(SeededFuzz, TokenizerJson) {
  const std::string unigram =
      R"({"version":"1.0","added_tokens":[{"id":0,"content":"<unk>","special":true}],"normalizer":{"type":"Sequence",)"
      R"("normalizers":[{"type":"NFKC"},{"type":"Strip","strip_left":true,"strip_right":false},{"type":"Replace",)"
      R"("pattern":{"String":" "},"content":"  "},{"type":"Prepend","prepend":"x"}]},"pre_tokenizer":{"type":)"
      R"("Metaspace","replacement":"_","prepend_scheme":"always","split":true},"post_processor":{"type":)"
      R"("TemplateProcessing","single":[{"SpecialToken":{"id":"<unk>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
      R"("special_tokens":{"<unk>":{"id":"<unk>","ids":[0],"tokens":["<unk>"]}}},"decoder":{"type":"Metaspace",)"
      R"("replacement":"_","prepend_scheme":"always"},"model":{"type":"Unigram","unk_id":0,"byte_fallback":false,)"
      R"("vocab":[["<unk>",0.0],["_T",-1.5],["h",-2.0],["e",-2.0],["_first",-3.25]]}})";
  const std::string bpe =
      R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,"decoder":{"type":"Sequence",)"
      R"("decoders":[{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
      R"("model":{"type":"BPE","dropout":null,"unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":)"
      R"({"<unk>":0,"T":1,"h":2,"e":3,"Th":4,"The":5,"<0xE4>":6},"merges":["T h",["Th","e"]]}})";
  seeded_run(tokenizer_json_fuzz, {make_byte_tokenizer_json(), unigram, bpe}, 3000, kMebibyte, 1500);
}

TEST(SeededFuzz, Text) {
  const std::vector<std::string> seeds = {"The cat's  1234 naïve\r\n\r\n  words",
                                          "e\u0301\u0316 中文 \u1100\u1161\u11A8 🙂", ""};
  seeded_run(tokenize_text_fuzz, seeds, 3000, kMebibyte, 0);
}

int jsonl_text_only(const uint8_t* data, size_t size) {
  return fuzz_one([&] {
    for_each_document(
        fuzz_text(data, size), FileKind::kJsonl, {}, "a.jsonl", [] { return uint64_t{1}; }, [](const Document&) {});
  });
}

TEST(SeededFuzz, Jsonl) {
  const std::string seed =
      "{\"text\": \"one\", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
      "\"content\": \"a\"}]}\n";
  seeded_run(jsonl_fuzz, {seed, seed + seed}, 3000, kMebibyte, 1000);
}

TEST(SeededFuzz, Parquet) {
  const std::string one = R"({"columns": [["text", "text", "string"]], "groups": [[20, [[4, 96]]]]})";
  const std::string more = R"({"columns": [["id", "other", "int64"], ["messages", "chat", "list<struct<>>"]], )"
                           R"("groups": [[3, [[4, 96], [100, 50]]], [0, []], [9223372036854775804, [[200, 692]]]]})";
  seeded_run(parquet_fuzz, {one, more}, 3000, kMebibyte, 1000);
}

TEST(SeededFuzz, TokenShard) {
  const auto path = std::filesystem::temp_directory_path() / ("stepc-fuzz-seed-" + std::to_string(::getpid()));
  TokenizedDocuments documents;
  for (int i = 0; i < 200; ++i) {
    documents.tokens.push_back(i % 97);
    documents.learned.push_back(i % 3 != 0);
    if (i % 17 == 16) documents.ends.push_back(documents.tokens.size());
  }
  documents.ends.push_back(documents.tokens.size());
  write_shard(path, documents, 100);
  const std::string masked = read_text(path, kMebibyte);
  documents.learned.clear();
  write_shard(path, documents, 100'000);
  const std::string wide = read_text(path, kMebibyte);
  std::filesystem::remove(path);
  seeded_run(token_shard_fuzz, {masked, wide}, 3000, 64 << 10, 2500);
}

// A kernel of every kind: matmuls, attention both ways, a fused loss.
std::string schedule_for(const Target& target) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[2, 6, 32] = batch "x"
input %1: f32[32, 32] = parameter "w"
input %2: f32[48, 32] = parameter "head"
input %3: i64[12] = batch "labels"
%4: f32[12, 32] = reshape(%0) {shape=[12, 32]} | forward "proj"
%5: f32[12, 32] = matmul(%4, %1) {transpose_a=false, transpose_b=true} | forward "proj"
%6: f32[12, 32] = tanh(%5) | forward "act"
%7: f32[2, 6, 2, 16] = reshape(%6) {shape=[2, 6, 2, 16]} | forward "attention"
%8: f32[2, 2, 6, 16] = transpose(%7) {permutation=[0, 2, 1, 3]} | forward "attention"
%9: f32[2, 2, 6, 16], %10: f32[2, 2, 6] = attention(%8, %8, %8) {causal=true, scale=0.25} | forward "attention"
%11: f32[2, 2, 6, 16], %12: f32[2, 2, 6, 16], %13: f32[2, 2, 6, 16] = attention_backward(%9, %8, %8, %8, %9, %10) {causal=true, scale=0.25} | backward "attention"
%14: f32[2, 6, 2, 16] = transpose(%11) {permutation=[0, 2, 1, 3]} | backward "attention"
%15: f32[12, 32] = reshape(%14) {shape=[12, 32]} | backward "attention"
%16: f32[32, 32] = matmul(%15, %4) {transpose_a=true, transpose_b=false} | backward "proj"
%17: f32[12], %18: f32[12], %19: f32[0, 32], %20: f32[0, 32] = linear_cross_entropy(%15, %2, %3) {frozen=true, gradient_dtype=f32, ignore_index=-100} | forward "loss"
return %10
return %16
return %12
return %13
return %17
)");
  PlanGraphOptions options;
  options.target = target;
  return to_text(plan_graph(graph, nullptr, options).plan.schedule);
}

TEST(SeededFuzz, BlockedScheduleText) {
  Target target;
  target.features = {.bf16 = true, .f32 = true, .avx512 = true};
  target.threads = 2;
  const std::string seed = schedule_for(target);
  for (const char* kind : {": matmul ", ": attention attention ", ": attention attention_backward ", ": loss "})
    EXPECT_NE(seed.find(kind), std::string::npos) << kind << seed;
  seeded_run(schedule_text_fuzz, {seed}, 3000, kMebibyte, 1500);
}

TEST(SeededFuzz, GpuScheduleText) {
  seeded_run(schedule_text_fuzz, {schedule_for(named_target("h100"))}, 3000, kMebibyte, 1500);
}

// What is taken reads back as the same machine.
int target_text(const uint8_t* data, size_t size) {
  return fuzz_one([&] {
    const Target target = parse_target(fuzz_text(data, size));
    if (parse_target(to_text(target)) != target) std::abort();
  });
}

TEST(SeededFuzz, TargetText) {
  seeded_run(target_text, {to_text(named_target("h100")), to_text(Target())}, 1000, kMebibyte, 500);
}

TEST(SeededFuzz, ScheduleText) {
  seeded_run(schedule_text_fuzz, {std::string(kEveryLine), std::string(kTrainingStep)}, 3000, kMebibyte, 1500);
}

// Made of what templates are made of, so that most of them run.
TEST(SeededFuzz, ChatTemplate) {
  const std::vector<std::string> seeds = {
      "{% for m in messages %}{{ '<|' + m.role + '|>' + m['content'] | trim + '\\n' }}{% endfor %}",
      "{%- set ns = namespace(n=0) -%}{% for m in messages if m.role != 'x' %}{% set ns.n = ns.n + 1 %}"
      "{% if loop.first and not ns.n > 1 %}{{ bos_token }}{% elif m.role == 'user' %}u{% else %}{{ m.content[1:-1] "
      "}}{% endif %}"
      "{% endfor %}",
      "{{ [1, 'two', {'a': none}] | tojson }}{% for k, v in messages[0].items() %}{{ k ~ v }}{% endfor %}",
      "{% for m in messages %}{% for i in range(100) %}{{ m.content.split('a')[0].upper() }}{% endfor %}{% endfor %}"};
  seeded_run(chat_template_fuzz, seeds, 3000, 80 * kMebibyte, 500);
}

// Hostile by construction: each of these must be refused.
TEST(HostileFiles, TokenizerJson) {
  const std::string good = make_byte_tokenizer_json();
  Files files = broken(good, 9);
  files.push_back("{\"model\":" + std::string(30'000, '['));
  // Each field in turn as every other kind of value.
  for (const std::string field :
       {"version", "added_tokens", "pre_tokenizer", "decoder", "model", "vocab", "merges", "content", "id", "type"})
    for (const std::string value :
         {"-1", "18446744073709551616", "1e308", "[[]]", "{\"a\": 1}", "false", "[1, 2]", "0.5"})
      if (field != "vocab" || value != "{\"a\": 1}")  // a vocabulary need not have every byte
        files.push_back(with_value(good, field, value));
  expect_refused(tokenizer_json_fuzz, files);
  EXPECT_GT(files.size(), 900U);
  RecordProperty("files", static_cast<int>(files.size()));
}

// Lines of a megabyte: whatever is in one, it costs a small multiple of its size, for the parser's buffers and message.
TEST(HostileFiles, Jsonl) {
  const size_t count = kMebibyte / 2;
  std::string zeros = "[0";
  for (size_t i = 0; i < count; ++i) zeros += ",0";
  const std::string lines[] = {"{\"text\": " + zeros,
                               "{\"a\": " + zeros + "], \"text\": 1}",
                               "{\"text\": \"" + std::string(count, 'a'),
                               "{\"text\": \"" + std::string(count, 'a') + "\", \"text\": \"b\"}",
                               std::string(count, '['),
                               "{\"a\": " + std::string(count, '['),
                               "{\"" + std::string(count, 'k') + "\": 1}",
                               "{\"messages\": \"" + std::string(count, 'x') + "\"}",
                               std::string(count, '\xFF')};
  for (const std::string& line : lines)
    EXPECT_EQ(run_target(jsonl_text_only, line, 8 * line.size() + kMebibyte), 1) << line.substr(0, 100);
}

TEST(HostileFiles, ChatTemplatesThatWorkTooHard) {
  for (const std::string file : {
           "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
           "{% set ns = namespace(x='ab') %}{% for a in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
           "{% set ns = namespace(x='ab') %}{% for a in range(100) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor "
           "%}",
           "{% set ns = namespace(x=[1]) %}{% for a in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
           "{% set ns = namespace(x=[1], y=[1]) %}{% for a in range(50) %}{% set ns.x = [ns.x, ns.x] %}"
           "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
           "{% set ns = namespace(x=[1]) %}{% for a in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | "
           "tojson }}",
           "{% set ns = namespace(x=1) %}{% for a in range(100) %}{% set ns.x = [ns.x] %}{% endfor %}",
           "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}",
           "{% set ns = namespace() %}{{ [ns] }}",
           "{{ range(9223372036854775807) }}",
           "{{ 9223372036854775807 + 1 }}",
           "{{ 1 % 0 }}",
           "{{ 'a' * 1000000000 }}",
       })
    EXPECT_EQ(run_target(chat_template_fuzz, file, 80 * kMebibyte), 1) << file;
  EXPECT_EQ(run_target(chat_template_fuzz, "{{ " + std::string(10'000, '(') + " }}", kMebibyte), 1);
  EXPECT_EQ(run_target(chat_template_fuzz, "{{ " + std::string(10'000, '-') + "1 }}", kMebibyte), 1);
  std::string nested;
  for (int i = 0; i < 2000; ++i) nested += "{% if true %}";
  EXPECT_EQ(run_target(chat_template_fuzz, nested, kMebibyte), 1);
  nested = "{% if true %}";
  for (int i = 0; i < 2000; ++i) nested += "{% elif true %}";
  EXPECT_EQ(run_target(chat_template_fuzz, nested, kMebibyte), 1);
}

}  // namespace
}  // namespace stepc
