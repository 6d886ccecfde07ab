#include "fabric/verbs/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace mxrdma::fabric {

const char* gid_type_name(GidType type) {
  switch (type) {
    case GidType::ib:
      return "InfiniBand";
    case GidType::roce_v1:
      return "RoCE v1";
    case GidType::roce_v2:
      return "RoCE v2";
    case GidType::iwarp:
      return "iWARP";
  }
  return "?";
}

std::string GidEntry::text() const { return verbs::gid_text(raw); }

namespace verbs {
namespace {

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr size_t kMaxListed = 8;  // of a table in one message; devices have up to 256

std::string entry_text(const GidEntry& entry) {
  return std::to_string(entry.index) + " (" + gid_type_name(entry.type) + ", " + entry.text() +
         (entry.interface.empty() ? "" : ", " + entry.interface) + ")";
}

}  // namespace

bool is_ipv4_mapped(const GidBytes& gid) {
  return std::memcmp(gid.data(), kMappedPrefix, sizeof(kMappedPrefix)) == 0;
}

bool is_link_local(const GidBytes& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

bool is_empty(const GidBytes& gid) {
  return std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; });
}

bool IpAddress::ipv4() const { return is_ipv4_mapped(raw); }

bool IpAddress::loopback() const {
  if (ipv4()) return raw[12] == 127;
  return std::all_of(raw.begin(), raw.end() - 1, [](uint8_t byte) { return byte == 0; }) &&
         raw[15] == 1;
}

bool IpAddress::unspecified() const {
  if (ipv4()) return (raw[12] | raw[13] | raw[14] | raw[15]) == 0;
  return is_empty(raw);
}

std::optional<IpAddress> parse_address(const std::string& text) {
  std::string host = text;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  IpAddress address;
  if (const size_t percent = host.find('%'); percent != std::string::npos) {
    address.scope = host.substr(percent + 1);
    host.resize(percent);
  }
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    std::copy(std::begin(kMappedPrefix), std::end(kMappedPrefix), address.raw.begin());
    std::memcpy(&address.raw[12], &v4, sizeof(v4));
    return address;
  }
  if (inet_pton(AF_INET6, host.c_str(), address.raw.data()) == 1) return address;
  return std::nullopt;
}

std::string gid_text(const GidBytes& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool mapped = is_ipv4_mapped(gid);
  if (!inet_ntop(mapped ? AF_INET : AF_INET6, gid.data() + (mapped ? 12 : 0), text, sizeof(text)))
    return "?";
  return text;
}

std::string list_gids(const PortInfo& port) {
  std::string text;
  for (size_t i = 0; i < std::min(port.gids.size(), kMaxListed); ++i)
    text += (i ? ", " : "") + entry_text(port.gids[i]);
  if (port.gids.size() > kMaxListed)
    text += " and " + std::to_string(port.gids.size() - kMaxListed) + " more";
  return text.empty() ? "no entry" : text;
}

Status gids_match(const GidEntry& our_gid, const GidEntry& their_gid, const std::string& ours,
                  const std::string& theirs) {
  std::string reason;
  if (our_gid.type != their_gid.type) {
    reason = "their protocols differ";
  } else if (our_gid.type == GidType::roce_v1 || our_gid.type == GidType::roce_v2) {
    if (is_ipv4_mapped(our_gid.raw) != is_ipv4_mapped(their_gid.raw)) {
      reason = "one is an IPv4 and the other an IPv6 address";
    } else if (is_link_local(our_gid.raw) != is_link_local(their_gid.raw)) {
      reason = "one is link-local and the other is not";
    }
  }
  if (reason.empty()) return Status::ok();
  return Status(Code::fabric, ours + " uses GID index " + entry_text(our_gid) + " and " + theirs +
                                  " GID index " + entry_text(their_gid) + ": " + reason +
                                  "; leave MXRDMA_GID_INDEX at auto, or choose entries of the same "
                                  "kind at both ends (mxrdma-doctor lists them)");
}

}  // namespace verbs
}  // namespace mxrdma::fabric
