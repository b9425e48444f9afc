// Addresses of this machine: where rank 0 of a run listens, and which of them the other ranks can reach.
#pragma once

#include <chrono>
#include <set>
#include <string>

namespace stepc {

// A socket that listens only at this address and port; the caller closes it. If the address is not this machine's, as
// that of a service in front of the machine, the socket listens at all addresses. Throws UserError for an unknown name
// and for a port that is taken.
int bind_socket(const std::string& address, int port);
// The port that a socket bound to port 0 has received.
int port_of(int socket);
// hear_nobody(): a listening socket stops accepting connections; new ones get no answer and use no resources here.
// Existing connections stay. hear(): it accepts again.
void hear_nobody(int socket);
void hear(int socket);
// The sockets of this process that listen for connections.
std::set<int> listening_sockets();
// Returns when a process listens there. Throws UserError, with the error of the last attempt, if none does within the
// time. `has_listened`: one has listened before, so a refused connection ends the waiting.
void wait_for_listener(const std::string& address, int port, std::chrono::milliseconds timeout, bool has_listened);
// The numeric address of this machine from which `address` is reached. Throws UserError if it cannot be reached.
std::string address_toward(const std::string& address, int port);
// Whether only this machine reaches a numeric address.
bool is_loopback(const std::string& address);

}  // namespace stepc
