// Addresses of this machine: where rank 0 of a run listens, and which of them the other ranks can reach.
#pragma once

#include <chrono>
#include <set>
#include <string>

namespace stepc {

// A socket that listens at this address and port alone; whoever gets it closes it. An address that is not this
// machine's, as that of a service in front of it, is none to bind to: then to all. UserError: a name that nobody knows,
// a port that is taken.
int bind_socket(const std::string& address, int port);
// Of a socket that was bound to port 0: the one that it got.
int port_of(int socket);
// From now on a socket that listens hears nobody: who would connect gets no answer, and takes nothing here. Connections
// that are there stay. And hears again.
void hear_nobody(int socket);
void hear(int socket);
// Of this process, those that listen for connections.
std::set<int> listening_sockets();
// Returns when somebody listens there. UserError, with what the last attempt met, where nobody does within the time.
// `has_listened`: somebody did; whom the machine refuses then waits for nobody.
void wait_for_listener(const std::string& address, int port, std::chrono::milliseconds timeout, bool has_listened);
// The address of this machine from which `address` is reached, as numbers. UserError where it is not reached.
std::string address_toward(const std::string& address, int port);
// Whether an address in numbers is one that only this machine reaches.
bool is_loopback(const std::string& address);

}  // namespace stepc
