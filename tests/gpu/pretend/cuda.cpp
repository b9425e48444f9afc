// A CUDA driver and NVRTC for machines without a GPU, by their real names in one library: "machine code" is printed
// CUDA C++ compiled by the machine's C++ compiler, device memory is this process's. It refuses what a driver refuses.
// For tests of what calls a driver, and wrong where PRETEND_FAULT says how: built by tests/tools/gpu_stages_test.py,
// never by the build.
//
//   c++ -shared -fPIC -DSOURCES='"ROOT"' cuda.cpp -o libcuda.so.1; ln -s libcuda.so.1 libnvrtc.so.13
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kNotFound = 500;
constexpr int kMisaligned = 716;
constexpr int kLaunchFailed = 719;
constexpr size_t kSharedWithoutAsking = 48 << 10;
// What is asked for in measurements of time only is not done.
constexpr size_t kTooLargeToCopy = 256 << 20;
constexpr int kMostLaunches = 4;

struct Function {
  size_t (*parameters)() = nullptr;
  bool (*run)(void* const* parameters, unsigned blocks, unsigned threads) = nullptr;
  size_t shared_bytes = kSharedWithoutAsking;
  int launches = 0;
};
struct Program {
  std::string source, library;
};

void* address(uint64_t at) { return reinterpret_cast<void*>(at); }

}  // namespace

extern "C" {

// ---- the driver

int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int) { return *device = 0, 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = nullptr, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuDeviceGetAttribute(int* value, int which, int) {
  *value = which == 75 ? 9 : which == 76 ? 0 : which == 16 ? 132 : 1;
  return 0;
}
int cuDeviceGetName(char* name, int size, int) { return strncpy(name, "a pretended device", size_t(size)), 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = *total = size_t(1) << 36, 0; }
int cuGetErrorName(int, const char** text) { return *text = "PRETENDED", 0; }
int cuGetErrorString(int, const char** text) { return *text = "a pretended error", 0; }

int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  *memory = reinterpret_cast<uint64_t>(std::aligned_alloc(512, (bytes + 511) / 512 * 512));
  return 0;
}
int cuMemFree_v2(uint64_t memory) { return std::free(address(memory)), 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) { return memcpy(address(to), from, bytes), 0; }
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) { return memcpy(to, address(from), bytes), 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) {
  if (bytes < kTooLargeToCopy) memcpy(address(to), address(from), bytes);
  return 0;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void*) {
  if (bytes < kTooLargeToCopy) memset(address(to), value, bytes);
  return 0;
}

// An image is the name of a library.
int cuModuleLoadData(void** module, const void* image) {
  *module = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  return *module == nullptr ? kInvalidValue : 0;
}
int cuModuleUnload(void* module) { return dlclose(module), 0; }
int cuModuleGetFunction(void** out, void* module, const char* name) {
  auto* function = new Function;
  const std::string of(name);
  function->parameters = reinterpret_cast<size_t (*)()>(dlsym(module, ("count_" + of).c_str()));
  function->run = reinterpret_cast<bool (*)(void* const*, unsigned, unsigned)>(dlsym(module, ("run_" + of).c_str()));
  *out = function;
  return function->run == nullptr ? kNotFound : 0;
}
int cuFuncSetAttribute(void* function, int which, int value) {
  if (which != 8 || value > 232448) return kInvalidValue;
  static_cast<Function*>(function)->shared_bytes = size_t(value);
  return 0;
}
int cuFuncGetAttribute(int* value, int, void*) { return *value = 1, 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* value, void*, int, size_t) { return *value = 1, 0; }
int cuLaunchKernel(void* which, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                   unsigned shared_bytes, void*, void** arguments, void**) {
  auto* function = static_cast<Function*>(which);
  if (x == 0 || y != 1 || z != 1 || threads == 0 || threads > 1024) return kInvalidValue;
  if (shared_bytes > std::max(function->shared_bytes, kSharedWithoutAsking)) return kInvalidValue;
  const char* fault = std::getenv("PRETEND_FAULT");
  const std::string wrong = fault == nullptr ? "" : fault;
  if (wrong == "fails") return kLaunchFailed;
  if (wrong == "skips") return 0;
  std::vector<void*> parameters(function->parameters());
  for (size_t k = 0; k < parameters.size(); ++k) {
    memcpy(&parameters[k], arguments[k], sizeof(void*));
    const uintptr_t aligned = k + 1 == parameters.size() ? 64 : 16;  // scratch memory comes last
    if (reinterpret_cast<uintptr_t>(parameters[k]) % aligned != 0) return kMisaligned;
  }
  if (wrong == "strays") static_cast<char*>(parameters.back())[-1] = 0;
  if (++function->launches > kMostLaunches) return 0;
  return function->run(parameters.data(), x, threads) ? 0 : kLaunchFailed;
}

int cuStreamQuery(void*) { return 0; }
int cuEventCreate(void** event, unsigned) { return *event = nullptr, 0; }
int cuEventDestroy_v2(void*) { return 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventElapsedTime(float* milliseconds, void*, void*) { return *milliseconds = 1, 0; }

// ---- NVRTC

int nvrtcVersion(int* major, int* minor) { return *major = *minor = 0, 0; }
int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*, const char* const*) {
  *program = new Program{source, {}};
  return 0;
}
int nvrtcCompileProgram(void* which, int, const char* const*) {
  auto* program = static_cast<Program*>(which);
  std::string name = (std::filesystem::temp_directory_path() / "pretendXXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return 1;
  const std::string source = name + "/kernels.cpp";
  program->library = name + "/kernels.so";
  std::ofstream out(source);
  out << "#include \"tests/codegen/cuda_on_a_cpu.h\"\n"
      << program->source << "template <class... P> static size_t count_of(void (*)(P...)) { return sizeof...(P); }\n";
  const std::string before = "__launch_bounds__(";
  for (size_t at = program->source.find(before); at != std::string::npos; at = program->source.find(before, at + 1)) {
    const size_t name = program->source.find(") ", at) + 2;  // of a kernel
    const std::string of = program->source.substr(name, program->source.find('(', name) - name);
    out << "extern \"C\" size_t count_" << of << "() { return count_of(" << of << "); }\n"
        << "extern \"C\" bool run_" << of << "(void* const* p, unsigned b, unsigned t) { return launch(" << of
        << ", p, b, t, true, false); }\n";
  }
  out.close();
  const std::string command =
      "c++ -std=c++20 -O0 -w -fPIC -shared -ffp-contract=off -fno-strict-aliasing -fwrapv -fno-gnu-unique -I '" SOURCES
      "' '" +
      source + "' -o '" + program->library + "'";
  return std::system(command.c_str()) == 0 ? 0 : 1;
}
int nvrtcGetProgramLogSize(void*, size_t* size) { return *size = 0, 0; }
int nvrtcGetProgramLog(void*, char*) { return 0; }
int nvrtcGetCUBINSize(void* program, size_t* size) { return *size = static_cast<Program*>(program)->library.size(), 0; }
int nvrtcGetCUBIN(void* program, char* code) {
  const std::string& library = static_cast<Program*>(program)->library;
  return memcpy(code, library.data(), library.size()), 0;
}
int nvrtcDestroyProgram(void** program) { return delete static_cast<Program*>(*program), 0; }
}
