#include "fabric/verbs/library.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>

namespace mxrdma::fabric::verbs {
namespace {

constexpr char kVerbsFile[] = "libibverbs.so.1";
constexpr char kCmFile[] = "librdmacm.so.1";
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
  constexpr char kOld[] = "IBVERBS_1.0", kNew[] = "IBVERBS_1.1";
  from->required(&into->get_device_list, "ibv_get_device_list", kNew);
  from->required(&into->free_device_list, "ibv_free_device_list", kNew);
  from->required(&into->get_device_name, "ibv_get_device_name", kNew);
  from->required(&into->get_device_guid, "ibv_get_device_guid", kNew);
  from->required(&into->open_device, "ibv_open_device", kNew);
  from->required(&into->close_device, "ibv_close_device", kNew);
  from->required(&into->query_device, "ibv_query_device", kNew);
  from->required(&into->query_port_symbol, "ibv_query_port", kNew);
  from->required(&into->query_gid, "ibv_query_gid", kNew);
  from->required(&into->query_pkey, "ibv_query_pkey", kNew);
  from->required(&into->get_async_event, "ibv_get_async_event", kNew);
  from->required(&into->ack_async_event, "ibv_ack_async_event", kNew);
  from->required(&into->wc_status_str, "ibv_wc_status_str", kNew);
  from->required(&into->event_type_str, "ibv_event_type_str", kNew);
  from->required(&into->node_type_str, "ibv_node_type_str", kNew);
  from->required(&into->port_state_str, "ibv_port_state_str", kNew);
  from->required(&into->rate_to_mbps, "ibv_rate_to_mbps", kNew);
  from->required(&into->mbps_to_rate, "mbps_to_ibv_rate", kNew);
  from->required(&into->fork_init, "ibv_fork_init", kNew);
  from->required(&into->create_comp_channel, "ibv_create_comp_channel", kOld);
  from->required(&into->destroy_comp_channel, "ibv_destroy_comp_channel", kOld);
}

void load_queues(Loader* from, Library* into) {
  constexpr char kNew[] = "IBVERBS_1.1";
  from->required(&into->alloc_pd, "ibv_alloc_pd", kNew);
  from->required(&into->dealloc_pd, "ibv_dealloc_pd", kNew);
  from->required(&into->reg_mr, "ibv_reg_mr", kNew);
  from->required(&into->dereg_mr, "ibv_dereg_mr", kNew);
  from->required(&into->create_cq, "ibv_create_cq", kNew);
  from->required(&into->resize_cq, "ibv_resize_cq", kNew);
  from->required(&into->destroy_cq, "ibv_destroy_cq", kNew);
  from->required(&into->get_cq_event, "ibv_get_cq_event", kNew);
  from->required(&into->ack_cq_events, "ibv_ack_cq_events", kNew);
  from->required(&into->create_srq, "ibv_create_srq", kNew);
  from->required(&into->modify_srq, "ibv_modify_srq", kNew);
  from->required(&into->query_srq, "ibv_query_srq", kNew);
  from->required(&into->destroy_srq, "ibv_destroy_srq", kNew);
  from->required(&into->create_qp, "ibv_create_qp", kNew);
  from->required(&into->modify_qp, "ibv_modify_qp", kNew);
  from->required(&into->query_qp, "ibv_query_qp", kNew);
  from->required(&into->destroy_qp, "ibv_destroy_qp", kNew);
}

void load_younger(Loader* from, Library* into) {
  from->optional(&into->reg_mr_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8");
  from->optional(&into->query_gid_ex_sized, "_ibv_query_gid_ex", "IBVERBS_1.11");
  from->optional(&into->is_fork_initialized_symbol, "ibv_is_fork_initialized", "IBVERBS_1.13");
}

void load_cm(Loader* from, CmLibrary* into) {
  constexpr char kOld[] = "RDMACM_1.0", kNew[] = "RDMACM_1.2";
  from->required(&into->create_event_channel, "rdma_create_event_channel", kOld);
  from->required(&into->destroy_event_channel, "rdma_destroy_event_channel", kOld);
  from->required(&into->create_id, "rdma_create_id", kOld);
  from->required(&into->destroy_id, "rdma_destroy_id", kOld);
  from->required(&into->migrate_id, "rdma_migrate_id", kOld);
  from->required(&into->set_option, "rdma_set_option", kOld);
  from->required(&into->bind_addr, "rdma_bind_addr", kOld);
  from->required(&into->resolve_addr, "rdma_resolve_addr", kOld);
  from->required(&into->resolve_route, "rdma_resolve_route", kOld);
  from->required(&into->get_src_port, "rdma_get_src_port", kOld);
  from->required(&into->get_dst_port, "rdma_get_dst_port", kOld);
  from->required(&into->create_qp, "rdma_create_qp", kOld);
  from->required(&into->destroy_qp, "rdma_destroy_qp", kOld);
  from->required(&into->init_qp_attr, "rdma_init_qp_attr", kNew);
  from->required(&into->listen, "rdma_listen", kOld);
  from->required(&into->accept, "rdma_accept", kOld);
  from->required(&into->connect, "rdma_connect", kOld);
  from->required(&into->establish, "rdma_establish", kNew);
  from->required(&into->notify, "rdma_notify", kOld);
  from->required(&into->reject, "rdma_reject", kOld);
  from->required(&into->disconnect, "rdma_disconnect", kOld);
  from->required(&into->get_cm_event, "rdma_get_cm_event", kOld);
  from->required(&into->ack_cm_event, "rdma_ack_cm_event", kOld);
  from->required(&into->event_str, "rdma_event_str", kOld);
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

ibv_fork_status Library::fork_status() const {
  return is_fork_initialized_symbol ? is_fork_initialized_symbol() : IBV_FORK_DISABLED;
}

}  // namespace mxrdma::fabric::verbs
