// Writes, messages and reads over one reliable connected queue pair.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "fabric/verbs/batch.h"
#include "fabric/verbs/context.h"
#include "fabric/verbs/credits.h"
#include "fabric/verbs/hub.h"
#include "fabric/verbs/packet.h"
#include "fabric/verbs/plan.h"

namespace mxrdma::fabric::verbs {

class VerbsChannel final : public Link, private Listener, private CmEnd {
 public:
  // `control` is the connection whose end shows the peer's death; it stays its owner's.
  static Result<std::unique_ptr<Link>> make(VerbsContext* context, const ChannelContext& shared,
                                            PeerId peer, int control, bool acceptor);
  ~VerbsChannel() override;

  // ---- Link
  VerbsEnd end() const override { return ours_; }
  Status meet_on_loop(const VerbsEnd& theirs) override;
  Status probe_on_loop() override;
  bool heard() const override { return heard_; }
  void open_on_loop() override;
  std::string describe() const override;

  // ---- Channel
  Status write(const LocalSpan* spans, size_t count, size_t bytes, const RemoteRegion& target,
               uint32_t immediate, uint64_t id) override;
  Status send(const void* data, size_t bytes, uint64_t id) override;
  Status read(const RemoteRegion& source, void* into, size_t bytes, uint64_t id) override;
  bool can_read() const override { return starts_reads_ > 0 && theirs_.rails[0].reads > 0; }
  size_t outstanding() const override { return operations_.size(); }
  bool keeps_registrations() const override { return true; }
  Result<RemoteRegion> name_on_loop(RegionId id, const RegionTable::Entry& entry) override;
  Status progress_on_loop() override;
  Status readable_on_loop() override;
  bool arm_on_loop() override { return broken_.is_ok(); }
  // The device writes, and checks each packet of it: there is nothing half done on our side.
  bool receiving_into(RegionId) const override { return false; }
  std::vector<uint64_t> abandon_on_loop() override;
  const char* kind() const override { return "verbs"; }

 private:
  enum class Kind : uint8_t { write, message, read };
  struct Operation {
    uint64_t id = 0;
    Kind kind = Kind::write;
    WritePlan plan;  // writes, reads
    std::vector<std::byte> message;
    size_t sent = 0;  // of the message
    RemoteRegion target;
    uint32_t immediate = 0;
    uint64_t bytes = 0;
    Handle<ibv_mr> registered;  // reads: where it goes
    bool issued = false;
    bool data_posted = false;  // writes in parts: only the word of its end is left
    uint64_t last_request = 0;
  };
  struct Staged {
    uint64_t request = 0;
    size_t held = 0;
  };

  VerbsChannel(VerbsContext* context, const ChannelContext& shared, PeerId peer, int control,
               bool acceptor);
  Status prepare();
  Status to_receive(const VerbsRail& theirs);
  Status to_send(const VerbsRail& theirs);

  // ---- Listener
  void sent_on_loop(const ibv_wc& completion) override;
  void received_on_loop(const ibv_wc& completion, const std::byte* data) override;
  void broken_on_loop(const Status& status) override;

  // ---- CmEnd
  uint32_t queue_pair_number() const override { return queue_pair_->qp_num; }
  void established_on_loop() override { established_ = true; }
  void disconnected_on_loop(const Status& why) override;

  // ---- sending
  void issue_waiting();
  // False: no room now.
  bool issue(Operation* operation, Batch* batch);
  bool issue_write(Operation* operation, Batch* batch);
  bool issue_read(Operation* operation, Batch* batch);
  bool issue_message(Operation* operation, Batch* batch);
  bool issue_packet(PacketHeader header, const std::byte* payload, size_t bytes, Batch* batch);
  void return_credits(Batch* batch);
  ibv_send_wr* add_request(Batch* batch, uint64_t number, ibv_wr_opcode opcode);
  bool stage(Cut* cut, uint64_t request);
  bool has_room(const Batch& batch) const;
  uint64_t next_request(const Batch& batch) const { return posted_ + batch.count() + 1; }
  void post(Batch* batch);
  void finish_done();

  // ---- receiving
  void on_packet(const std::byte* data, size_t bytes);
  void on_part(const PacketHeader& header, const std::byte* payload, size_t bytes);
  void deliver(Event event);

  VerbsContext* context_;
  ChannelContext shared_;
  PeerId peer_;
  int control_;
  bool acceptor_;
  VerbsEnd ours_, theirs_;
  uint32_t granted_ = 0, inline_bytes_ = 0;
  Handle<ibv_qp> queue_pair_;
  Block staging_;
  StageRing ring_;
  Credits credits_;
  Status broken_;
  // Established: the queue pair can send; by rdma_cm that comes some time after the ends have met.
  bool met_ = false, established_ = false, heard_ = false, open_ = false, probe_wanted_ = false;
  uint32_t starts_reads_ = 0;  // at a time
  bool read_before_ = false;   // the last request was a read (iWARP)

  std::deque<Operation> operations_;  // posting order; the front is the oldest without `done`
  size_t next_to_issue_ = 0;
  uint64_t posted_ = 0, completed_ = 0;  // requests of the queue pair; wr_id is the number
  std::deque<Staged> staged_;
  std::vector<std::byte> message_;  // of the peer, in parts
  size_t message_received_ = 0;
  bool in_message_ = false;
  std::vector<Event> held_;  // came before the connection was up
};

}  // namespace mxrdma::fabric::verbs
