// What all backends' communicators share: identity, checks of the arguments, and the sequence number of each call.
// A backend implements enqueue().
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/signature.hpp"
#include "tessera/comm/communicator.hpp"

namespace tessera::comm {

class CheckedCommunicator : public Communicator {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  const std::string& name() const final { return name_; }

  using Communicator::all_gather;
  using Communicator::reduce_scatter;
  void all_gather(Stream& stream, std::span<const AllGather> segments) final { call(stream, segments); }
  void reduce_scatter(Stream& stream, std::span<const ReduceScatter> segments) final { call(stream, segments); }
  void all_reduce(Stream& stream, const AllReduce& operation) final { call(stream, operation); }
  void broadcast(Stream& stream, const Broadcast& operation) final { call(stream, operation); }
  void barrier(Stream& stream, std::string_view label) final { call(stream, Barrier{label}); }

 protected:
  CheckedCommunicator(int rank, int size, std::string name) : rank_(rank), size_(size), name_(std::move(name)) {}

  // The arguments are valid, the stream is queued. Enqueues and returns; allocates nothing. There is a segment at
  // least; a single one does not outlive the call.
  virtual void enqueue(Stream& stream, const Signature& signature, std::span<const AllGather> segments) = 0;
  virtual void enqueue(Stream& stream, const Signature& signature, std::span<const ReduceScatter> segments) = 0;
  virtual void enqueue(Stream& stream, const Signature& signature, const AllReduce& operation) = 0;
  virtual void enqueue(Stream& stream, const Signature& signature, const Broadcast& operation) = 0;
  virtual void enqueue(Stream& stream, const Signature& signature, const Barrier& operation) = 0;

 private:
  template <typename Operation>
  void call(Stream& stream, const Operation& operation);

  int rank_;
  int size_;
  std::string name_;
  std::uint64_t sequence_ = 0;
};

}  // namespace tessera::comm
