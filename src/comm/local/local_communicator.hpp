// The local backend's collectives: a rank's stream thread copies from, or sums over, the other ranks' memory directly.
#pragma once

#include "comm/checked_communicator.hpp"
#include "comm/local/local_group.hpp"

namespace tessera::comm {

class LocalCommunicator final : public CheckedCommunicator {
 public:
  // Tasks on a stream refer to the group, not to the communicator: it may end before they have run.
  LocalCommunicator(int rank, LocalGroup& group)
      : CheckedCommunicator(rank, group.size(), group.name()), group_(group) {}

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

  LocalGroup& group_;
};

}  // namespace tessera::comm
