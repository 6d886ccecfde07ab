// What the cluster's state machines want done outside. Appended by each call, carried out by the
// node in order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/control.h"

namespace mxrdma::cluster {

using Member = uint32_t;  // one connection to the scheduler, named by the driver, never given twice

struct Effect {
  enum class Kind : uint8_t {
    send,      // `message` to each of `to`
    drop,      // close the connections `to`, after what was sent before has had time to arrive
    close,     // close the connections `to` now
    complete,  // all workers are in the collective `sequence`: decide it, then call release()
    log,       // `text` for people
  };
  enum class Severity : uint8_t { info, warning, error };

  Kind kind = Kind::send;
  std::vector<Member> to;
  wire::Message message;
  uint64_t sequence = 0;
  wire::CollectiveKind collective = wire::CollectiveKind::barrier;
  std::vector<wire::Enter> enters;  // by rank
  Severity severity = Severity::info;
  std::string text;

  static Effect send(std::vector<Member> to, wire::Message message) {
    Effect effect;
    effect.kind = Kind::send;
    effect.to = std::move(to);
    effect.message = std::move(message);
    return effect;
  }
  static Effect drop(Member member) {
    Effect effect;
    effect.kind = Kind::drop;
    effect.to = {member};
    return effect;
  }
  static Effect close(Member member) {
    Effect effect;
    effect.kind = Kind::close;
    effect.to = {member};
    return effect;
  }
  static Effect log(Severity severity, std::string text) {
    Effect effect;
    effect.kind = Kind::log;
    effect.severity = severity;
    effect.text = std::move(text);
    return effect;
  }
};
using Effects = std::vector<Effect>;

}  // namespace mxrdma::cluster
