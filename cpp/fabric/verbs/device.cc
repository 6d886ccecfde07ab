#ifdef MXRDMA_HAVE_VERBS
#include "fabric/verbs/device.h"
#endif

#include <cerrno>
#include <memory>

#include "fabric/devices.h"
#include "fabric/verbs/sysfs.h"

namespace mxrdma::fabric {

#ifdef MXRDMA_HAVE_VERBS
namespace verbs {
namespace {

Status no_provider(const std::string& name) {
  return Status(Code::fabric, "libibverbs knows no driver for RDMA device " + name +
                                  "; install its provider: 'apt-get install ibverbs-providers' "
                                  "(Debian, Ubuntu), 'dnf install libibverbs' (RHEL, Fedora), or "
                                  "the vendor's package, and look into /etc/libibverbs.d");
}

void set_problem(DeviceInfo* device, Usability usability, std::string problem, std::string mend) {
  device->usability = usability;
  device->problem = std::move(problem);
  device->mend = std::move(mend);
}

void ask_limits(const Library& library, ibv_context* context, DeviceInfo* device) {
  ibv_device_attr limits{};
  if (const int error = library.query_device(context, &limits); error != 0)
    return set_problem(device, Usability::open_failed,
                       "its limits cannot be read: " + errno_text(error),
                       "see the kernel's log (dmesg)");
  device->max_queue_pairs = limits.max_qp;
  device->max_work_requests = limits.max_qp_wr;
  device->max_gather = limits.max_sge;
  device->max_completions = limits.max_cqe;
  device->max_shared_receives = limits.max_srq_wr;
  device->max_regions = limits.max_mr;
  device->max_region_bytes = limits.max_mr_size;
  if (limits.max_qp <= 0 || context->device->transport_type == IBV_TRANSPORT_USNIC ||
      context->device->transport_type == IBV_TRANSPORT_USNIC_UDP)
    set_problem(device, Usability::no_connections, "it has no reliable connected queue pairs",
                "use --fabric tcp");
}

}  // namespace

int mtu_bytes(ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << static_cast<int>(mtu) : 0;
}

Result<ibv_context*> open_device(const Library& library, const std::string& name) {
  int count = 0;
  errno = 0;
  std::unique_ptr<ibv_device*, decltype(library.free_device_list)> list(
      library.get_device_list(&count), library.free_device_list);
  if (!list)
    return Status(Code::fabric, "libibverbs cannot list devices: " + errno_text(errno) +
                                    "; load the module: modprobe ib_uverbs");
  for (int i = 0; i < count; ++i) {
    if (name != library.get_device_name(list.get()[i])) continue;
    errno = 0;
    ibv_context* context = library.open_device(list.get()[i]);
    if (context) return context;
    return Status(Code::fabric, "RDMA device " + name + " cannot be opened: " + errno_text(errno) +
                                    "; mxrdma-doctor says what is missing");
  }
  return no_provider(name);
}

void ask_device(const Library& library, DeviceInfo* device) {
  Result<ibv_context*> opened = open_device(library, device->name);
  if (!opened.is_ok()) {
    const std::string& message = opened.status().message();
    const bool unknown = message == no_provider(device->name).message();
    const size_t cut = message.find("; ");
    return set_problem(device, unknown ? Usability::no_provider : Usability::open_failed,
                       message.substr(0, cut), message.substr(cut + 2));
  }
  ibv_context* context = opened.value();
  ask_limits(library, context, device);
  for (PortInfo& port : device->ports) {
    ibv_port_attr attributes;
    if (library.query_port(context, port.number, &attributes) != 0)
      continue;  // sysfs has its state
    port.active_mtu = mtu_bytes(attributes.active_mtu);
    port.max_mtu = mtu_bytes(attributes.max_mtu);
  }
  if (const int error = library.close_device(context); error != 0 && device->usable())
    set_problem(device, Usability::open_failed, "it cannot be closed: " + errno_text(error),
                "see the kernel's log (dmesg)");
}

}  // namespace verbs
#endif  // MXRDMA_HAVE_VERBS

namespace {

// A library that is missing is the device's first trouble, whatever its file or port says.
void no_library(DeviceTable* table) {
  for (DeviceInfo& device : table->devices) {
    device.usability = Usability::no_library;
    device.problem = table->library_problem;
    device.mend.clear();
  }
}

}  // namespace

DeviceTable device_table(const Places& places) {
  DeviceTable table;
  table.devices = verbs::read_sysfs(places);
#ifdef MXRDMA_HAVE_VERBS
  Result<const verbs::Library*> library = verbs::library();
  if (!library.is_ok()) {
    table.library_problem = library.status().message();
    no_library(&table);
    return table;
  }
  table.cm_problem = library.value()->cm.reason;
  switch (library.value()->fork_status()) {
    case IBV_FORK_UNNEEDED:
      table.fork_support = "unneeded";
      break;
    case IBV_FORK_ENABLED:
      table.fork_support = "enabled";
      break;
    case IBV_FORK_DISABLED:
      table.fork_support = "disabled";
      break;
  }
  for (DeviceInfo& device : table.devices)
    if (device.usable() || device.usability == Usability::port_down) {
      const DeviceInfo before = device;
      verbs::ask_device(*library.value(), &device);
      // A port that is down shows only if nothing worse does.
      if (device.usable() && !before.usable()) {
        device.usability = before.usability;
        device.problem = before.problem;
        device.mend = before.mend;
      }
    }
#else
  table.library_problem =
      "this build of mxrdma has no verbs (the headers of libibverbs and librdmacm were missing); "
      "install libibverbs-dev and librdmacm-dev (RHEL: rdma-core-devel) and build again";
  no_library(&table);
#endif
  return table;
}

}  // namespace mxrdma::fabric
