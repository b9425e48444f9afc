// Gloo, as LibTorch has it in it. The wheel ships c10d's header of it and not Gloo's own, which that includes:
// gloo_decls declares of those what c10d's names. This is the only file that sees them.
#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include <ATen/Version.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/version.h>

#include "base/check.h"
#include "comm/addresses.h"
#include "comm/no_pipe_signal.h"
#include "comm/transport.h"

namespace stepc {

namespace {

// The declarations are right for one minor version: another LibTorch that comes first on the library path would not
// fail to link, it would misread a table of functions.
void check_library() {
  const std::string built = at::show_config();
  const std::string series = str("{}.{}", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);
  USER_CHECK(built.find(str("TORCH_VERSION={}.", series)) != std::string::npos,
             "the LibTorch that runs is not the {} that stepc was built with: take its folder first on LD_LIBRARY_PATH",
             series);
  USER_CHECK(built.find("USE_GLOO=ON") != std::string::npos,
             "this LibTorch was built without Gloo, so several ranks cannot talk: take the wheel of torch {}", series);
}

class GlooTransport : public Transport {
 public:
  explicit GlooTransport(const std::string& address) {
    check_library();
    const NoPipeSignal none;
    const std::set<int> before = listening_sockets();
    device_ = c10d::ProcessGroupGloo::createDeviceForHostname(address);
    std::ranges::set_difference(listening_sockets(), before, std::back_inserter(sockets_));
  }

  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t ranks,
                                            std::chrono::milliseconds timeout) override {
    const NoPipeSignal none;
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(device_);
    options->threads = 1;  // sends and receives are the device thread's; those of the group stay idle
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(rank), static_cast<int>(ranks), options);
  }

  void listen(bool hears) override {
    if (hears == hears_) return;
    hears_ = hears;
    for (const int socket : sockets_) hears ? hear(socket) : hear_nobody(socket);
  }

 private:
  bool hears_ = true;
  std::vector<int> sockets_;                           // the device's own
  std::shared_ptr<::gloo::transport::Device> device_;  // one listening socket and thread for all groups
};

}  // namespace

std::unique_ptr<Transport> cpu_transport(const std::string& address) {
  try {
    return std::make_unique<GlooTransport>(address);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    user_error("cannot listen at {} for the other ranks: {}", address, first_line(error.what()));
  }
}

}  // namespace stepc
