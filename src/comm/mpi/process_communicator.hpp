// The mpi backend's collectives: each becomes one task on the rank's stream.
#pragma once

#include <memory>

#include "comm/checked_communicator.hpp"
#include "comm/mpi/process_group.hpp"

namespace tessera::comm {

class ProcessCommunicator final : public CheckedCommunicator {
 public:
  // Tasks on a stream keep the group: the communicator may end before they have run.
  explicit ProcessCommunicator(std::shared_ptr<ProcessGroup> group)
      : CheckedCommunicator(group->rank(), group->size(), group->name()), group_(std::move(group)) {}

 private:
  void enqueue(Stream& stream, const Signature& signature, std::span<const AllGather> segments) final;
  void enqueue(Stream& stream, const Signature& signature, std::span<const ReduceScatter> segments) final;
  void enqueue(Stream& stream, const Signature& signature, const AllReduce& operation) final;
  void enqueue(Stream& stream, const Signature& signature, const Broadcast& operation) final;
  void enqueue(Stream& stream, const Signature& signature, const Barrier& operation) final;

  template <typename Operation>
  void submit(Stream& stream, const Signature& signature, const Operation& operation);
  template <typename Operation>
  void submit_group(Stream& stream, const Signature& signature, std::span<const Operation> segments);

  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace tessera::comm
