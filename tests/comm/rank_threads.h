// Ranks as threads of the test: runs a function on each, and hands on what one of them threw.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "comm/ranks.h"

namespace stepc {

inline void on_ranks(const std::vector<std::shared_ptr<Ranks>>& all, const std::function<void(Ranks&)>& work) {
  std::vector<std::exception_ptr> errors(all.size());
  std::vector<std::thread> threads;
  for (size_t k = 0; k < all.size(); ++k)
    threads.emplace_back([&, k] {
      try {
        work(*all[k]);
      } catch (...) {
        errors[k] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}
inline void on_ranks(int64_t ranks, const std::function<void(Ranks&)>& work) { on_ranks(Ranks::threads(ranks), work); }

}  // namespace stepc
