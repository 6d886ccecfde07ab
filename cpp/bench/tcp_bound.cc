// The tcp path, bare: one stream for each worker, slices summed by whoever brings the last one, and
// weights sent from the server's memory. Two threads at each end of a stream, so that both
// directions flow.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <thread>

#include "bound.h"

namespace mxrdma::bench {

namespace {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    if (fd < 0) die_of_errno("socket");
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { ::close(fd_); }
  int fd() const { return fd_; }

  // Small messages leave at once, and no wait is without limit.
  void prepare() {
    const int one = 1;
    const timeval limit{kWaitLimitMs / 1000, 0};
    if (setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0 ||
        setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
      die_of_errno("setsockopt");
  }
  void send_all(const void* data, size_t bytes) {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t sent = ::send(fd_, next, bytes, MSG_NOSIGNAL);
      if (sent <= 0) die_of_errno("send");
      next += sent;
      bytes -= static_cast<size_t>(sent);
    }
  }
  void receive_all(void* data, size_t bytes) {
    char* next = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = ::recv(fd_, next, bytes, 0);
      if (got == 0) die("a peer closed its connection");
      if (got < 0) die_of_errno("recv");
      next += got;
      bytes -= static_cast<size_t>(got);
    }
  }

 private:
  const int fd_;
};

class Listener {
 public:
  Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address_;
    if (bind(socket_.fd(), reinterpret_cast<sockaddr*>(&address_), length) != 0 ||
        listen(socket_.fd(), 64) != 0 ||
        getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&address_), &length) != 0)
      die_of_errno("listen");
  }
  std::unique_ptr<Socket> accept() {
    auto accepted =
        std::make_unique<Socket>(::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    accepted->prepare();
    return accepted;
  }
  std::unique_ptr<Socket> connect() const {
    auto connected = std::make_unique<Socket>(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(connected->fd(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) !=
        0)
      die_of_errno("connect");
    connected->prepare();
    return connected;
  }

 private:
  Socket socket_;
  sockaddr_in address_{};
};

// The server: each worker has a ring of slots, and a slice is combined by the thread that completes
// it.
class Server {
 public:
  Server(const Options& options, std::vector<std::unique_ptr<Socket>> sockets)
      : options_(options),
        sockets_(std::move(sockets)),
        weights_(options.elements(), 0.0f),
        rings_(sockets_.size() * options.slots * options.slice_elements()),
        arrived_(options.slots) {}

  void serve() {
    std::vector<std::thread> threads;
    for (size_t w = 0; w < sockets_.size(); ++w) {
      threads.emplace_back([this, w] { receive(w); });
      threads.emplace_back([this, w] { send(w); });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  float* slot(size_t worker, uint32_t slice) {
    return rings_.data() +
           (worker * options_.slots + slice % options_.slots) * options_.slice_elements();
  }

  void receive(size_t worker) {
    std::vector<const float*> payloads(sockets_.size());
    uint32_t slice = 0;
    for (int step = 0; step < options_.steps; ++step) {
      for (size_t i = 0; i < options_.slices(); ++i, ++slice) {
        // The slot is free when the slice that lay in it has been combined.
        wait_reached(combined_, slice + 1 - static_cast<uint32_t>(options_.slots));
        sockets_[worker]->receive_all(slot(worker, slice), options_.elements_of(i) * sizeof(float));
        std::atomic<uint32_t>& arrived = arrived_[slice % options_.slots];
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < sockets_.size()) continue;
        arrived.store(0, std::memory_order_relaxed);
        // Slices are completed in order: no stream can complete the next one before this returns.
        for (size_t w = 0; w < payloads.size(); ++w) payloads[w] = slot(w, slice);
        wait_reached(combined_, slice);
        combine(payloads, weights_.data() + i * options_.slice_elements(), options_.elements_of(i),
                options_.rule);
        advance(&combined_, slice + 1);
      }
    }
  }

  void send(size_t worker) {
    uint32_t slice = 0;
    for (int step = 0; step < options_.steps; ++step)
      for (size_t i = 0; i < options_.slices(); ++i, ++slice) {
        wait_reached(combined_, slice + 1);
        sockets_[worker]->send_all(weights_.data() + i * options_.slice_elements(),
                                   options_.elements_of(i) * sizeof(float));
      }
  }

  const Options options_;
  std::vector<std::unique_ptr<Socket>> sockets_;
  std::vector<float> weights_;
  std::vector<float> rings_;
  std::vector<std::atomic<uint32_t>> arrived_;
  std::atomic<uint32_t> combined_{0};
};

void work(const Options& options, Socket* socket, int worker, double* step_s) {
  std::vector<float> gradients(options.elements(), static_cast<float>(worker + 1));
  std::vector<float> weights(options.elements(), 0.0f);
  std::atomic<uint32_t> begun{0};
  std::thread sender([&] {
    for (int step = 0; step < options.steps; ++step) {
      wait_reached(begun, static_cast<uint32_t>(step) + 1);
      socket->send_all(gradients.data(), options.elements() * sizeof(float));
    }
  });
  for (int step = 0; step < options.steps; ++step) {
    const double begin_s = now_s();
    advance(&begun, static_cast<uint32_t>(step) + 1);
    socket->receive_all(weights.data(), options.elements() * sizeof(float));
    step_s[step] = now_s() - begin_s;
  }
  sender.join();
  check(options, weights.data());
}

}  // namespace

void run_tcp(const Options& options) {
  Listener listener;
  auto* step_s = static_cast<double*>(shared_memory(
      static_cast<size_t>(options.workers) * static_cast<size_t>(options.steps) * sizeof(double)));
  std::vector<int> pids;
  for (int w = 0; w < options.workers; ++w)
    pids.push_back(spawn([&] {
      std::unique_ptr<Socket> socket = listener.connect();
      work(options, socket.get(), w, step_s + w * options.steps);
    }));
  pids.push_back(spawn([&] {
    std::vector<std::unique_ptr<Socket>> sockets;
    for (int w = 0; w < options.workers; ++w) sockets.push_back(listener.accept());
    Server(options, std::move(sockets)).serve();
  }));
  join_children(pids);
  print_result(options, slowest(step_s, options), cpu_s());
}

void run_loopback() {
  constexpr size_t kTotalBytes = 2ull << 30, kChunkBytes = 1u << 20;
  Listener listener;
  const std::vector<int> pids = {spawn([&] {
    std::unique_ptr<Socket> socket = listener.connect();
    std::vector<char> chunk(kChunkBytes, 1);
    for (size_t sent = 0; sent < kTotalBytes; sent += kChunkBytes)
      socket->send_all(chunk.data(), kChunkBytes);
  })};
  std::unique_ptr<Socket> socket = listener.accept();
  std::vector<char> chunk(kChunkBytes, 0);
  const double begin_s = now_s();
  for (size_t got = 0; got < kTotalBytes; got += kChunkBytes)
    socket->receive_all(chunk.data(), kChunkBytes);
  const double seconds = now_s() - begin_s;
  join_children(pids);
  std::printf("{\"gb_s\": %.6f, \"cpu_s_per_gb\": %.6f}\n", kTotalBytes / seconds / 1e9,
              cpu_s() / (kTotalBytes / 1e9));
}

}  // namespace mxrdma::bench
