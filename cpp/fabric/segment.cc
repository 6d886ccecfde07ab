#include "fabric/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

namespace mxrdma::fabric {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t whole_pages(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

Result<std::shared_ptr<Segment>> Segment::adopt(Fd fd, size_t bytes, size_t mapped, bool ours) {
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED)
    return Status(Code::fabric, "mapping " + std::to_string(mapped) +
                                    " bytes of shared memory: " + errno_text(errno));
  // A forked data loader must not keep rings and weights alive or count them as its own.
  if (madvise(base, mapped, MADV_DONTFORK) != 0) {
    const int error = errno;
    munmap(base, mapped);
    return Status(Code::fabric, "madvise(MADV_DONTFORK): " + errno_text(error));
  }
  // A peer's is passed on to nobody: the mapping is enough, and descriptors are few.
  if (!ours) fd.reset();
  return std::shared_ptr<Segment>(
      new Segment(std::move(fd), static_cast<std::byte*>(base), bytes, mapped));
}

Result<std::shared_ptr<Segment>> Segment::create(size_t bytes) {
  const size_t mapped = whole_pages(bytes);
  Fd fd(memfd_create("mxrdma", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Status(Code::fabric, "memfd_create: " + errno_text(errno));
  if (ftruncate(fd.get(), static_cast<off_t>(mapped)) != 0)
    return Status(Code::fabric,
                  std::to_string(mapped) + " bytes of shared memory: " + errno_text(errno));
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return Status(Code::fabric, "sealing a memfd: " + errno_text(errno));
  return adopt(std::move(fd), bytes, mapped, true);
}

Result<std::shared_ptr<Segment>> Segment::map(Fd fd, size_t bytes) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  struct stat facts {};
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd.get(), &facts) != 0)
    return Status(Code::fabric, "a peer's shared memory is not sealed");
  const size_t mapped = whole_pages(bytes);
  if (bytes == 0 || static_cast<size_t>(facts.st_size) < mapped)
    return Status(Code::fabric, "a peer's shared memory has " + std::to_string(facts.st_size) +
                                    " bytes, not " + std::to_string(bytes));
  return adopt(std::move(fd), bytes, mapped, false);
}

Segment::~Segment() { munmap(base_, mapped_); }

}  // namespace mxrdma::fabric
