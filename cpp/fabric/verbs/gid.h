// GIDs are IPv6 addresses on RoCE (IPv4 ones mapped into ::ffff:0:0/96) and names of ports on
// InfiniBand and iWARP. Pure.
#pragma once

#include <optional>
#include <string>

#include "fabric/devices.h"

namespace mxrdma::fabric::verbs {

struct IpAddress {
  GidBytes raw{};     // IPv4 mapped into IPv6, as GIDs have it
  std::string scope;  // behind '%'

  bool ipv4() const;
  bool loopback() const;
  bool unspecified() const;
};

// Numeric addresses only; brackets are allowed.
std::optional<IpAddress> parse_address(const std::string& text);

bool is_ipv4_mapped(const GidBytes& gid);
bool is_link_local(const GidBytes& gid);
bool is_empty(const GidBytes& gid);
std::string gid_text(const GidBytes& gid);

// Whether a connection between the two entries can work at all: same protocol, same family, a
// link-local address only with another. The message has both; `ours` and `theirs` say whose.
Status gids_match(const GidEntry& our_gid, const GidEntry& their_gid, const std::string& ours,
                  const std::string& theirs);

// "0 (RoCE v2, fe80::1, eth0), 1 (RoCE v2, 10.0.0.1, eth0)" for messages.
std::string list_gids(const PortInfo& port);

}  // namespace mxrdma::fabric::verbs
