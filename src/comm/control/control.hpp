// One rank's way to the others beside the collectives: announcements of what it calls, small blobs, and how the job
// ends. Never on the way of a collective's data.
//
// Backends: threads of one process (control_room.hpp), processes over a rendezvous (rendezvous/rendezvous_control.hpp).
// Thread safety: all of it, but that each channel is announced on by one thread at
// a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control/ledger.hpp"
#include "comm/job_failure.hpp"
#include "comm/members.hpp"
#include "comm/signature.hpp"

namespace tessera::comm {

class Control : public JobMember {
 public:
  // ---- channels ----

  // A new channel of the communicator `name`, for each of the groups of a partition, or for all ranks; `blob` comes
  // back from every rank. Collective over all ranks, blocks. Throws as exchange() does; ranks that disagree about the
  // name or the partition get an error that names both.
  struct Opened : Identity {
    std::vector<std::string> blobs;  // by rank of the job
  };
  Opened open(const std::string& name, const std::optional<Group>& group, std::string_view blob) {
    Opened opened{channels_.take(name, group, rank(), size()), {}};
    std::string said;
    append_opening(said, opening_of(opened.name, group, rank()));
    opened.blobs = exchange(0, signature_of_creation(creation_label(name, group)), said.append(blob));
    return opened;
  }

  // This rank now calls `signature` on the channel. Never waits; allocates nothing once the same has happened before.
  // The position, whose number is 0 when the job had failed before: then it was announced to nobody.
  virtual Position announce(std::size_t channel, const Signature& signature) = 0;

  // Blocks until the channel's members have announced this position, and equally; throws as fail_at() when the job
  // fails first. The ranks that are missing after timeout() end it.
  virtual void await_agreement(const Position& position, const Signature& signature) = 0;

  // Does what announce() and await_agreement() do, with a blob of at most most_blob from each member to all; they come
  // back by place. On channel 0 it begins with an Opening, which does not come back.
  virtual std::vector<std::string> exchange(std::size_t channel, const Signature& signature, std::string_view blob) = 0;
  static constexpr std::size_t most_blob = 64 << 10;
  static constexpr std::size_t most_code = 1 << 20;  // of a signature that goes to another process

  // This rank's device has been in the collective for timeout(): the job fails, and the text says who is missing.
  virtual void late(const Position& position, const Signature& signature) noexcept = 0;

  // ---- the job's end ----

  // For a member of the job abort() returns once it is known whose failure was the first; within seconds,
  // whatever happens.

  // The job has failed: as throw_failure().
  [[noreturn]] void fail_at(const Position& position) const { throw_failure(*failure(), position); }

 private:
  ChannelCount channels_;
};

}  // namespace tessera::comm
