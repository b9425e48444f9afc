#include "codegen/cuda_source.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "codegen/cuda_scalar.h"

namespace stepc {

namespace {

constexpr int64_t kMost32 = int64_t{1} << 31;
// That a multiprocessor has registers for, if each thread takes the most that a kernel may have: 65,536 / 128.
constexpr int64_t kThreadsOfAllRegisters = 512;

// A pointer to a buffer's elements, as it is declared.
std::string pointer_type(const LoopProgram& program, uint32_t b) {
  const LoopBuffer& buffer = program.buffers[b];
  const bool is_shared =
      std::ranges::any_of(program.in_place, [&](const auto& pair) { return pair.first == b || pair.second == b; });
  return str("{}{}*{}", buffer.kind == LoopBuffer::Kind::kInput ? "const " : "", cuda_memory_type(buffer.dtype),
             is_shared ? "" : " __restrict__");
}

// What the threads of a kernel do.
class KernelPrinter {
 public:
  // `names`: of its buffers. `block`: the number of a block among the kernel's.
  KernelPrinter(const GpuProgram& program, size_t number, const std::vector<std::string>& names, std::string_view block,
                size_t indent)
      : program_(program.loops),
        phase_(program.loops.phases[number]),
        code_(phase_.instructions),
        kernel_(program.kernels[number]),
        names_(names),
        block_(block),
        indent_(indent) {
    int64_t largest = kernel_.blocks * kernel_.block * kernel_.width;
    for (const LoopVariable& variable : phase_.variables) {
      const bool is_item = variable.kind == LoopVariable::Kind::kItem;
      extents_.push_back(is_item ? phase_.items : variable.extent);
      largest = std::max(largest, extents_.back() + variable.block);
    }
    for (const GpuStep& step : kernel_.steps) largest = std::max(largest, step.extent);
    counter_ = largest < kMost32 ? "int" : "i64";
  }

  std::string print() {
    print_place();
    for (size_t h = 0; h < kernel_.held.size(); ++h)
      if (kernel_.held[h].place == GpuHeld::Place::kRegisters)
        line(str("alignas(16) {} h{}[{}];", memory_type(kernel_.held[h].buffer), h, kernel_.held[h].count));
    for (const GpuStep& step : kernel_.steps) print(step);
    return out_;
  }

 private:
  using Kind = GpuStep::Kind;

  void line(const std::string& text) { out_ += std::string(indent_, ' ') + text + "\n"; }
  void open(const std::string& text) {
    line(text + " {");
    indent_ += 2;
  }
  void close() {
    indent_ -= 2;
    line("}");
  }
  [[nodiscard]] std::string_view memory_type(uint32_t buffer) const {
    return cuda_memory_type(program_.buffers[buffer].dtype);
  }

  // ---- what is there from the start

  void print_place() {
    const std::string thread = str("({})threadIdx.x", counter_);
    const std::string block = str("({}){}", counter_, block_);
    if (kernel_.over_grid) {
      line(str("const {} lane = {} * {} + {};", counter_, block, kernel_.block, thread));
      return;
    }
    const int64_t a_block = kernel_.teams_a_block();
    const std::string in_block = kernel_.interleaved ? thread + " % 32" : str("{} / {}", thread, kernel_.lanes);
    line(str("const {} lane = {};", counter_,
             kernel_.interleaved ? thread + " / 32" : str("{} % {}", thread, kernel_.lanes)));
    if (kernel_.blocks * a_block == kernel_.teams) {
      line(str("const {} i0 = {} * {} + {};", counter_, block, a_block, in_block));
    } else {
      line(str("const {} team = {} * {} + {};", counter_, block, a_block, in_block));
      line(str("const bool live = team < {};", kernel_.teams));
      line(str("const {0} i0 = live ? team : ({0}){1};", counter_, kernel_.teams - 1));
      live_ = "live";
    }
    print_digits(0);
  }

  void print_digits(uint32_t variable) {
    for (size_t k = 0; k < phase_.variables.size(); ++k) {
      const LoopVariable& digit = phase_.variables[k];
      if (digit.kind == LoopVariable::Kind::kDigit && digit.source == variable)
        line(str("const {} i{} = i{} / {} % {};", counter_, k, variable, digit.divisor, digit.extent));
    }
  }

  // ---- steps

  void print(const GpuStep& step) {
    switch (step.kind) {
      case Kind::kCompute:
        for (uint32_t i = step.first; i < step.last; ++i) print_alone(i);
        break;
      case Kind::kSerial:
        print_serial(step);
        break;
      case Kind::kSerialEnd:
        close();
        live_ = lives_.back();
        lives_.pop_back();
        break;
      case Kind::kLanes:
      case Kind::kFlush:
        print_lanes(step);
        break;
      case Kind::kShuffle:
        print_shuffle(step.first, step.count);
        break;
      case Kind::kPut:
        line(str("{}*({}*)(shared + {} + {} * 8) = v{};", kernel_.interleaved ? "" : "if (threadIdx.x % 32 == 0) ",
                 cuda_type(code_[step.first].type), step.shared_byte,
                 kernel_.interleaved ? "threadIdx.x" : "threadIdx.x / 32", step.first));
        break;
      case Kind::kBarrier:
        line("__syncthreads();");
        break;
      case Kind::kTree:
        print_tree(step);
        break;
    }
  }

  // The rows of a chunk; all teams of a block make as many turns, so that they meet at the barriers.
  void print_serial(const GpuStep& step) {
    const uint32_t loop = code_[step.first].loop;
    const LoopVariable& variable = phase_.variables[loop];
    open(str("for ({0} r{1} = 0; r{1} < {2}; ++r{1})", counter_, loop, variable.block));
    lives_.push_back(live_);
    const std::string row = str("i0 * {} + r{}", variable.block, loop);
    if (variable.extent % variable.block != 0) {
      line(str("const bool live{} = {}{} < {};", loop, live_.empty() ? "" : live_ + " && ", row, variable.extent));
      live_ = str("live{}", loop);
      line(str("const {0} i{1} = live{1} ? {2} : ({0}){3};", counter_, loop, row, variable.extent - 1));
    } else {
      line(str("const {} i{} = {};", counter_, loop, row));
    }
    print_digits(loop);
  }

  void print_shuffle(uint32_t accumulator, int64_t count) {
    if (count == 1) return;
    line("#pragma unroll");
    const std::string value = str("v{}", accumulator);
    line(str("for (int o = {}; o > 0; o /= 2) {} = {};", count / 2, value,
             cuda_combined(code_[accumulator].combine, value, str("neighbour({}, o)", value))));
  }

  void print_tree(const GpuStep& step) {
    const std::string value = str("v{}", step.first);
    const auto part = [&](const std::string& slot) {
      return str("*({}*)(shared + {} + ({}) * 8)", cuda_type(code_[step.first].type), step.shared_byte, slot);
    };
    if (!kernel_.interleaved) {
      line(str("{} = {};", value, part(str("threadIdx.x % {}", step.count))));
      print_shuffle(step.first, step.count);
      return;
    }
    line(str("{} = {};", value, part("threadIdx.x % 32")));
    line(str("for (int o = 1; o < {}; ++o) {} = {};", step.count, value,
             cuda_combined(code_[step.first].combine, value, part("threadIdx.x % 32 + o * 32"))));
  }

  // Outside of lanes: all compute, the first stores, and rows that there are not add nothing.
  void print_alone(uint32_t i) {
    const LoopOp op = code_[i].op;
    std::string condition;
    if (op == LoopOp::kStore) condition = live_.empty() ? "lane == 0" : live_ + " && lane == 0";
    if (is_accumulation(op)) condition = live_;
    print(i, condition.empty() ? "" : str("if ({}) ", condition));
  }

  // ---- lanes

  void print_lanes(const GpuStep& step) {
    const int64_t width = kernel_.width;
    const bool one_turn = step.turns == 1;
    if (!one_turn) {
      if (step.unrolled) line("#pragma unroll");
      open(str("for (int t = 0; t < {}; ++t)", step.turns));
    } else {
      open("");
    }
    turn_ = one_turn ? "" : str("t * {} + ", width);
    const std::string lane = one_turn ? "lane" : str("(t * {} + lane)", kernel_.lanes);
    line(str("const {} e = {} * {};", counter_, lane, width));
    std::vector<std::string> conditions;
    if (!live_.empty()) conditions.push_back(live_);
    if (step.turns * kernel_.lanes * width != step.extent) conditions.push_back(str("e < {}", step.extent));
    const LoopVariable& outermost = phase_.variables[step.loops[0]];
    if (outermost.kind == LoopVariable::Kind::kChunk && outermost.extent % outermost.block != 0)
      conditions.push_back(str("i0 * {} + e < {}", outermost.block, outermost.extent));
    open(conditions.empty() ? std::string() : str("if ({})", fmt::join(conditions, " && ")));
    print_point(step);
    if (step.kind == Kind::kFlush)
      print_flush(step);
    else if (width == 1)
      print_each(step, step.first, step.last);
    else
      print_groups(step);
    close();
    close();
  }

  // The loops' variables; of the innermost, `g` is where a lane's elements begin.
  void print_point(const GpuStep& step) {
    int64_t divisor = 1;
    for (size_t l = step.loops.size(); l-- > 0;) {
      const LoopVariable& variable = phase_.variables[step.loops[l]];
      const int64_t turns = extents_[step.loops[l]];
      std::string text = divisor == 1 ? "e" : str("e / {}", divisor);
      if (variable.kind == LoopVariable::Kind::kChunk)
        text = str("i0 * {} + e", variable.block);
      else if (l > 0)
        text += str(" % {}", turns);
      divisor *= turns;
      const bool is_group = kernel_.width > 1 && l + 1 == step.loops.size();
      line(str("const {} {} = {};", counter_, is_group ? "g" : str("i{}", step.loops[l]), text));
      if (!is_group) print_digits(step.loops[l]);
    }
  }

  void print_groups(const GpuStep& step) {
    const uint32_t innermost = step.loops.back();
    group_ = innermost;
    for (uint32_t i = step.first; i < step.last; ++i) {
      const LoopInstruction& one = code_[i];
      if (kernel_.modes[i] == GpuMode::kOnce) print(i, "");
      if (kernel_.modes[i] != GpuMode::kWide) continue;
      if (one.op == LoopOp::kLoad) print_wide_load(i);
      if (one.op == LoopOp::kStore) line(str("alignas(16) {} w{}[{}];", memory_type(one.buffer), i, kernel_.width));
    }
    group_ = kNoGroup;
    line("#pragma unroll");
    open(str("for (int k = 0; k < {}; ++k)", kernel_.width));
    line(str("const {} i{} = g + k;", counter_, innermost));
    print_digits(innermost);
    print_each(step, step.first, step.last);
    close();
    group_ = innermost;
    for (uint32_t i = step.first; i < step.last; ++i)
      if (kernel_.modes[i] == GpuMode::kWide && code_[i].op == LoopOp::kStore)
        line(str("move<{}>({} + {}, w{});", wide_bytes(code_[i].buffer), names_[code_[i].buffer],
                 form_text(code_[i].index), i));
    group_ = kNoGroup;
  }
  [[nodiscard]] int64_t wide_bytes(uint32_t buffer) const {
    return kernel_.width * size_of(program_.buffers[buffer].dtype);
  }

  void print_wide_load(uint32_t i) {
    const LoopInstruction& one = code_[i];
    const int32_t held = kernel_.held_of[i];
    if (held >= 0) {
      if (kernel_.fills[i] != 0)
        line(str("move<{}>(h{} + {}0, {} + {});", wide_bytes(one.buffer), held, turn_, names_[one.buffer],
                 index_text(one)));
      return;
    }
    line(str("alignas(16) {} w{}[{}]{};", memory_type(one.buffer), i, kernel_.width, one.args[1] >= 0 ? " = {}" : ""));
    line(str("{}move<{}>(w{}, {} + {});", one.args[1] >= 0 ? str("if (v{}) ", one.args[1]) : "", wide_bytes(one.buffer),
             i, names_[one.buffer], index_text(one)));
  }

  void print_flush(const GpuStep& step) {
    const GpuHeld& held = kernel_.held[step.held];
    const bool is_wide = kernel_.width > 1 && held.index.stride_of(step.loops.back()) == 1;
    if (is_wide) {
      group_ = step.loops.back();
      line(str("move<{}>({} + {}, h{} + {}0);", wide_bytes(held.buffer), names_[held.buffer], form_text(held.index),
               step.held, turn_));
      group_ = kNoGroup;
      return;
    }
    line("#pragma unroll");
    open(str("for (int k = 0; k < {}; ++k)", kernel_.width));
    if (kernel_.width > 1) line(str("const {} i{} = g + k;", counter_, step.loops.back()));
    if (kernel_.width > 1) print_digits(step.loops.back());
    line(str("{}[{}] = h{}[{}k];", names_[held.buffer], form_text(held.index), step.held, turn_));
    close();
  }

  // What is done for each element; loops that are not the lanes' run in each of them.
  void print_each(const GpuStep& step, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      const LoopInstruction& one = code_[i];
      if (one.op == LoopOp::kEnd || kernel_.modes[i] == GpuMode::kOnce) continue;
      if (one.op != LoopOp::kLoop) {
        print(i, "");
        continue;
      }
      if (std::ranges::find(step.loops, one.loop) != step.loops.end()) continue;
      const auto last = static_cast<uint32_t>(end_of_loop(phase_, i));
      open(str("for ({0} i{1} = 0; i{1} < {2}; ++i{1})", counter_, one.loop, extents_[one.loop]));
      print_digits(one.loop);
      print_each(step, i + 1, last);
      close();
      i = last;
    }
  }

  // ---- instructions

  // In 32 bits where all of its terms fit.
  [[nodiscard]] std::string form_text(const Affine& affine) const {
    int64_t reach = std::abs(affine.offset);
    for (const AffineTerm& term : affine.terms) reach += std::abs(term.stride) * extents_[term.loop];
    const bool is_narrow = reach < kMost32 && counter_ == "int";
    std::string out;
    for (const AffineTerm& term : affine.terms) {
      const std::string name = term.loop == group_ ? "g" : str("i{}", term.loop);
      out += str("{}{}{}", out.empty() ? "" : " + ", is_narrow ? "" : "(i64)", name);
      if (term.stride != 1) out += str(" * {}{}", term.stride, is_narrow ? "" : "LL");
    }
    if (affine.offset != 0 || out.empty()) out += str("{}{}", out.empty() ? "" : " + ", affine.offset);
    return out;
  }
  [[nodiscard]] std::string index_text(const LoopInstruction& one) const {
    std::string index = form_text(one.index);
    if (one.op == LoopOp::kLoad && one.args[0] >= 0) index += str(" + v{} * {}LL", one.args[0], one.indirect);
    return index;
  }

  // The element of an access: in memory, in what is held, or of a wide one.
  [[nodiscard]] std::string element_text(uint32_t i) const {
    const LoopInstruction& one = code_[i];
    const std::string place = kernel_.width > 1 ? "k" : "0";
    if (kernel_.held_of[i] >= 0) {
      const auto number = static_cast<size_t>(kernel_.held_of[i]);
      const GpuHeld& held = kernel_.held[number];
      if (held.place == GpuHeld::Place::kRegisters) return str("h{}[{}{}]", number, turn_, place);
      return str("(({}*)(shared + {}))[{}]", memory_type(one.buffer), held.shared_byte, index_text(one));
    }
    if (kernel_.modes[i] == GpuMode::kWide) return str("w{}[k]", i);
    return str("{}[{}]", names_[one.buffer], index_text(one));
  }

  [[nodiscard]] std::string load_text(uint32_t i) const {
    const LoopInstruction& one = code_[i];
    const std::string element = cuda_from_memory(program_.buffers[one.buffer].dtype, element_text(i));
    if (one.args[1] < 0 || kernel_.modes[i] == GpuMode::kWide) return element;
    return str("v{} ? ({})({}) : ({})0", one.args[1], cuda_type(one.type), element, cuda_type(one.type));
  }

  void print(uint32_t i, const std::string& condition) {
    const LoopInstruction& one = code_[i];
    const std::string_view type = cuda_type(one.type);
    const auto arg = [&](size_t k) { return str("v{}", one.args[k]); };
    switch (one.op) {
      case LoopOp::kConstant:
        return line(str("const {} v{} = {};", type, i, cuda_constant(one)));
      case LoopOp::kAccumulator:
        return line(str("{} v{} = {};", type, i, cuda_constant(one)));
      case LoopOp::kAccumulate: {
        const Combine combine = code_[static_cast<size_t>(one.args[0])].combine;
        return line(str("{}{} = {};", condition, arg(0), cuda_combined(combine, arg(0), arg(1))));
      }
      case LoopOp::kAccumulateProduct:
        return line(str("{}{} = fma{}({}, {}, {});", condition, arg(0), one.type == ValueType::kF32 ? "f" : "", arg(1),
                        arg(2), arg(0)));
      case LoopOp::kFinish:
        return line(str("const {} v{} = {};", type, i, arg(0)));
      case LoopOp::kIndex:
        return line(str("const i64 v{} = {};", i, form_text(one.index)));
      case LoopOp::kLoad:
        if (kernel_.fills[i] != 0 && kernel_.modes[i] != GpuMode::kWide)
          line(str("{} = {}[{}];", element_text(i), names_[one.buffer], index_text(one)));
        return line(str("const {} v{} = {};", type, i, load_text(i)));
      case LoopOp::kStore:
        return line(
            str("{}{} = {};", condition, element_text(i), cuda_to_memory(program_.buffers[one.buffer].dtype, arg(0))));
      default:
        return line(str("const {} v{} = {};", type, i, cuda_expression(phase_, one)));
    }
  }

  static constexpr uint32_t kNoGroup = static_cast<uint32_t>(-1);
  const LoopProgram& program_;
  const LoopPhase& phase_;
  const std::vector<LoopInstruction>& code_;
  const GpuKernel& kernel_;
  const std::vector<std::string>& names_;
  std::string_view block_;
  std::vector<int64_t> extents_;
  std::string counter_ = "int";     // the type of loop variables
  std::string live_;                // whether the row is one; empty: it is
  std::vector<std::string> lives_;  // outside of open row loops
  std::string turn_;                // in front of the place among a lane's elements
  uint32_t group_ = kNoGroup;       // the loop whose variable is `g`, where code stands for a lane's elements together
  size_t indent_;
  std::string out_;
};

// A function of the device. Of a launch of several kernels, those whose threads do the same to other buffers share
// their text:
//
//   if (blockIdx.x >= 8 && blockIdx.x < 24) {
//     const float* p0; ...
//     switch ((blockIdx.x - 8) / 4) {
//       case 0: p0 = b3; ... break;
//       ...
//     }
//     const unsigned block = (blockIdx.x - 8) % 4;
//     ...
//   }
class LaunchPrinter {
 public:
  LaunchPrinter(const GpuProgram& program, const GpuLaunch& launch, std::string name)
      : program_(program), loops_(program.loops), launch_(launch), name_(std::move(name)) {}

  std::string print() {
    print_signature();
    if (launch_.kernels == 1) {
      std::vector<std::string> names;
      for (size_t b = 0; b < loops_.buffers.size(); ++b) names.push_back(str("b{}", b));
      return out_ + KernelPrinter(program_, launch_.first, names, "blockIdx.x", 2).print() + "}\n";
    }
    int64_t begin = 0;
    for (size_t k = launch_.first; k < launch_.first + launch_.kernels;) {
      const Form form = form_of(k);
      std::vector<Form> alike = {form};
      while (++k < launch_.first + launch_.kernels && form_of(k).text == form.text) alike.push_back(form_of(k));
      if (form.blocks > 0) print_form(alike, begin);
      begin += form.blocks * static_cast<int64_t>(alike.size());
    }
    return out_ + "}\n";
  }

 private:
  struct Form {
    std::string text;  // with the buffers' types, which are named p0, p1 ...
    std::vector<uint32_t> buffers;
    int64_t blocks = 1;
  };

  void print_signature() {
    std::vector<std::string> parameters;
    for (uint32_t b = 0; b < loops_.buffers.size(); ++b) {
      const LoopBuffer::Kind kind = loops_.buffers[b].kind;
      if (kind == LoopBuffer::Kind::kInput || kind == LoopBuffer::Kind::kOutput)
        parameters.push_back(str("{} b{}", pointer_type(loops_, b), b));
    }
    parameters.emplace_back("unsigned char* __restrict__ scratch");
    const std::string bounds =
        launch_.alone ? str("{}, {}", launch_.block, std::max<int64_t>(1, kThreadsOfAllRegisters / launch_.block))
                      : str("{}", launch_.block);
    out_ = str("extern \"C\" __global__ void __launch_bounds__({}) {}({}) {{\n", bounds, name_,
               fmt::join(parameters, ", "));
    for (size_t b = 0; b < loops_.buffers.size(); ++b) {
      const LoopBuffer& buffer = loops_.buffers[b];
      const auto type = cuda_memory_type(buffer.dtype);
      if (buffer.kind == LoopBuffer::Kind::kScratch)
        out_ += str("  {}* const b{} = ({}*)(scratch + {});\n", type, b, type, buffer.scratch_byte);
    }
    if (launch_.shared_bytes > 0) out_ += "  unsigned char* const shared = (unsigned char*)shared_words;\n";
  }

  [[nodiscard]] Form form_of(size_t kernel) const {
    Form form;
    form.blocks = program_.kernels[kernel].blocks;
    std::vector<std::string> names(loops_.buffers.size());
    for (const LoopInstruction& one : loops_.phases[kernel].instructions) {
      if (!is_access(one.op) || !names[one.buffer].empty()) continue;
      names[one.buffer] = str("p{}", form.buffers.size());
      form.text += str("    {} {};\n", pointer_type(loops_, one.buffer), names[one.buffer]);
      form.buffers.push_back(one.buffer);
    }
    const std::string body = KernelPrinter(program_, kernel, names, "block", 4).print();
    form.text += "SELECT" + body;
    return form;
  }

  void print_form(const std::vector<Form>& alike, int64_t begin) {
    const int64_t blocks = alike[0].blocks, end = begin + blocks * static_cast<int64_t>(alike.size());
    out_ += str("  if (blockIdx.x >= {} && blockIdx.x < {}) {{\n", begin, end);
    std::string select = str("    switch ((blockIdx.x - {}) / {}) {{\n", begin, blocks);
    for (size_t f = 0; f < alike.size(); ++f) {
      select += f + 1 == alike.size() ? "      default:" : str("      case {}:", f);
      for (size_t b = 0; b < alike[f].buffers.size(); ++b) select += str(" p{} = b{};", b, alike[f].buffers[b]);
      select += " break;\n";
    }
    select += str("    }}\n    const unsigned block = (blockIdx.x - {}) % {};\n", begin, blocks);
    const std::string& text = alike[0].text;
    const size_t at = text.find("SELECT");
    out_ += text.substr(0, at) + select + text.substr(at + 6) + "  }\n";
  }

  const GpuProgram& program_;
  const LoopProgram& loops_;
  const GpuLaunch& launch_;
  std::string name_;
  std::string out_;
};

}  // namespace

std::string cuda_kernels(const GpuProgram& program, std::string_view name) {
  std::string out;
  for (size_t l = 0; l < program.launches.size(); ++l)
    out += LaunchPrinter(program, program.launches[l], str("{}{}", name, l)).print();
  return out;
}

std::string cuda_source(const GpuProgram& program) {
  return std::string(cuda_prelude()) + cuda_kernels(program, "phase");
}

std::vector<std::string> cuda_options(int architecture) {
  return {str("--gpu-architecture=sm_{}", architecture), "--fmad=false", "--std=c++17"};
}

}  // namespace stepc
