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

// Waits for room up to a second: the other end reads whenever it looks for a region.
Status send_note(int socket, const Note& note, int fd);

struct ReceivedNote {
  Note note;
  Fd fd;
};
// Nothing: none is there now. Error: malformed, or the socket ended.
Result<std::optional<ReceivedNote>> receive_note(int socket);

}  // namespace mxrdma::fabric::shm
