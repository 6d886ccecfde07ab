// Passing memory segments and doorbells between processes: fixed-size notes with one file
// descriptor each, over a SOCK_SEQPACKET Unix socket.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "fabric/fd.h"

namespace mxrdma::fabric::shm {

enum class NoteKind : uint32_t { direction = 1, doorbell = 2, region = 3 };

struct Note {
  NoteKind kind = NoteKind::region;
  uint32_t reserved = 0;
  uint64_t cookie[2] = {0, 0};  // of the handshake, in every note
  uint64_t key = 0;             // region
  uint64_t bytes = 0;           // of the segment
};
static_assert(sizeof(Note) == 40);

// Code::busy: the socket has no room now, or too many descriptors are under way.
Status send_note(int socket, const Note& note, int fd);

struct ReceivedNote {
  Note note;
  Fd fd;
};
// Nothing: none is there now. Code::closed: the socket ended. Code::fabric: malformed.
Result<std::optional<ReceivedNote>> receive_note(int socket);

// The process at the other end as the kernel knows it; 0 if it cannot tell.
int peer_pid(int socket);

}  // namespace mxrdma::fabric::shm
