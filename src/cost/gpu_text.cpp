// A GPU's Target as TOML text, and back.
#include <algorithm>

#include "base/text.h"
#include "cost/target_reader.h"

namespace stepc::target_text {

namespace {

// Somebody may ask for any of these.
void check_gpu_rows(const TableReader& reader, const Rates& rates) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    if (std::ranges::find(rates.matmuls, dtype, &MatmulRate::dtype) == rates.matmuls.end())
      reader.refuse(str("matmuls has no row in {}", name_of(dtype)));
    for (const bool backward : {false, true})
      if (std::ranges::none_of(rates.attentions, [&](const AttentionRate& one) {
            return one.dtype == dtype && one.backward == backward;
          }))
        reader.refuse(str("attentions has no {} row in {}", pass_name(backward), name_of(dtype)));
  }
}

}  // namespace

Target read_gpu(const toml::table& table) {
  TableReader reader("a GPU", table);
  reader.one_of("device", {"cuda"});
  Target target;
  target.gpu.emplace();
  target.gpu->name = reader.text("name");
  const int64_t sm = reader.size("sm");
  USER_CHECK(sm >= kOldestSm, "{}: torch has no kernels for it; the oldest that it has some for is {}",
             place("sm", reader.get("sm")), kOldestSm);
  USER_CHECK(sm <= kMostSm, "{}: must be at most {}: 90 is compute capability 9.0", place("sm", reader.get("sm")),
             kMostSm);
  target.features.sm = static_cast<int>(sm);
  target.gpu->multiprocessors = reader.size("multiprocessors");
  target.gpu->shared_bytes = reader.size("shared_bytes");
  target.gpu->l2_bytes = reader.size("l2_bytes");
  target.gpu->memory_bytes = reader.size("memory_bytes");
  target.bytes_per_second = reader.rate("bytes_per_second");
  target.flops_per_second = reader.rate("flops_per_second");
  Rates& rates = target.rates;
  rates.instruction_seconds = reader.seconds("kernel_seconds");
  rates.link_latency_seconds = reader.seconds("link_latency_seconds");
  rates.link_bytes_per_second = reader.rate("link_bytes_per_second");
  read_rows("matmuls", reader.get("matmuls"), rates.matmuls, [](TableReader& row) {
    return MatmulRate{.dtype = row.dtype(),
                      .rows = row.size("rows"),
                      .columns = row.size("columns"),
                      .inner = row.size("inner"),
                      .flops_per_second = row.rate("flops_per_second")};
  });
  read_rows("attentions", reader.get("attentions"), rates.attentions, [](TableReader& row) {
    return AttentionRate{.dtype = row.dtype(),
                         .backward = row.backward(),
                         .length = row.size("length"),
                         .width = row.size("width"),
                         .flops_per_second = row.rate("flops_per_second")};
  });
  reader.end();
  check_gpu_rows(reader, rates);
  complete_gpu(target);
  return target;
}

void complete_gpu(Target& target) {
  target.rates.streams = {{1, target.bytes_per_second}};
  target.rates.aten_flops_per_second = target.flops_per_second;
  target.narrow_flops_per_second = 0;
  for (const MatmulRate& one : target.rates.matmuls)
    if (!is_float8(one.dtype))
      target.narrow_flops_per_second = std::max(target.narrow_flops_per_second, one.flops_per_second);
}

std::string gpu_text(const Target& target) {
  const Gpu& gpu = target.gpu.value();
  const Rates& rates = target.rates;
  std::string text = str("device = \"cuda\"\nname = \"{}\"\nsm = {}\nmultiprocessors = {}\nshared_bytes = {}\n",
                         gpu.name, target.features.sm, gpu.multiprocessors, gpu.shared_bytes);
  text +=
      str("l2_bytes = {}\nmemory_bytes = {}\nbytes_per_second = {}\nflops_per_second = {}\nkernel_seconds = {}\n",
          gpu.l2_bytes, gpu.memory_bytes, target.bytes_per_second, target.flops_per_second, rates.instruction_seconds);
  text += str("link_latency_seconds = {}\nlink_bytes_per_second = {}\n", rates.link_latency_seconds,
              rates.link_bytes_per_second);
  text += "\n# (rows, inner) x (inner, columns)\n";
  for (const MatmulRate& one : rates.matmuls)
    text += str("[[matmuls]]\ndtype = \"{}\"\nrows = {}\ncolumns = {}\ninner = {}\nflops_per_second = {}\n",
                name_of(one.dtype), one.rows, one.columns, one.inner, one.flops_per_second);
  text += "\n# of as many keys as queries; of causal attention half of the pairs count\n";
  for (const AttentionRate& one : rates.attentions)
    text += str("[[attentions]]\ndtype = \"{}\"\npass = \"{}\"\nlength = {}\nwidth = {}\nflops_per_second = {}\n",
                name_of(one.dtype), pass_name(one.backward), one.length, one.width, one.flops_per_second);
  return text;
}

}  // namespace stepc::target_text
