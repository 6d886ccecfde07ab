// libibverbs and librdmacm, opened at run time: the same build runs on hosts that have neither.
// Only types and inline helpers that go through a context's own table (ibv_post_send, ibv_poll_cq,
// ibv_req_notify_cq, ibv_post_srq_recv, …) may be taken from the headers; every other function is
// called through `Library`, whose names are the functions' without `ibv_` and, in `cm`, `rdma_`
// (with the prefix, the headers' macros would catch the calls and link the library).
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <string>

#include "base/status.h"

namespace mxrdma::fabric::verbs {

// librdmacm. All pointers are set or, where `available` is false, none.
struct CmLibrary {
  bool available = false;
  std::string reason;  // why it is not, and how to mend it

  decltype(&::rdma_create_event_channel) create_event_channel = nullptr;
  decltype(&::rdma_destroy_event_channel) destroy_event_channel = nullptr;
  decltype(&::rdma_create_id) create_id = nullptr;
  decltype(&::rdma_destroy_id) destroy_id = nullptr;
  decltype(&::rdma_migrate_id) migrate_id = nullptr;
  decltype(&::rdma_set_option) set_option = nullptr;
  decltype(&::rdma_bind_addr) bind_addr = nullptr;
  decltype(&::rdma_resolve_addr) resolve_addr = nullptr;
  decltype(&::rdma_resolve_route) resolve_route = nullptr;
  decltype(&::rdma_get_src_port) get_src_port = nullptr;
  decltype(&::rdma_get_dst_port) get_dst_port = nullptr;
  decltype(&::rdma_create_qp) create_qp = nullptr;
  decltype(&::rdma_destroy_qp) destroy_qp = nullptr;
  decltype(&::rdma_init_qp_attr) init_qp_attr = nullptr;
  decltype(&::rdma_listen) listen = nullptr;
  decltype(&::rdma_accept) accept = nullptr;
  decltype(&::rdma_connect) connect = nullptr;
  decltype(&::rdma_establish) establish = nullptr;
  decltype(&::rdma_notify) notify = nullptr;
  decltype(&::rdma_reject) reject = nullptr;
  decltype(&::rdma_disconnect) disconnect = nullptr;
  decltype(&::rdma_get_cm_event) get_cm_event = nullptr;
  decltype(&::rdma_ack_cm_event) ack_cm_event = nullptr;
  decltype(&::rdma_event_str) event_str = nullptr;
};

struct Library {
  decltype(&::ibv_get_device_list) get_device_list = nullptr;
  decltype(&::ibv_free_device_list) free_device_list = nullptr;
  decltype(&::ibv_get_device_name) get_device_name = nullptr;
  decltype(&::ibv_get_device_guid) get_device_guid = nullptr;
  decltype(&::ibv_open_device) open_device = nullptr;
  decltype(&::ibv_close_device) close_device = nullptr;
  decltype(&::ibv_query_device) query_device = nullptr;
  decltype(&::ibv_query_gid) query_gid = nullptr;
  decltype(&::ibv_query_pkey) query_pkey = nullptr;

  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  // Exactly the access flags given. For IBV_ACCESS_OPTIONAL_RANGE (relaxed ordering) use
  // reg_mr_iova2.
  decltype(&::ibv_reg_mr) reg_mr = nullptr;
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;

  decltype(&::ibv_create_comp_channel) create_comp_channel = nullptr;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_resize_cq) resize_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_get_cq_event) get_cq_event = nullptr;
  decltype(&::ibv_ack_cq_events) ack_cq_events = nullptr;
  decltype(&::ibv_create_srq) create_srq = nullptr;
  decltype(&::ibv_modify_srq) modify_srq = nullptr;
  decltype(&::ibv_query_srq) query_srq = nullptr;
  decltype(&::ibv_destroy_srq) destroy_srq = nullptr;
  decltype(&::ibv_create_qp) create_qp = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
  decltype(&::ibv_query_qp) query_qp = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp = nullptr;

  decltype(&::ibv_get_async_event) get_async_event = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event = nullptr;

  decltype(&::ibv_wc_status_str) wc_status_str = nullptr;
  decltype(&::ibv_event_type_str) event_type_str = nullptr;
  decltype(&::ibv_node_type_str) node_type_str = nullptr;
  decltype(&::ibv_port_state_str) port_state_str = nullptr;
  decltype(&::ibv_rate_to_mbps) rate_to_mbps = nullptr;
  decltype(&::mbps_to_ibv_rate) mbps_to_rate = nullptr;
  decltype(&::ibv_fork_init) fork_init = nullptr;

  // Younger than the rest: null where the host's rdma-core is older.
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2 = nullptr;                       // rdma-core 26
  decltype(&::_ibv_query_gid_ex) query_gid_ex_sized = nullptr;                // rdma-core 32
  decltype(&::ibv_is_fork_initialized) is_fork_initialized_symbol = nullptr;  // rdma-core 36

  CmLibrary cm;

  // What the headers do inline, without their fallback that would link the library. 0 or an errno.
  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) const;
  // GID, index, port, type (IB, RoCE v1, RoCE v2) and network interface (0: none). 0 or an errno;
  // ENODATA: the entry is empty, ENOTSUP: the library is too old (sysfs has the same).
  int query_gid_ex(ibv_context* context, uint8_t port, uint32_t index, ibv_gid_entry* entry) const;
  // IBV_FORK_UNNEEDED: the kernel copies pinned pages at fork. DISABLED where it cannot be asked.
  ibv_fork_status fork_status() const;
  // Where the kernel does not copy pinned pages, a fork could move the queues of the library away
  // from under the device: has the library keep them out of children. Once, before any memory is
  // registered; an error forbids the use of verbs.
  Status prepare_for_forks() const;

  // The plain function behind the compatible layout of port attributes; use query_port().
  decltype(&::ibv_query_port) query_port_symbol = nullptr;
};

// Loads both libraries at the first call, from any thread; they stay for the life of the process.
// The error says which file or function is missing and which package brings it.
Result<const Library*> library();

}  // namespace mxrdma::fabric::verbs
