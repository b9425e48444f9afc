// Ports of loopback that the system gives.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace stepc {

// Listens at 127.0.0.1 while it lives.
struct PortHolder {
  PortHolder() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    bind(fd, reinterpret_cast<sockaddr*>(&at), size);
    listen(fd, 1);
    getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
    port = ntohs(at.sin_port);
  }
  ~PortHolder() { close(fd); }
  PortHolder(const PortHolder&) = delete;

  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port = 0;
};
// One that was free a moment ago.
inline int free_port() { return PortHolder().port; }

}  // namespace stepc
