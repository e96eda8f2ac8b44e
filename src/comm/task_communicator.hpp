// What communicators share whose collectives are tasks on the rank's stream: from the five enqueue() to one submit(),
// which Derived has as
//   template <typename Operation> void submit(Stream& stream, const Signature& signature, const Operation& operation);
// Operation is AllReduce, Broadcast, Barrier, a span of segments that the caller keeps, or a SingleSegment, which a
// task has room for.
#pragma once

#include <span>

#include "comm/checked_communicator.hpp"

namespace tessera::comm {

template <typename Operation>
struct SingleSegment {
  Operation operation;
  operator std::span<const Operation>() const { return {&operation, 1}; }  // NOLINT(google-explicit-constructor)
};

template <typename Derived>
class TaskCommunicator : public CheckedCommunicator {
 protected:
  using CheckedCommunicator::CheckedCommunicator;

 private:
  void enqueue(Stream& stream, const Signature& signature, std::span<const AllGather> segments) final {
    submit_group(stream, signature, segments);
  }
  void enqueue(Stream& stream, const Signature& signature, std::span<const ReduceScatter> segments) final {
    submit_group(stream, signature, segments);
  }
  void enqueue(Stream& stream, const Signature& signature, const AllReduce& operation) final {
    derived().submit(stream, signature, operation);
  }
  void enqueue(Stream& stream, const Signature& signature, const Broadcast& operation) final {
    derived().submit(stream, signature, operation);
  }
  void enqueue(Stream& stream, const Signature& signature, const Barrier& operation) final {
    derived().submit(stream, signature, operation);
  }

  template <typename Operation>
  void submit_group(Stream& stream, const Signature& signature, std::span<const Operation> segments) {
    if (segments.size() > 1) return derived().submit(stream, signature, segments);
    derived().submit(stream, signature, SingleSegment<Operation>{segments.front()});
  }
  Derived& derived() { return static_cast<Derived&>(*this); }
};

}  // namespace tessera::comm
