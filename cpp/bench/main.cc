// mxrdma_bound shm|tcp|verbs --workers W --bytes N --rule sum|sgd --steps K [--slot-bytes B]
// [--slots R] mxrdma_bound memcpy|loopback Prints one line of JSON. Called by mxrdma-bench.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "bound.h"

namespace mxrdma::bench {

void run_memcpy() {
  constexpr size_t kBytes = 64u << 20;
  constexpr int kRounds = 15;
  std::vector<char> source(kBytes, 1), target(kBytes, 0);
  std::vector<double> rates;
  for (int round = 0; round < kRounds; ++round) {
    const double begin_s = now_s();
    std::memcpy(target.data(), source.data(), kBytes);
    rates.push_back(kBytes / (now_s() - begin_s) / 1e9);
    source[static_cast<size_t>(round)] = target[kBytes - 1];  // the copy is used
  }
  std::sort(rates.begin(), rates.end());
  std::printf("{\"gb_s\": %.6f}\n", rates[rates.size() / 2]);
}

namespace {

size_t number(const char* name, const char* text, size_t low, size_t high) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0' || value < low || value > high)
    die(std::string(name) + " must be a number from " + std::to_string(low) + " to " +
        std::to_string(high) + ", not '" + text + "'");
  return value;
}

Options parse(int count, char** words) {
  Options options;
  for (int i = 2; i + 1 < count; i += 2) {
    const std::string name = words[i];
    const char* value = words[i + 1];
    if (name == "--workers")
      options.workers = static_cast<int>(number("--workers", value, 1, 64));
    else if (name == "--bytes")
      options.bytes = number("--bytes", value, 4, size_t{1} << 33) / sizeof(float) * sizeof(float);
    else if (name == "--slot-bytes")
      options.slot_bytes = number("--slot-bytes", value, 4096, 1u << 26) / 4096 * 4096;
    else if (name == "--slots")
      options.slots = number("--slots", value, 1, 1024);
    else if (name == "--steps")
      options.steps = static_cast<int>(number("--steps", value, 1, 100'000));
    else if (name == "--rule" && (!std::strcmp(value, "sum") || !std::strcmp(value, "sgd")))
      options.rule = !std::strcmp(value, "sum") ? Rule::sum : Rule::sgd;
    else
      die("what is '" + name + " " + value + "'?");
  }
  if (count % 2 != 0) die("an option lacks its value");
  return options;
}

int run(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  if (what == "memcpy")
    run_memcpy();
  else if (what == "loopback")
    run_loopback();
  else if (what == "shm")
    run_shm(parse(count, words));
  else if (what == "tcp")
    run_tcp(parse(count, words));
  else if (what == "verbs")
    run_verbs(parse(count, words));
  else
    die("usage: mxrdma_bound shm|tcp|verbs|memcpy|loopback [options]");
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace

}  // namespace mxrdma::bench

int main(int count, char** words) { return mxrdma::bench::run(count, words); }
