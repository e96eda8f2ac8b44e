// The collectives of a rank without peers: each is one task on its stream, which writes where a real one writes, and
// takes the modelled time.
#pragma once

#include "comm/modelled/modelled_job.hpp"
#include "comm/task_communicator.hpp"

namespace tessera::comm {

// What the ranks that are not there contribute: zeros, or what this rank says (the World's host conveniences).
enum class Peers { zero, same };

class ModelledCommunicator final : public TaskCommunicator<ModelledCommunicator> {
 public:
  // The job outlives the communicator and its tasks.
  ModelledCommunicator(ModelledJob& job, std::string name, Peers peers)
      : TaskCommunicator(job.options().rank, job.options().ranks, name),
        job_(job),
        channel_(job.channel(std::move(name))),
        peers_(peers) {}

 private:
  friend TaskCommunicator<ModelledCommunicator>;
  template <typename Operation>
  void submit(Stream& stream, const Signature& signature, const Operation& operation);

  ModelledJob& job_;
  ModelledChannel& channel_;
  Peers peers_;
};

}  // namespace tessera::comm
