// The collectives of a rank without peers: each is one task on its stream, which writes where a real one writes, and
// takes the modelled time.
#pragma once

#include "comm/checked_communicator.hpp"
#include "comm/modelled/modelled_job.hpp"

namespace tessera::comm {

// What the ranks that are not there contribute: zeros, or what this rank says (the World's host conveniences).
enum class Peers { zero, same };

class ModelledCommunicator final : public CheckedCommunicator {
 public:
  // The job outlives the communicator and its tasks.
  ModelledCommunicator(ModelledJob& job, std::string name, Peers peers)
      : CheckedCommunicator(job.options().rank, job.options().ranks, name),
        job_(job),
        channel_(job.channel(std::move(name))),
        peers_(peers) {}

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

  ModelledJob& job_;
  ModelledChannel& channel_;
  Peers peers_;
};

}  // namespace tessera::comm
