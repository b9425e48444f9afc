// What OpenMP promises about a parallel region, said to ThreadSanitizer. libgomp is not instrumented, so TSan sees
// neither that the workers come after what the leading thread did before the region, nor that the leader goes on after
// what they did in it, and takes both for races. This GOMP_parallel, the one entry that g++ and LibTorch use, stands
// before libgomp's in every test that it is linked into. It says nothing about the order of a region's workers among
// each other: what they do to the same memory stays a race.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

namespace {

struct Region {
  void (*body)(void*);
  void* data;
  // Only their addresses matter; two, or a worker that ends early would come before one that starts late.
  char begin = 0, end = 0;
};

void run_worker(void* pointer) {
  auto* region = static_cast<Region*>(pointer);
  __tsan_acquire(&region->begin);
  region->body(region->data);
  __tsan_release(&region->end);
}

}  // namespace

extern "C" {

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {  // NOLINT: libgomp's name
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static const auto kNext = reinterpret_cast<Parallel>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  Region region{body, data};
  __tsan_release(&region.begin);
  kNext(run_worker, &region, threads, flags);
  __tsan_acquire(&region.end);
}

// A test asks for memory that cannot be had. And the only thing that TSan sees of LibTorch is what its calls of memcmp,
// malloc and the like touch, not the locks of oneDNN's around them: calls from there do not count.
const char* __tsan_default_options() {  // NOLINT: TSan's name
  return "allocator_may_return_null=1:ignore_noninstrumented_modules=1";
}

}  // extern "C"
