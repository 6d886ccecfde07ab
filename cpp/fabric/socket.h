// Small steps with sockets: names to addresses, listeners, connects that do not wait.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/fd.h"

namespace mxrdma::fabric {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

// All addresses of the host, in the resolver's order. Blocks as long as the resolver does (its own
// limits apply). Code::config names a host that does not resolve.
Result<std::vector<SocketAddress>> resolve(const Address& address, bool passive);
Result<Fd> listen_tcp(const Address& address, Address* actual);
// A connect that is under way or done; the socket is non-blocking, without delay.
Result<Fd> begin_connect(const SocketAddress& address);
// 0, or the errno of a connect that was under way.
int connect_error(int fd);
bool is_connected_to_itself(int fd);
Status prepare_stream(int fd);
// How long the peer's host may acknowledge nothing, or the peer read nothing.
Status limit_silence(int fd, int silent_ms);
// Before the descriptor is closed: what was sent goes out, which a close with unread data would cut
// off by a reset.
void end_stream(int fd);
std::string local_and_peer(int fd);
// Our address of a connection, numeric.
std::string local_host(int fd);

Result<Fd> listen_abstract(const std::string& name);
Result<Fd> connect_abstract(const std::string& name);

}  // namespace mxrdma::fabric
