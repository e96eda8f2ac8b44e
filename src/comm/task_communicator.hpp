// All backends' communicators share this: identity, checks of the arguments, the sequence number of each call, and the
// way from the public calls to one task on the rank's stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "comm/job_failure.hpp"
#include "comm/members.hpp"
#include "comm/pinned.hpp"
#include "comm/signature.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::comm {

// ---- identity ----

class MembersCommunicator : public Communicator {
 public:
  int rank() const final { return members_.place; }
  int size() const final { return members_.size(); }
  const std::string& name() const final { return name_; }
  const Members& members() const { return members_; }

 protected:
  MembersCommunicator(Members members, std::string name) : members_(std::move(members)), name_(std::move(name)) {}

 private:
  const Members members_;
  const std::string name_;
};

// ---- checks ----
//
// A collective's arguments must satisfy these, whatever the backend. Violations are UsageErrors at the call.

// A collective on an immediate stream blocks the host until every peer has come, which such a stream must be made for.
void check_stream(const MembersCommunicator& communicator, const Stream& stream, const Signature& signature);

void check(const MembersCommunicator& communicator, std::span<const AllGather> segments);
void check(const MembersCommunicator& communicator, std::span<const ReduceScatter> segments);
void check(const MembersCommunicator& communicator, const AllReduce& operation);
void check(const MembersCommunicator& communicator, const Broadcast& operation);
void check(const MembersCommunicator& communicator, const Redistribute& operation);
void check(const MembersCommunicator& communicator, const Barrier& operation);

// ---- calls ----

// A task holds a Claim while it runs: one collective of a communicator at a time. Throws AbortedError when the job has
// failed; and UsageError, with which the job fails, when another stream is in a collective of the communicator.
class Claim : Pinned {
 public:
  Claim(std::atomic<bool>& busy, JobMember& job, std::string_view communicator);
  ~Claim() { busy_ = false; }

 private:
  std::atomic<bool>& busy_;
};

template <typename Operation>
struct SingleSegment {
  Operation operation;
};

// An operation, from the form that its task keeps.
template <typename Operation>
const Operation& called(const Operation& operation) {
  return operation;
}
template <typename Operation>
std::span<const Operation> called(const SingleSegment<Operation>& segment) {
  return {&segment.operation, 1};
}

// MakeCall, called with a stream that may meet peers and the signature of a call whose arguments are valid, makes what
// the task calls with the operation (AllReduce, Broadcast, Barrier, or a span of segments), and allocates nothing.
//
// Tasks keep what it makes, not the communicator: that may end before they have run.
template <typename MakeCall>
class TaskCommunicator final : public MembersCommunicator {
 public:
  TaskCommunicator(Members members, std::string name, MakeCall make_call)
      : MembersCommunicator(std::move(members), std::move(name)), make_call_(std::move(make_call)) {}

  using Communicator::all_gather;
  using Communicator::reduce_scatter;
  void all_gather(Stream& stream, std::span<const AllGather> segments) final { call_group(stream, segments); }
  void reduce_scatter(Stream& stream, std::span<const ReduceScatter> segments) final { call_group(stream, segments); }
  void all_reduce(Stream& stream, const AllReduce& operation) final { call(stream, operation, operation); }
  void broadcast(Stream& stream, const Broadcast& operation) final { call(stream, operation, operation); }
  void redistribute(Stream& stream, const Redistribute& operation) final { call(stream, operation, operation); }
  void barrier(Stream& stream, std::string_view label) final { call(stream, Barrier{label}, Barrier{label}); }

 private:
  // `kept` is the operation in the form that its task keeps: the caller keeps several segments, a task has room for
  // one. A call that is rejected takes no sequence number: the caller may correct it and go on.
  template <typename Operation, typename Kept>
  void call(Stream& stream, const Operation& operation, const Kept& kept) {
    Signature signature = signature_of(operation, sequence_ + 1);
    check_stream(*this, stream, signature);
    check(*this, operation);
    signature.root = members().ranks[static_cast<std::size_t>(signature.root)];
    stream.submit([call = make_call_(stream, signature), kept] { call(called(kept)); });
    ++sequence_;
  }
  template <typename Operation>
  void call_group(Stream& stream, std::span<const Operation> segments) {
    if (segments.size() == 1) return call(stream, segments, SingleSegment<Operation>{segments.front()});
    call(stream, segments, segments);
  }

  const MakeCall make_call_;
  std::uint64_t sequence_ = 0;
};

template <typename MakeCall>
std::unique_ptr<Communicator> make_task_communicator(Members members, std::string name, MakeCall make_call) {
  return std::make_unique<TaskCommunicator<MakeCall>>(std::move(members), std::move(name), std::move(make_call));
}

}  // namespace tessera::comm
