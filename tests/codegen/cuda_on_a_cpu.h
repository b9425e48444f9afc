// What printed CUDA C++ asks of a device, on a CPU: the threads of a block are fibers that take turns at barriers and
// shuffles, in one order or the other. Compiled in front of the text; kernels run block by block.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ucontext.h>

#define STEPC_ON_A_CPU
#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct ThreadNumber {
  unsigned x = 0;
};
static ThreadNumber threadIdx, blockIdx;
uint4 shared_words[(256 << 10) / sizeof(uint4)];

template <class To, class From>
static To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  memcpy(&out, &value, sizeof out);
  return out;
}
static float __uint_as_float(unsigned x) { return same_bits<float>(x); }
static unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
static float __int_as_float(int x) { return same_bits<float>(x); }
static int __float_as_int(float x) { return same_bits<int>(x); }
static double __longlong_as_double(long long x) { return same_bits<double>(x); }
static long long __double_as_longlong(double x) { return same_bits<long long>(x); }

static float from_f16(unsigned short bits) {
  const float sign = bits & 0x8000 ? -1 : 1;
  const int exponent = (bits >> 10) & 31, fraction = bits & 0x3FF;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign *
         (exponent == 0 ? std::ldexp((float)fraction, -24) : std::ldexp((float)(1024 + fraction), exponent - 25));
}
static unsigned short to_f16(float x) {
  const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::fabs((double)x);
  if (x != x) return sign | 0x7E00;
  const int exponent = size < 0x1p-14 ? -14 : size < 0x1p17 ? std::ilogb(size) : 17;
  const double steps = std::nearbyint(std::ldexp(std::fmin(size, 0x1p17), 10 - exponent));  // ties to even
  const int bits = (exponent + 14) * 1024 + (int)steps;  // a carry goes to the exponent
  return sign | (unsigned short)(bits < 0x7C00 ? bits : 0x7C00);
}

class Fibers {
 public:
  static Fibers& all() {
    static Fibers fibers;
    return fibers;
  }

  // False: threads of a block do not come to the same barriers.
  bool launch(const std::function<void()>& kernel, unsigned blocks, unsigned threads, bool synchronises,
              bool backwards) {
    kernel_ = &kernel;
    for (unsigned b = 0; b < blocks; ++b) {
      blockIdx.x = backwards ? blocks - 1 - b : b;
      if (synchronises) {
        if (!run_block(threads, backwards)) return false;
        continue;
      }
      for (unsigned t = 0; t < threads; ++t) {
        threadIdx.x = backwards ? threads - 1 - t : t;
        kernel();
      }
    }
    return true;
  }

  // All threads of the block come here before one goes on.
  void meet() {
    Fiber& fiber = *fibers_[threadIdx.x];
    ++fiber.meetings;
    swapcontext(&fiber.context, &scheduler_);
  }
  template <class T>
  T exchange(T value, unsigned with) {
    Fiber& fiber = *fibers_[threadIdx.x];
    const int side = fiber.side;  // the next exchange must not write over what is not yet read
    fiber.side ^= 1;
    memcpy(fiber.sent[side], &value, sizeof value);
    const unsigned other = threadIdx.x ^ with;
    meet();
    memcpy(&value, fibers_[other]->sent[side], sizeof value);
    return value;
  }

 private:
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    bool is_done = false;
    int side = 0;
    long meetings = 0;
    char sent[2][8] = {};
  };
  static constexpr size_t kStackBytes = 64 << 10;

  static void run_thread() {
    Fibers& fibers = all();
    (*fibers.kernel_)();
    Fiber& fiber = *fibers.fibers_[threadIdx.x];
    fiber.is_done = true;
    swapcontext(&fiber.context, &fibers.scheduler_);
  }

  bool run_block(unsigned threads, bool backwards) {
    while (fibers_.size() < threads) fibers_.push_back(std::make_unique<Fiber>());
    for (unsigned t = 0; t < threads; ++t) {
      Fiber& fiber = *fibers_[t];
      fiber.is_done = false;
      fiber.side = 0;
      fiber.meetings = 0;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      makecontext(&fiber.context, run_thread, 0);
    }
    for (unsigned left = threads; left > 0;) {
      left = 0;
      for (unsigned k = 0; k < threads; ++k) {
        threadIdx.x = backwards ? threads - 1 - k : k;
        Fiber& fiber = *fibers_[threadIdx.x];
        if (fiber.is_done) continue;
        swapcontext(&scheduler_, &fiber.context);
        left += fiber.is_done ? 0 : 1;
      }
    }
    for (unsigned t = 1; t < threads; ++t)
      if (fibers_[t]->meetings != fibers_[0]->meetings) return false;
    return true;
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  ucontext_t scheduler_;
  const std::function<void()>* kernel_ = nullptr;
};

static void __syncthreads() { Fibers::all().meet(); }
template <class T>
static T __shfl_xor_sync(unsigned, T value, int offset) {
  return Fibers::all().exchange(value, (unsigned)offset);
}

template <class... Parameters, size_t... kPlaces>
static void call(void (*kernel)(Parameters...), void* const* buffers, std::index_sequence<kPlaces...>) {
  kernel((Parameters)buffers[kPlaces]...);
}
// `buffers`: in the order of the kernel's parameters.
template <class... Parameters>
static bool launch(void (*kernel)(Parameters...), void* const* buffers, unsigned blocks, unsigned threads,
                   bool synchronises, bool backwards) {
  const auto run = [&] { call(kernel, buffers, std::make_index_sequence<sizeof...(Parameters)>()); };
  return Fibers::all().launch(run, blocks, threads, synchronises, backwards);
}
