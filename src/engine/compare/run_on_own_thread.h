// Runs `body` on a thread of its own, below autograd, where no plan lends its memory. Rethrows what `body` throws.
#pragma once

#include <exception>
#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>

namespace stepc {

template <class Body>
void run_on_own_thread(const Body& body) {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace stepc
