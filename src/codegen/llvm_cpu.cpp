#include "codegen/llvm_cpu.h"

#include <algorithm>
#include <mutex>

#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>

#include "base/check.h"
#include "codegen/llvm_module.h"
#include "codegen/llvm_scalar.h"

namespace stepc {

namespace {

constexpr const char* kTriple = "x86_64-unknown-linux-gnu";

void start_llvm() {
  static const bool kStarted = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    // What stands still in a loop already stands apart in its addresses, and this pass takes a quarter of the time.
    if (llvm::cl::Option* option = llvm::cl::getRegisteredOptions().lookup("disable-lsr"))
      option->addOccurrence(0, "disable-lsr", "true");
    return true;
  }();
  (void)kStarted;
}

template <class T>
T checked(llvm::Expected<T> result, std::string_view what) {
  if (!result) INTERNAL_CHECK(false, "{}: {}", what, llvm::toString(result.takeError()));
  return std::move(*result);
}
void check(llvm::Error error, std::string_view what) {
  if (error) INTERNAL_CHECK(false, "{}: {}", what, llvm::toString(std::move(error)));
}

std::unique_ptr<llvm::TargetMachine> machine_for(const CpuTarget& target) {
  start_llvm();
  std::string problem;
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(kTriple, problem);
  INTERNAL_CHECK(found != nullptr, "LLVM has no {}: {}", kTriple, problem);
  std::unique_ptr<llvm::TargetMachine> machine(found->createTargetMachine(
      kTriple, target.name, target.features, {}, llvm::Reloc::PIC_, std::nullopt, llvm::CodeGenOptLevel::Default));
  INTERNAL_CHECK(machine != nullptr, "LLVM has no code for '{}'", target.name);
  return machine;
}

// The emitter writes what it wants; what is left to do is slots into registers and repeated address arithmetic.
void optimise(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager calls;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(calls);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, calls, modules);
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::SimplifyCFGPass());
  llvm::ModulePassManager all;
  all.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(passes)));
  all.run(module, modules);
}

}  // namespace

std::string llvm_version() { return LLVM_VERSION_STRING; }

CpuTarget host_cpu() {
  CpuTarget target;
  target.name = llvm::sys::getHostCPUName().str();
  const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  std::vector<std::string> listed;
  for (const auto& feature : features)
    listed.push_back(str("{}{}", feature.getValue() ? "+" : "-", feature.getKey().str()));
  std::ranges::sort(listed);
  target.features = str("{}", fmt::join(listed, ","));
  const auto has = [&](const char* name) { return features.lookup(name); };
  const bool wide = has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
  target.vector_bits = wide ? 512 : has("avx2") ? 256 : 128;
  target.has_fma = has("fma");
  target.has_f16c = has("f16c");
  return target;
}

CpuTarget generic_cpu() { return {"x86-64", "", 128, false, false}; }

struct ObjectCompiler::State {
  explicit State(CpuTarget cpu) : target(std::move(cpu)), machine(machine_for(target)) {}

  const CpuTarget target;
  const std::unique_ptr<llvm::TargetMachine> machine;

  std::unique_ptr<llvm::Module> module_of(llvm::LLVMContext& context, const LoopProgram& program) const {
    verify(program);
    std::unique_ptr<llvm::Module> module = llvm_module(context, program, target);
    module->setTargetTriple(kTriple);
    module->setDataLayout(machine->createDataLayout());
    std::string problem;
    llvm::raw_string_ostream out(problem);
    INTERNAL_CHECK(!llvm::verifyModule(*module, &out), "LLVM refuses a kernel: {}", problem);
    return module;
  }

  std::string object(const LoopProgram& program) const {
    llvm::LLVMContext context;
    const std::unique_ptr<llvm::Module> module = module_of(context, program);
    optimise(*module, *machine);
    llvm::SmallVector<char, 0> bytes;
    llvm::raw_svector_ostream out(bytes);
    llvm::legacy::PassManager passes;
    INTERNAL_CHECK(!machine->addPassesToEmitFile(passes, out, nullptr, llvm::CodeGenFileType::ObjectFile),
                   "LLVM emits no object file");
    passes.run(*module);
    return {bytes.begin(), bytes.end()};
  }
};

ObjectCompiler::ObjectCompiler(CpuTarget target) : state_(std::make_unique<State>(std::move(target))) {}
ObjectCompiler::~ObjectCompiler() = default;

std::string ObjectCompiler::compile(const LoopProgram& program) { return state_->object(program); }

struct ObjectLoader::State {
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::recursive_mutex mutex;  // a failed load drops its code again
  uint64_t loaded = 0;
};

ObjectLoader::ObjectLoader() : state_(std::make_shared<State>()) {
  start_llvm();
  llvm::orc::JITTargetMachineBuilder machine((llvm::Triple(kTriple)));
  state_->jit =
      checked(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(machine)).create(), "LLVM's JIT");
}

std::shared_ptr<const Kernel> ObjectLoader::load(const std::string& object, const LoopProgram& program) {
  using namespace llvm::orc;
  const std::lock_guard lock(state_->mutex);
  LLJIT& jit = *state_->jit;
  JITDylib& library = jit.getExecutionSession().createBareJITDylib(str("kernel{}", state_->loaded++));
  // Keeps the linker, and drops the code with the last kernel that uses it.
  std::shared_ptr<const void> code(&library, [state = state_](const void* at) {
    const std::lock_guard drop(state->mutex);
    auto* dropped = static_cast<JITDylib*>(const_cast<void*>(at));  // NOLINT: as it was given
    llvm::consumeError(state->jit->getExecutionSession().removeJITDylib(*dropped));
  });
  SymbolMap symbols;
  for (const CalledFunction& function : called_functions())
    symbols[jit.mangleAndIntern(function.name)] = {ExecutorAddr::fromPtr(function.address),
                                                   llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
  check(library.define(absoluteSymbols(std::move(symbols))), "a kernel's library");
  check(jit.addObjectFile(library, llvm::MemoryBuffer::getMemBufferCopy(object, "kernel")), "a kernel's object");
  auto kernel = std::make_shared<Kernel>();
  for (size_t p = 0; p < program.phases.size(); ++p) {
    const ExecutorAddr found = checked(jit.lookup(library, phase_name(p)), "a kernel's function");
    kernel->phases.push_back({program.phases[p].items, program.phases[p].grain,
                              found.toPtr<void (*)(void* const*, int64_t, int64_t, void*)>()});
  }
  kernel->scratch_bytes = program.scratch_bytes;
  for (const auto& [input, output] : program.in_place) {
    uint32_t inputs = 0;
    for (const LoopBuffer& buffer : program.buffers) inputs += buffer.kind == LoopBuffer::Kind::kInput ? 1 : 0;
    kernel->in_place.emplace_back(input, output - inputs);
  }
  kernel->code = std::move(code);
  return kernel;
}

}  // namespace stepc
