// write_with_imm DEVICE GID-INDEX DEVICE GID-INDEX BYTES ROUNDS: one reliable connection between two devices, by plain
// verbs; each round writes with an immediate, and everything that the receiver can see of it is compared. Waits on
// completion events: the guest has one CPU.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kWaitMs = 60000, kPort = 1 };

static void check(int ok, const char* what) {
  if (ok) return;
  perror(what);
  exit(1);
}

struct end {
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  struct ibv_mr* mr;
  unsigned char* memory;
  int gid_index;
  union ibv_gid gid;
  enum ibv_mtu mtu;
};

static struct end open_end(const char* name, int gid_index, size_t bytes) {
  struct end end = {0};
  struct ibv_device** list = ibv_get_device_list(NULL);
  check(list != NULL, "ibv_get_device_list");
  for (struct ibv_device** device = list; *device; ++device)
    if (strcmp(ibv_get_device_name(*device), name) == 0) end.context = ibv_open_device(*device);
  ibv_free_device_list(list);
  check(end.context != NULL, name);
  struct ibv_port_attr port;
  check(ibv_query_port(end.context, kPort, &port) == 0, "ibv_query_port");
  check(port.state == IBV_PORT_ACTIVE, "the port is not active");
  end.mtu = port.active_mtu;
  end.gid_index = gid_index;
  check(ibv_query_gid(end.context, kPort, gid_index, &end.gid) == 0, "ibv_query_gid");
  check((end.pd = ibv_alloc_pd(end.context)) != NULL, "ibv_alloc_pd");
  check((end.channel = ibv_create_comp_channel(end.context)) != NULL, "ibv_create_comp_channel");
  check((end.cq = ibv_create_cq(end.context, 16, NULL, end.channel, 0)) != NULL, "ibv_create_cq");
  check((end.memory = calloc(1, bytes)) != NULL, "calloc");
  end.mr = ibv_reg_mr(end.pd, end.memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  check(end.mr != NULL, "ibv_reg_mr");
  struct ibv_qp_init_attr init = {
      .send_cq = end.cq, .recv_cq = end.cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
  check((end.qp = ibv_create_qp(end.pd, &init)) != NULL, "ibv_create_qp");
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT, .port_num = kPort, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  check(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
        "to INIT");
  return end;
}

static void connect_end(struct end* end, const struct end* peer) {
  struct ibv_qp_attr receive = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = end->mtu,
      .dest_qp_num = peer->qp->qp_num,
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = 12,
      .ah_attr = {.is_global = 1,
                  .port_num = kPort,
                  .grh = {.dgid = peer->gid, .sgid_index = end->gid_index, .hop_limit = 64}}};
  check(ibv_modify_qp(end->qp, &receive,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
        "to RTR");
  // A loaded machine delays acknowledgements by more than the shorter timeouts that are customary.
  struct ibv_qp_attr send = {
      .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  check(ibv_modify_qp(end->qp, &send,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC) == 0,
        "to RTS");
}

static struct ibv_wc next_completion(struct end* end) {
  struct ibv_wc wc;
  for (;;) {
    check(ibv_req_notify_cq(end->cq, 0) == 0, "ibv_req_notify_cq");
    int count = ibv_poll_cq(end->cq, 1, &wc);  // after the request: nothing is missed
    check(count >= 0, "ibv_poll_cq");
    if (count == 1) break;
    struct pollfd waiting = {.fd = end->channel->fd, .events = POLLIN};
    check(poll(&waiting, 1, kWaitMs) == 1, "no completion within a minute");
    struct ibv_cq* cq;
    void* context;
    check(ibv_get_cq_event(end->channel, &cq, &context) == 0, "ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
  }
  if (wc.status != IBV_WC_SUCCESS) {
    fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
    exit(1);
  }
  return wc;
}

static void close_end(struct end* end) {
  check(ibv_destroy_qp(end->qp) == 0, "ibv_destroy_qp");
  check(ibv_dereg_mr(end->mr) == 0, "ibv_dereg_mr");
  check(ibv_destroy_cq(end->cq) == 0, "ibv_destroy_cq");
  check(ibv_destroy_comp_channel(end->channel) == 0, "ibv_destroy_comp_channel");
  check(ibv_dealloc_pd(end->pd) == 0, "ibv_dealloc_pd");
  check(ibv_close_device(end->context) == 0, "ibv_close_device");
  free(end->memory);
}

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  size_t bytes = strtoul(argv[5], NULL, 10);
  int rounds = atoi(argv[6]);
  struct end sender = open_end(argv[1], atoi(argv[2]), bytes);
  struct end receiver = open_end(argv[3], atoi(argv[4]), bytes);
  connect_end(&receiver, &sender);
  connect_end(&sender, &receiver);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < bytes; ++i) sender.memory[i] = (unsigned char)(i * 31 + i / 4096 + round + 1);
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
    check(ibv_post_recv(receiver.qp, &receive, &bad_receive) == 0, "ibv_post_recv");
    struct ibv_sge piece = {(uintptr_t)sender.memory, (uint32_t)bytes, sender.mr->lkey};
    struct ibv_send_wr write = {.wr_id = 2,
                                .sg_list = &piece,
                                .num_sge = 1,
                                .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                .send_flags = IBV_SEND_SIGNALED,
                                .imm_data = htonl(0xabcd0000u + (uint32_t)round)},
                       *bad_write;
    write.wr.rdma.remote_addr = (uintptr_t)receiver.memory;
    write.wr.rdma.rkey = receiver.mr->rkey;
    check(ibv_post_send(sender.qp, &write, &bad_write) == 0, "ibv_post_send");
    struct ibv_wc arrived = next_completion(&receiver);
    check(arrived.opcode == IBV_WC_RECV_RDMA_WITH_IMM, "opcode");
    check((arrived.wc_flags & IBV_WC_WITH_IMM) && ntohl(arrived.imm_data) == 0xabcd0000u + (uint32_t)round,
          "immediate");
    check(arrived.byte_len == bytes, "length");
    check(memcmp(sender.memory, receiver.memory, bytes) == 0, "payload");
    check(next_completion(&sender).wr_id == 2, "the write's own completion");
  }
  close_end(&sender);
  close_end(&receiver);
  printf("%d writes of %zu bytes, mtu %d\n", rounds, bytes, 128 << sender.mtu);
  return 0;
}
