// The fuzz targets of what is around a model: see seeded_run.h.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/files.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "models/decoder_config.h"
#include "tests/fuzz/seeded_run.h"
#include "train/config/run_config.h"
#include "train/config/run_config_keys.h"

extern "C" {
int config_json_fuzz(const uint8_t* data, size_t size);
int manifest_fuzz(const uint8_t* data, size_t size);
int run_toml_fuzz(const uint8_t* data, size_t size);
int safetensors_fuzz(const uint8_t* data, size_t size);
int slices_fuzz(const uint8_t* data, size_t size);
}

namespace stepc {
namespace {

// A file of the format with this header.
std::string safetensors(const std::string& header, size_t data_bytes) {
  std::string file(sizeof(uint64_t), '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + std::string(data_bytes, 'x');
}

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},"c":{"dtype":"U8","shape":[0,7],"data_offsets":[26,26]}})";

std::string manifest_text() {
  const auto directory = std::filesystem::temp_directory_path() / ("stepc-fuzz-manifest-" + std::to_string(::getpid()));
  std::filesystem::create_directory(directory);
  write_manifest(directory,
                 {7, {{"model.safetensors", {100, "0123456789abcdef"}}, {"config.json", {2, "fedcba9876543210"}}}});
  std::string text = read_text(directory / kManifestName, kMebibyte);
  std::filesystem::remove_all(directory);
  return text;
}

std::string run_toml() {
  train::RunConfig config;
  config.model.path = "model";
  config.data.train = {"a.txt", "b.jsonl"};
  config.output.dir = "out";
  return train::to_toml(config);
}

std::vector<std::string> model_configs() {
  std::vector<std::string> texts;
  for (const std::string& name : models::DecoderConfig::preset_names())
    texts.push_back(models::DecoderConfig::preset(name).to_json());
  return texts;
}

TEST(SeededFuzz, Safetensors) {
  seeded_run(safetensors_fuzz, {safetensors(kHeader, 26), safetensors("{}", 0)}, 3000, kMebibyte, 2500);
}
// The first half of a tensor whose second half another rank has, and a tensor of its own.
std::string slices_header(const std::string& info) {
  return str(R"({{"__metadata__":{{"DCP_SHARDING_INFO":{}}},"a":{{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}},)"
             R"("b":{{"dtype":"U8","shape":[3],"data_offsets":[16,19]}}}})",
             nlohmann::json(info).dump());
}
const std::string kSlices = R"({"a":{"saved_offsets":[0,0],"shape":[4,2]},"b":{"saved_offsets":[0],"shape":[3]}})";

TEST(SeededFuzz, Slices) { seeded_run(slices_fuzz, {safetensors(slices_header(kSlices), 19)}, 3000, kMebibyte, 2000); }
TEST(HostileFiles, Slices) {
  Files files;
  for (const std::string field : {"a", "b", "saved_offsets", "shape"})
    for (const std::string value :
         {"-1", "18446744073709551616", "[[]]", "{}", "0.5", "null", "[0]", "[1,0]", "[0,1]",
          "[9223372036854775807,9223372036854775807]", "[4611686018427387904,0]", "[5,2]", "[4,1]", "[0,0,0]"})
      files.push_back(safetensors(slices_header(with_value(kSlices, field, value)), 19));
  expect_refused(slices_fuzz, files);
}
TEST(SeededFuzz, Manifest) { seeded_run(manifest_fuzz, {manifest_text()}, 3000, kMebibyte, 2500); }
TEST(SeededFuzz, RunToml) { seeded_run(run_toml_fuzz, {run_toml()}, 3000, kMebibyte, 1500); }
TEST(SeededFuzz, ConfigJson) { seeded_run(config_json_fuzz, model_configs(), 3000, kMebibyte, 1000); }

const std::string kTextOfNul = "\"\\u0000\"";
const Files kValues = {"-1", "18446744073709551616", "1e308", "[[]]", "{\"a\": 1}", "0.5", kTextOfNul, "{", "\"\xC3"};

TEST(HostileFiles, Safetensors) {
  const std::string good = safetensors(kHeader, 26);
  Files files;
  for (size_t at = 0; at < good.size(); ++at) files.push_back(good.substr(0, at));  // cut anywhere
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{99'999'999}, uint64_t{100'000'001}}) {
    files.push_back(good);
    std::memcpy(files.back().data(), &length, sizeof length);
  }
  for (const std::string field : {"dtype", "shape", "data_offsets", "a", "__metadata__", "format"})
    for (const std::string& value : kValues) {
      const std::string file = safetensors(with_value(kHeader, field, value), 26);
      if (field == "format" && value == kTextOfNul)
        EXPECT_EQ(run_target(safetensors_fuzz, file, kMebibyte), 0) << "metadata may be any text";
      else
        files.push_back(file);
    }
  for (
      const std::string header : {
          R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
          R"({"a":{"dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,26]}})",
          R"({"a":{"dtype":"U8","shape":[26],"data_offsets":[0,26]},"b":{"dtype":"U8","shape":[26],"data_offsets":[0,26]}})",
          R"({"a":{"dtype":"U8","shape":[25],"data_offsets":[1,26]}})",
          R"({"a":{"dtype":"U8","shape":[25],"data_offsets":[0,25]}})",
          R"({"a":{"dtype":"U8","shape":[26],"data_offsets":[26,0]}})",
          R"({"a":{"dtype":"U8","shape":[26],"data_offsets":[0,26,0]}})",
          R"({"a":{"dtype":"U8","shape":[26],"data_offsets":[0,26],"more":1}})",
          R"({"a":{"dtype":"U8","shape":[26],"data_offsets":[0,26]},"a":{"dtype":"U8","shape":[0],"data_offsets":[26,26]}})",
          R"({"a":{"dtype":"X8","shape":[26],"data_offsets":[0,26]}})",
      })
    files.push_back(safetensors(header, 26));
  std::string many = "{";  // refused at the first
  for (int i = 0; i < 10'000; ++i) many += str("{}\"t{}\":{{}}", i == 0 ? "" : ",", i);
  files.push_back(safetensors(many + "}", 0));
  files.push_back(safetensors(std::string(50'000, '['), 0));
  files.push_back(safetensors("{\"a\":" + std::string(50'000, '['), 0));
  expect_refused(safetensors_fuzz, files);
  EXPECT_GT(files.size(), 270U);
}

TEST(HostileFiles, Manifest) {
  const std::string good = manifest_text();
  Files files = broken(good, 2);
  for (const std::string field : {"format", "version", "step", "files", "bytes", "xxh3", "model.safetensors"})
    for (const std::string& value : kValues) files.push_back(with_value(good, field, value));
  for (const std::string name : {"../config.json", "/etc/passwd", ".", "..", "", "a/b"}) {
    files.push_back(good);
    files.back().replace(files.back().find("config.json"), 11, name);
  }
  expect_refused(manifest_fuzz, files);
  EXPECT_GT(files.size(), 300U);
}

TEST(HostileFiles, ConfigJson) {
  const std::string good = models::DecoderConfig::preset("llama-10m").to_json();
  Files files = broken(good, 5);
  for (const std::string field : {"model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                                  "intermediate_size", "max_position_embeddings"})
    for (const std::string& value : kValues) files.push_back(with_value(good, field, value));
  for (const std::string field : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    for (const std::string value : {"0", "9223372036854775807", "4611686018427387904", "true", "null"})
      files.push_back(with_value(good, field, value));
  expect_refused(config_json_fuzz, files);
  EXPECT_GT(files.size(), 300U);
}

TEST(HostileFiles, RunToml) {
  const std::string good = run_toml();
  Files files = broken(good, 7);
  std::erase_if(files, [](const std::string& file) {  // cut after a whole line it may miss nothing that is required
    return run_target(run_toml_fuzz, file, kMebibyte) == 0;
  });
  const size_t cut = files.size();
  for (const std::string line :
       {"steps = 0", "steps = 1e3", "steps = 9223372036854775808", "steps = -1", "steps = [1]", "steps = 1979-05-27",
        "steps = \"1\"", "steps = nan", "steps = {a = 1}", "[train]", "a.b = 1", "steps = 0x", "steps = 1__0",
        "stepz = 1", "\x01", "steps", "= 1", "''''", "\"\"\""})
    files.push_back("[model]\npath = \"m\"\n[data]\ntrain = [\"t\"]\n[output]\ndir = \"o\"\n[train]\n" + line + "\n");
  files.push_back("a = " + std::string(30'000, '['));
  files.push_back("a = " + std::string(30'000, '{'));
  files.push_back(std::string(30'000, '['));
  std::string nested = "a";
  for (int i = 0; i < 3000; ++i) nested += ".a";
  files.push_back(nested + " = 1");
  files.push_back("[" + nested + "]");
  expect_refused(run_toml_fuzz, files);
  EXPECT_GT(cut, 100U);
}

}  // namespace
}  // namespace stepc
