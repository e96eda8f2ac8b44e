// What all backends' communicators share: identity, checks of the arguments, the sequence number of each call, and the
// way from the public calls to one task on the rank's stream.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "comm/members.hpp"
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
// What a collective's arguments must satisfy, whatever the backend. Violations are UsageErrors at the call.

// A collective on an immediate stream would block the host until every peer has come.
void check_stream(const MembersCommunicator& communicator, const Stream& stream, const Signature& signature);

void check(const MembersCommunicator& communicator, std::span<const AllGather> segments);
void check(const MembersCommunicator& communicator, std::span<const ReduceScatter> segments);
void check(const MembersCommunicator& communicator, const AllReduce& operation);
void check(const MembersCommunicator& communicator, const Broadcast& operation);
void check(const MembersCommunicator& communicator, const Barrier& operation);

// ---- calls ----

template <typename Operation>
struct SingleSegment {
  Operation operation;
  operator std::span<const Operation>() const { return {&operation, 1}; }  // NOLINT(google-explicit-constructor)
};

// Derived enqueues a call whose arguments are valid, on a queued stream, and allocates nothing:
//
//   template <typename Operation> void submit(Stream& stream, const Signature& signature, const Operation& operation);
//
// Operation is AllReduce, Broadcast, Barrier, a span of segments that the caller keeps, or a SingleSegment, which a
// task has room for.
template <typename Derived>
class TaskCommunicator : public MembersCommunicator {
 public:
  using Communicator::all_gather;
  using Communicator::reduce_scatter;
  void all_gather(Stream& stream, std::span<const AllGather> segments) final { call_group(stream, segments); }
  void reduce_scatter(Stream& stream, std::span<const ReduceScatter> segments) final { call_group(stream, segments); }
  void all_reduce(Stream& stream, const AllReduce& operation) final { call(stream, operation, operation); }
  void broadcast(Stream& stream, const Broadcast& operation) final { call(stream, operation, operation); }
  void barrier(Stream& stream, std::string_view label) final { call(stream, Barrier{label}, Barrier{label}); }

 protected:
  using MembersCommunicator::MembersCommunicator;

 private:
  // `submitted` is the operation in the form that its task keeps. A call that is rejected takes no sequence number: the
  // caller may correct it and go on.
  template <typename Operation, typename Submitted>
  void call(Stream& stream, const Operation& operation, const Submitted& submitted) {
    Signature signature = signature_of(operation, sequence_ + 1);
    check_stream(*this, stream, signature);
    check(*this, operation);
    signature.root = members().ranks[static_cast<std::size_t>(signature.root)];
    static_cast<Derived&>(*this).submit(stream, signature, submitted);
    ++sequence_;
  }
  template <typename Operation>
  void call_group(Stream& stream, std::span<const Operation> segments) {
    if (segments.size() == 1) return call(stream, segments, SingleSegment<Operation>{segments.front()});
    call(stream, segments, segments);
  }

  std::uint64_t sequence_ = 0;
};

}  // namespace tessera::comm
