#include "comm/addresses.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"

namespace stepc {

namespace {

constexpr std::chrono::milliseconds kRetryDelay{50};

using Found = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// `flags`: those of getaddrinfo. nullptr: all addresses of this machine.
Found look_up(const char* address, int port, int type, int flags) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address, std::to_string(port).c_str(), &hints, &found);
  USER_CHECK(error == 0, "the ranks cannot meet at '{}': {}", address == nullptr ? "" : address, gai_strerror(error));
  return {found, freeaddrinfo};
}

// A socket of the first of `addresses` with which `use` succeeds; -1, and errno that of the last, where there is none.
int first_socket(const addrinfo* addresses, const std::function<int(int, const addrinfo&)>& use) {
  int reason = EADDRNOTAVAIL;
  for (const addrinfo* one = addresses; one != nullptr; one = one->ai_next) {
    const int fd = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
    if (fd >= 0 && use(fd, *one) == 0) return fd;
    reason = errno;
    if (fd >= 0) close(fd);
    if (reason == EADDRINUSE) break;
  }
  errno = reason;
  return -1;
}

int bind_to(int fd, const addrinfo& address) {
  const int on = 1;
  // A run that ended lately leaves connections behind that hold the port, but nobody who listens.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  return bind(fd, address.ai_addr, address.ai_addrlen);
}

int connect_to(int fd, const addrinfo& address) { return connect(fd, address.ai_addr, address.ai_addrlen); }

// The system itself waits two minutes for a machine that does not answer at all.
int connect_within(int fd, const addrinfo& address, std::chrono::milliseconds timeout) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  if (connect_to(fd, address) == 0) return 0;
  if (errno != EINPROGRESS) return -1;
  pollfd one{fd, POLLOUT, 0};
  int error = ETIMEDOUT;
  socklen_t size = sizeof(error);
  if (poll(&one, 1, static_cast<int>(timeout.count())) > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error == 0 ? 0 : -1;
}

}  // namespace

int bind_socket(const std::string& address, int port) {
  int fd = first_socket(look_up(address.c_str(), port, SOCK_STREAM, 0).get(), bind_to);
  if (fd < 0 && errno == EADDRNOTAVAIL)
    fd = first_socket(look_up(nullptr, port, SOCK_STREAM, AI_PASSIVE).get(), bind_to);
  if (fd < 0 && errno == EADDRINUSE)
    user_error("port {} of {} is taken, by another run or by a second rank 0 of this one: give another port", port,
               address);
  const bool listens = fd >= 0 && listen(fd, SOMAXCONN) == 0;
  USER_CHECK(listens, "rank 0 cannot listen at {}:{}: {}", address, port, std::strerror(errno));
  return fd;
}

int port_of(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  INTERNAL_CHECK(getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) == 0, "{}", std::strerror(errno));
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

void hear_nobody(int socket) {
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop_all};
  setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));  // else it hears on
}

void hear(int socket) {
  int unused = 0;
  setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
}

std::set<int> listening_sockets() {
  std::set<int> found;
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", ignored), end; entry != end;
       entry.increment(ignored)) {
    const int descriptor = std::atoi(entry->path().filename().c_str());
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0)
      found.insert(descriptor);
  }
  return found;
}

void wait_for_listener(const std::string& address, int port, std::chrono::milliseconds timeout, bool has_listened) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::string reason;
  do {
    Found found = {nullptr, freeaddrinfo};
    // Its name, too, may not be known yet: pods of a cluster start in any order.
    try {
      found = look_up(address.c_str(), port, SOCK_STREAM, 0);
    } catch (const UserError& error) {
      reason = error.what();
    }
    if (found) {
      const auto connects = [&](int fd, const addrinfo& one) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
        return connect_within(fd, one, std::max(left, std::chrono::milliseconds(0)));
      };
      const int fd = first_socket(found.get(), connects);
      if (fd >= 0) {
        close(fd);
        return;
      }
      if (has_listened && errno == ECONNREFUSED)
        user_error(
            "nobody listens at {}:{} any more, where the launcher's agent did: it is gone; start the run again, "
            "from what it has saved",
            address, port);
      reason = std::strerror(errno);
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kRetryDelay, timeout));
  } while (std::chrono::steady_clock::now() < end);
  user_error("nobody listened at {}:{} within {}, where rank 0 or the launcher's agent should: {}", address, port,
             human_seconds(std::chrono::duration<double>(timeout).count()), reason);
}

std::string address_toward(const std::string& address, int port) {
  // Nothing is sent: connecting such a socket only chooses a route.
  const int fd = first_socket(look_up(address.c_str(), port, SOCK_DGRAM, 0).get(), connect_to);
  USER_CHECK(fd >= 0, "rank 0 at {} cannot be reached from this machine: {}", address, std::strerror(errno));
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  std::array<char, NI_MAXHOST> text{};
  const bool known =
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  close(fd);
  INTERNAL_CHECK(known, "a socket without an address");
  return text.data();
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

}  // namespace stepc
