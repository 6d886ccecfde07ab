// A forked child (a data loader, say) inherits the parent's sockets. If it kept them open, peers
// would not see the parent die, and epoll would go on reporting sockets that the parent has closed.
// So a child lets go of every guarded descriptor; its number then stands for /dev/null, so that a
// later close() of the child hits nothing else.
#pragma once

namespace mxrdma::fabric {

void guard_from_fork(int fd);
void unguard_from_fork(int fd);

}  // namespace mxrdma::fabric
