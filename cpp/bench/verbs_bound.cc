// The verbs path, bare: each slice is written with immediate into a slot, and written back as soon
// as its completion is seen, by one loop for both ends over the device's loopback. Nothing is
// summed. What remains is what the device and its driver need for the same bytes in the same
// pieces.
#include "bound.h"

#ifdef MXRDMA_HAVE_VERBS

#include <arpa/inet.h>
#include <poll.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "fabric/verbs/library.h"
#include "fabric/verbs/pick.h"

namespace mxrdma::bench {
namespace {

using fabric::VerbsRail;
using fabric::verbs::Library;
using fabric::verbs::Picked;

void ensure(bool good, const char* what) {
  if (!good) die_of_errno(what);
}
void ensure_zero(int error, const char* what) {
  if (error != 0) die(std::string(what) + ": " + std::strerror(error > 0 ? error : errno));
}

// Two connected queue pairs: a worker's and the server's for it.
struct Pair {
  ibv_qp* worker = nullptr;
  ibv_qp* server = nullptr;
  char* gradients = nullptr;
  char* ring = nullptr;
  char* weights = nullptr;  // the worker's
  size_t sent = 0, received = 0;
  double begin_s = 0;
};

class Loop {
 public:
  explicit Loop(const Options& options) : options_(options) {
    Result<const Library*> library = fabric::verbs::library();
    if (!library.is_ok()) die(library.status().message());
    library_ = library.value();
    const char* devices = std::getenv("MXRDMA_DEVICE");
    const char* index = std::getenv("MXRDMA_GID_INDEX");
    Result<Picked> picked = fabric::verbs::pick(*library_, devices != nullptr ? devices : "",
                                                index != nullptr ? index : "auto", "0.0.0.0");
    if (!picked.is_ok()) die(picked.status().message());
    picked_ = std::move(picked.value());
    if (picked_.rail.iwarp) die("an iWARP device has no write with immediate");
    prepare();
  }

  std::vector<double> run() {
    std::vector<double> step_ms;
    for (int step = 0; step < options_.steps; ++step) {
      const double begin_s = now_s();
      for (Pair& pair : pairs_) {
        pair.sent = pair.received = 0;
        send_more(&pair);
      }
      while (!step_done()) wait_and_handle();
      step_ms.push_back((now_s() - begin_s) * 1e3);
    }
    for (const Pair& pair : pairs_)
      if (std::memcmp(pair.weights, server_weights_, options_.bytes) != 0) die("wrong bytes came");
    if (step_ms.size() > 1) step_ms.erase(step_ms.begin());
    return step_ms;
  }

 private:
  size_t bytes_of(size_t slice) const { return options_.elements_of(slice) * sizeof(float); }
  size_t offset_of(size_t slice) const { return slice * options_.slot_bytes; }

  void prepare() {
    ibv_context* device = picked_.context.get();
    ensure((domain_ = library_->alloc_pd(device)) != nullptr, "ibv_alloc_pd");
    ensure((channel_ = library_->create_comp_channel(device)) != nullptr,
           "ibv_create_comp_channel");
    const int depth = static_cast<int>(8 * options_.slots) * options_.workers + 16;
    ensure((completions_ = library_->create_cq(device, depth, nullptr, channel_, 0)) != nullptr,
           "ibv_create_cq");
    const size_t ring = options_.slots * options_.slot_bytes;
    const size_t each = 2 * options_.bytes + ring;
    const size_t total = options_.bytes + static_cast<size_t>(options_.workers) * each;
    auto* memory = static_cast<char*>(shared_memory(total));
    region_ =
        library_->reg_mr(domain_, memory, total, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    ensure(region_ != nullptr, "ibv_reg_mr");
    server_weights_ = memory;
    for (size_t i = 0; i < options_.bytes; ++i) memory[i] = static_cast<char>(i * 7 + i / 4096);
    for (int w = 0; w < options_.workers; ++w) {
      Pair pair;
      pair.gradients = memory + options_.bytes + static_cast<size_t>(w) * each;
      pair.weights = pair.gradients + options_.bytes;
      pair.ring = pair.weights + options_.bytes;
      std::memset(pair.gradients, w + 1, options_.bytes);
      pair.worker = make_queue_pair();
      pair.server = make_queue_pair();
      connect(pair.worker, pair.server);
      connect(pair.server, pair.worker);
      for (size_t i = 0; i < 2 * options_.slots; ++i) {
        receive(pair.worker);
        receive(pair.server);
      }
      pairs_.push_back(pair);
    }
    for (Pair& pair : pairs_) {
      owners_[pair.worker->qp_num] = &pair;
      owners_[pair.server->qp_num] = &pair;
    }
    ensure_zero(ibv_req_notify_cq(completions_, 0), "ibv_req_notify_cq");
  }

  ibv_qp* make_queue_pair() {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = completions_;
    wanted.cap.max_send_wr = wanted.cap.max_recv_wr = static_cast<uint32_t>(2 * options_.slots + 1);
    wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    wanted.qp_type = IBV_QPT_RC;
    wanted.sq_sig_all = 1;
    ibv_qp* made = library_->create_qp(domain_, &wanted);
    ensure(made != nullptr, "ibv_create_qp");
    return made;
  }

  void connect(ibv_qp* one, const ibv_qp* other) {
    const VerbsRail& rail = picked_.rail;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = rail.port;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    ensure_zero(
        library_->modify_qp(one, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        "to INIT");
    attributes = ibv_qp_attr{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_256;
    while (attributes.path_mtu < IBV_MTU_4096 &&
           (256u << (attributes.path_mtu - IBV_MTU_256)) < rail.mtu)
      attributes.path_mtu = static_cast<ibv_mtu>(attributes.path_mtu + 1);
    attributes.dest_qp_num = other->qp_num;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.port_num = rail.port;
    attributes.ah_attr.dlid = static_cast<uint16_t>(rail.lid);
    if (rail.ethernet) {
      attributes.ah_attr.is_global = 1;
      std::memcpy(&attributes.ah_attr.grh.dgid, rail.gid, sizeof rail.gid);
      attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(rail.gid_index);
      attributes.ah_attr.grh.hop_limit = 64;
    }
    ensure_zero(
        library_->modify_qp(one, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
        "to RTR");
    attributes = ibv_qp_attr{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 19;
    attributes.retry_cnt = attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 1;
    ensure_zero(library_->modify_qp(one, &attributes,
                                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
                "to RTS");
  }

  void receive(ibv_qp* queue_pair) {
    ibv_recv_wr request{}, *refused = nullptr;
    ensure_zero(ibv_post_recv(queue_pair, &request, &refused), "ibv_post_recv");
  }

  void write(ibv_qp* queue_pair, const char* from, char* to, size_t slice) {
    ibv_sge piece{reinterpret_cast<uintptr_t>(from), static_cast<uint32_t>(bytes_of(slice)),
                  region_->lkey};
    ibv_send_wr request{}, *refused = nullptr;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htonl(static_cast<uint32_t>(slice));
    request.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(to);
    request.wr.rdma.rkey = region_->rkey;
    ensure_zero(ibv_post_send(queue_pair, &request, &refused), "ibv_post_send");
  }

  void send_more(Pair* pair) {
    for (; pair->sent < options_.slices() && pair->sent - pair->received < options_.slots;
         ++pair->sent)
      write(pair->worker, pair->gradients + offset_of(pair->sent),
            pair->ring + pair->sent % options_.slots * options_.slot_bytes, pair->sent);
  }

  bool step_done() const {
    for (const Pair& pair : pairs_)
      if (pair.received < options_.slices()) return false;
    return true;
  }

  void wait_and_handle() {
    if (handle() > 0) return;
    pollfd waiting{channel_->fd, POLLIN, 0};
    if (poll(&waiting, 1, kWaitLimitMs) != 1) die("no completion came");
    ibv_cq* queue = nullptr;
    void* unused = nullptr;
    ensure_zero(library_->get_cq_event(channel_, &queue, &unused), "ibv_get_cq_event");
    library_->ack_cq_events(queue, 1);
    ensure_zero(ibv_req_notify_cq(completions_, 0), "ibv_req_notify_cq");
  }

  int handle() {
    ibv_wc done[32];
    const int count = ibv_poll_cq(completions_, 32, done);
    if (count < 0) die("ibv_poll_cq");
    for (int i = 0; i < count; ++i) {
      if (done[i].status != IBV_WC_SUCCESS) die(library_->wc_status_str(done[i].status));
      if (done[i].opcode != IBV_WC_RECV_RDMA_WITH_IMM) continue;
      Pair* pair = owners_.at(done[i].qp_num);
      const size_t slice = ntohl(done[i].imm_data);
      if (done[i].qp_num == pair->server->qp_num) {
        receive(pair->server);
        write(pair->server, server_weights_ + offset_of(slice), pair->weights + offset_of(slice),
              slice);
      } else {
        receive(pair->worker);
        ++pair->received;
        send_more(pair);
      }
    }
    return count;
  }

  const Options options_;
  const Library* library_ = nullptr;
  Picked picked_;
  // Of the process: it ends with them.
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_mr* region_ = nullptr;
  char* server_weights_ = nullptr;
  std::vector<Pair> pairs_;
  std::map<uint32_t, Pair*> owners_;  // by queue pair number
};

}  // namespace

void run_verbs(const Options& options) {
  Loop loop(options);
  const double before_s = cpu_s();
  const std::vector<double> step_ms = loop.run();
  print_result(options, step_ms, cpu_s() - before_s);
}

}  // namespace mxrdma::bench

#else

namespace mxrdma::bench {
void run_verbs(const Options&) { die("this build of mxrdma has no verbs"); }
}  // namespace mxrdma::bench

#endif
