// Each collective becomes one task on the rank's stream.
#include "comm/local/local_communicator.hpp"

#include "comm/local/local_collectives.hpp"

namespace tessera::comm {

template <typename Operation>
void LocalCommunicator::submit(Stream& stream, const Signature& signature, const Operation& operation) {
  stream.submit([&group = group_, rank = rank(), signature, operation] {
    run_collective({.group = group, .rank = rank, .signature = signature}, operation);
  });
}

// A task has room for one segment, not for any number.
template <typename Operation>
void LocalCommunicator::submit_group(Stream& stream, const Signature& signature, std::span<const Operation> segments) {
  if (segments.size() > 1) return submit(stream, signature, segments);
  stream.submit([&group = group_, rank = rank(), signature, only = segments.front()] {
    run_collective({.group = group, .rank = rank, .signature = signature}, std::span(&only, 1));
  });
}

void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, std::span<const AllGather> segments) {
  submit_group(stream, signature, segments);
}
void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, std::span<const ReduceScatter> segments) {
  submit_group(stream, signature, segments);
}
void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, const AllReduce& operation) {
  submit(stream, signature, operation);
}
void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, const Broadcast& operation) {
  submit(stream, signature, operation);
}
void LocalCommunicator::enqueue(Stream& stream, const Signature& signature, const Barrier& operation) {
  submit(stream, signature, operation);
}

}  // namespace tessera::comm
