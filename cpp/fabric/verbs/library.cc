#include "fabric/verbs/library.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>

namespace mxrdma::fabric::verbs {
namespace {

constexpr char kVerbsFile[] = "libibverbs.so.1";
constexpr char kCmFile[] = "librdmacm.so.1";
// Versions of symbols: of the first ABI that still stands, and of what came or changed later.
constexpr char kVerbsFirst[] = "IBVERBS_1.0";
constexpr char kVerbsSecond[] = "IBVERBS_1.1";
constexpr char kCmFirst[] = "RDMACM_1.0";
constexpr char kCmThird[] = "RDMACM_1.2";
constexpr char kVerbsMend[] =
    "install it: 'apt-get install libibverbs1 ibverbs-providers' (Debian, Ubuntu) or 'dnf install "
    "libibverbs' (RHEL, Fedora)";
constexpr char kCmMend[] =
    "install it: 'apt-get install librdmacm1' (Debian, Ubuntu) or 'dnf install librdmacm' (RHEL, "
    "Fedora)";

// One opened file. Symbols are asked for with their version: libibverbs still carries functions of
// its first ABI under the same names.
class Loader {
 public:
  Loader(const char* file, const char* mend) : file_(file), mend_(mend) {
    handle_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle_) return;
    const char* text = dlerror();
    status_ = Status(Code::fabric, std::string(file) + " cannot be opened (" +
                                       (text ? text : "no reason") + "); " + mend_);
  }

  template <typename Function>
  void optional(Function* function, const char* name, const char* version) {
    if (handle_) *function = reinterpret_cast<Function>(dlvsym(handle_, name, version));
  }

  template <typename Function>
  void required(Function* function, const char* name, const char* version) {
    optional(function, name, version);
    if (*function || !status_.is_ok()) return;
    status_ = Status(Code::fabric, std::string(file_) + " is too old: it has no " + name + " (" +
                                       version + "); " + mend_);
  }

  const Status& status() const { return status_; }

 private:
  const char* file_;
  const char* mend_;
  void* handle_ = nullptr;
  Status status_;
};

void load_devices(Loader* from, Library* into) {
  from->required(&into->get_device_list, "ibv_get_device_list", kVerbsSecond);
  from->required(&into->free_device_list, "ibv_free_device_list", kVerbsSecond);
  from->required(&into->get_device_name, "ibv_get_device_name", kVerbsSecond);
  from->required(&into->get_device_guid, "ibv_get_device_guid", kVerbsSecond);
  from->required(&into->open_device, "ibv_open_device", kVerbsSecond);
  from->required(&into->close_device, "ibv_close_device", kVerbsSecond);
  from->required(&into->query_device, "ibv_query_device", kVerbsSecond);
  from->required(&into->query_port_symbol, "ibv_query_port", kVerbsSecond);
  from->required(&into->query_gid, "ibv_query_gid", kVerbsSecond);
  from->required(&into->query_pkey, "ibv_query_pkey", kVerbsSecond);
  from->required(&into->get_async_event, "ibv_get_async_event", kVerbsSecond);
  from->required(&into->ack_async_event, "ibv_ack_async_event", kVerbsSecond);
  from->required(&into->wc_status_str, "ibv_wc_status_str", kVerbsSecond);
  from->required(&into->event_type_str, "ibv_event_type_str", kVerbsSecond);
  from->required(&into->node_type_str, "ibv_node_type_str", kVerbsSecond);
  from->required(&into->port_state_str, "ibv_port_state_str", kVerbsSecond);
  from->required(&into->rate_to_mbps, "ibv_rate_to_mbps", kVerbsSecond);
  from->required(&into->mbps_to_rate, "mbps_to_ibv_rate", kVerbsSecond);
  from->required(&into->fork_init, "ibv_fork_init", kVerbsSecond);
  from->required(&into->create_comp_channel, "ibv_create_comp_channel", kVerbsFirst);
  from->required(&into->destroy_comp_channel, "ibv_destroy_comp_channel", kVerbsFirst);
}

void load_queues(Loader* from, Library* into) {
  from->required(&into->alloc_pd, "ibv_alloc_pd", kVerbsSecond);
  from->required(&into->dealloc_pd, "ibv_dealloc_pd", kVerbsSecond);
  from->required(&into->reg_mr, "ibv_reg_mr", kVerbsSecond);
  from->required(&into->dereg_mr, "ibv_dereg_mr", kVerbsSecond);
  from->required(&into->create_cq, "ibv_create_cq", kVerbsSecond);
  from->required(&into->resize_cq, "ibv_resize_cq", kVerbsSecond);
  from->required(&into->destroy_cq, "ibv_destroy_cq", kVerbsSecond);
  from->required(&into->get_cq_event, "ibv_get_cq_event", kVerbsSecond);
  from->required(&into->ack_cq_events, "ibv_ack_cq_events", kVerbsSecond);
  from->required(&into->create_srq, "ibv_create_srq", kVerbsSecond);
  from->required(&into->modify_srq, "ibv_modify_srq", kVerbsSecond);
  from->required(&into->query_srq, "ibv_query_srq", kVerbsSecond);
  from->required(&into->destroy_srq, "ibv_destroy_srq", kVerbsSecond);
  from->required(&into->create_qp, "ibv_create_qp", kVerbsSecond);
  from->required(&into->modify_qp, "ibv_modify_qp", kVerbsSecond);
  from->required(&into->query_qp, "ibv_query_qp", kVerbsSecond);
  from->required(&into->destroy_qp, "ibv_destroy_qp", kVerbsSecond);
}

void load_younger(Loader* from, Library* into) {
  from->optional(&into->reg_mr_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8");
  from->optional(&into->query_gid_ex_sized, "_ibv_query_gid_ex", "IBVERBS_1.11");
  from->optional(&into->is_fork_initialized_symbol, "ibv_is_fork_initialized", "IBVERBS_1.13");
}

void load_cm(Loader* from, CmLibrary* into) {
  from->required(&into->create_event_channel, "rdma_create_event_channel", kCmFirst);
  from->required(&into->destroy_event_channel, "rdma_destroy_event_channel", kCmFirst);
  from->required(&into->create_id, "rdma_create_id", kCmFirst);
  from->required(&into->destroy_id, "rdma_destroy_id", kCmFirst);
  from->required(&into->migrate_id, "rdma_migrate_id", kCmFirst);
  from->required(&into->set_option, "rdma_set_option", kCmFirst);
  from->required(&into->bind_addr, "rdma_bind_addr", kCmFirst);
  from->required(&into->resolve_addr, "rdma_resolve_addr", kCmFirst);
  from->required(&into->resolve_route, "rdma_resolve_route", kCmFirst);
  from->required(&into->get_src_port, "rdma_get_src_port", kCmFirst);
  from->required(&into->get_dst_port, "rdma_get_dst_port", kCmFirst);
  from->required(&into->create_qp, "rdma_create_qp", kCmFirst);
  from->required(&into->destroy_qp, "rdma_destroy_qp", kCmFirst);
  from->required(&into->init_qp_attr, "rdma_init_qp_attr", kCmThird);
  from->required(&into->listen, "rdma_listen", kCmFirst);
  from->required(&into->accept, "rdma_accept", kCmFirst);
  from->required(&into->connect, "rdma_connect", kCmFirst);
  from->required(&into->establish, "rdma_establish", kCmThird);
  from->required(&into->notify, "rdma_notify", kCmFirst);
  from->required(&into->reject, "rdma_reject", kCmFirst);
  from->required(&into->disconnect, "rdma_disconnect", kCmFirst);
  from->required(&into->get_cm_event, "rdma_get_cm_event", kCmFirst);
  from->required(&into->ack_cm_event, "rdma_ack_cm_event", kCmFirst);
  from->required(&into->event_str, "rdma_event_str", kCmFirst);
}

Result<const Library*> load() {
  Loader verbs(kVerbsFile, kVerbsMend);
  auto* library = new Library;  // for the life of the process, as the libraries themselves
  load_devices(&verbs, library);
  load_queues(&verbs, library);
  load_younger(&verbs, library);
  if (!verbs.status().is_ok()) {
    delete library;
    return verbs.status();
  }
  // Without librdmacm the exchange over the control connection is left, which all but iWARP can.
  Loader cm(kCmFile, kCmMend);
  load_cm(&cm, &library->cm);
  if (cm.status().is_ok()) {
    library->cm.available = true;
  } else {
    library->cm = CmLibrary();
    library->cm.reason = cm.status().message();
  }
  return static_cast<const Library*>(library);
}

}  // namespace

Result<const Library*> library() {
  static const Result<const Library*> loaded = load();
  return loaded;
}

int Library::query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) const {
  // Providers leave fields that they do not know untouched.
  std::memset(attributes, 0, sizeof(*attributes));
  verbs_context* extended = verbs_get_ctx_op(context, query_port);
  if (extended) return extended->query_port(context, port, attributes, sizeof(*attributes));
  return query_port_symbol(context, port,
                           reinterpret_cast<struct _compat_ibv_port_attr*>(attributes));
}

int Library::query_gid_ex(ibv_context* context, uint8_t port, uint32_t index,
                          ibv_gid_entry* entry) const {
  std::memset(entry, 0, sizeof(*entry));
  if (!query_gid_ex_sized) return ENOTSUP;
  return query_gid_ex_sized(context, port, index, entry, 0, sizeof(*entry));
}

Status Library::prepare_for_forks() const {
  if (fork_status() != IBV_FORK_DISABLED) return Status::ok();
  const int error = fork_init();
  if (error == 0) return Status::ok();
  return Status(Code::unsupported,
                "ibv_fork_init: " + errno_text(error) +
                    ": a fork would corrupt memory that the device uses, as this kernel does not "
                    "copy pinned pages; use Linux 5.12 or newer with rdma-core 36 or newer, or set "
                    "RDMAV_FORK_SAFE=1 before the process starts");
}

ibv_fork_status Library::fork_status() const {
  return is_fork_initialized_symbol ? is_fork_initialized_symbol() : IBV_FORK_DISABLED;
}

}  // namespace mxrdma::fabric::verbs
