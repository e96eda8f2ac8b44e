// Messages between the hosts of a job. What a rank says (its posts, what it has staged, its failure) is written down on
// every other host by one process there, as if the rank stood in that host's shared memory. So data crosses to a host
// once, whatever the number of ranks there, and waits know no hosts. What is said in a communicator is written down by
// one of its group there, so that a process hears of one group per communicator: its own.
//
// Thread safety: everything may be called from any thread. Allocates for each message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "comm/introduction.hpp"
#include "comm/pinned.hpp"
#include "comm/processes/process_group.hpp"
#include "comm/processes/process_job.hpp"

namespace tessera::comm {

class Exchange : Pinned {
 public:
  virtual ~Exchange() = default;

  // From now on, until it is removed, what other hosts' ranks say in this communicator is written down.
  virtual void add(ProcessGroup& group) = 0;
  virtual void remove(ProcessGroup& group) = 0;

  // This rank's own news, for all other hosts.
  virtual void tell_post(const ProcessGroup& group) = 0;
  virtual void tell_staged(const ProcessGroup& group, const Staged& staged) = 0;
  // These tell the job's failure, that this rank has left, that it has told the user, and how long ago it gave a sign
  // of life. Whoever cannot even say its news is missed by the others after the deadline.
  virtual void tell_failure(const Position& verdict, std::string_view cause) noexcept = 0;
  enum class Kind : std::uint32_t { post, staged, failure, left, reported, life, question, answer };
  virtual void tell_news(Kind kind, std::span<const std::byte> rest = {}) noexcept = 0;

  // Another host's process answers this one (ProcessJob::answer_of), however busy its rank is.
  virtual void ask(int rank) noexcept = 0;

  // Returns when everything told has been sent, or after the deadline, at most five seconds.
  virtual void flush() noexcept = 0;
};

// The job outlives it.
std::unique_ptr<Exchange> make_exchange(ProcessJob& job, std::unique_ptr<HostChannel> channel);

}  // namespace tessera::comm
