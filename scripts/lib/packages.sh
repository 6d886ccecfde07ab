# Debian/Ubuntu packages that scripts/setup asks for; the only list of them. Sourced.

# To build the core (of the RDMA libraries it takes the headers alone) and to run MXNet, whose library wants libgomp and
# libquadmath.
packages_base=(
  ca-certificates g++ cmake ninja-build ccache pkg-config libspdlog-dev libfmt-dev libssl-dev
  libibverbs-dev librdmacm-dev libgomp1 libquadmath0
)
# For scripts/test: C++ tests, style checks, and the tools with which tests look at processes and shells.
packages_test=(
  libgtest-dev libgmock-dev libbenchmark-dev clang-format clang-tidy tcsh procps iproute2
)
# For scripts/soft-roce: what the guest is made of, the libraries with their drivers for rxe and siw, and tools to look at
# devices with.
packages_guest=(busybox iproute2 procps util-linux ibverbs-providers librdmacm1 ibverbs-utils rdmacm-utils)
# Only where its kernel is built: no ready one is there.
packages_kernel=(gcc libc6-dev make flex bison bc xz-utils)
# Only where no Python from 3.8 to 3.11 with venv and headers is there.
packages_python=(python3 python3-venv python3-dev)

# missing_packages NAME...: those that are not installed, one a line.
missing_packages() {
  local name
  for name in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2> /dev/null)" = installed ] || echo "$name"
  done
}
